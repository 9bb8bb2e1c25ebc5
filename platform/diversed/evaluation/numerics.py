"""Suite `numerics` of the benchmark: where greedy outputs that are equal in exact arithmetic part, and on how little.

A block of tokens and a single token pass through other kernels, which round differently. In float32 the outputs agree
but for ties; in bfloat16 they may part where the target's two likeliest tokens are closer than its rounding. So a
divergence is reported with the gap between these two at the first difference, not asserted away: a small gap is
rounding, a large one is a fault.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console

from diversed.decoding import Request, build_engine
from diversed.evaluation.benchmark import Report, Row
from diversed.evaluation.peers import HuggingFace
from diversed.evaluation.progress import Bar
from diversed.evaluation.speed import HF_GENERATE
from diversed.models import Pair
from diversed.settings import Method, Settings
from diversed.tasks import Example

__all__ = ["Parting", "measure_numerics", "parting"]

COLUMNS = {
    "prompts": "greedy outputs compared",
    "equal": "share that agrees token for token",
    "first_difference": "tokens before the first difference; the smallest of those that differ",
    "top2_gap": "difference of the target's two highest logits there; the largest of those that differ",
    "likeliest": "probability of its likeliest token there; of the same output",
}


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two outputs part."""

    at: int  # tokens they have in common
    top2_gap: float  # logits, of the target's two likeliest next tokens there
    likeliest: float  # probability of the first of them


def parting(pair: Pair, prompt_ids: Sequence[int], one: Sequence[int], other: Sequence[int]) -> Parting | None:
    """None if the outputs are equal."""
    if list(one) == list(other):
        return None
    same = [a == b for a, b in zip(one, other, strict=False)]
    at = (*same, False).index(False)
    ids_1T = torch.tensor([[*prompt_ids, *one[:at]]], device=pair.device)
    with torch.inference_mode():
        logits_V = pair.target(input_ids=ids_1T).logits[0, -1, : pair.vocab_size].float()
    first, second = logits_V.topk(2).values.tolist()
    return Parting(at, first - second, float(logits_V.softmax(-1).max()))


def measure_numerics(settings: Settings, pair: Pair, examples: Sequence[Example], console: Console) -> Report:
    """Greedy strict, in blocks, and Hugging Face's greedy `generate` against our autoregressive loop."""
    decode = settings.decode.model_copy(update={"temperature": 0.0, "method": Method.AUTOREGRESSIVE})
    chosen = examples[: max(settings.benchmark.prompts, 2)]
    prompts = [pair.encode(example.prompt, settings.task.chat_template) for example in chosen]
    limit = settings.task.max_new_tokens
    requests = [Request.of(ids, limit, seed=0, decode=decode) for ids in prompts]

    def ours(method: Method, batch_size: int) -> list[list[int]]:
        engine = build_engine(pair, decode.model_copy(update={"method": method, "batch_size": batch_size}))
        return [generation.tokens for generation in engine.generate(requests)]

    peer = HuggingFace(pair, decode, assisted=False)
    with Bar(console, "numerics", 4, "ways to decode") as bar:
        reference = ours(Method.AUTOREGRESSIVE, 1)
        bar.update(1)
        outputs = {"strict, batch 1": ours(Method.STRICT, 1)}
        bar.update(2)
        outputs["strict, batch 8"] = ours(Method.STRICT, 8)
        bar.update(3)
        outputs[HF_GENERATE] = [peer.generate(ids, limit, 0)[0] for ids in prompts]
        bar.update(4)
    rows: list[Row] = []
    found: dict[str, list[dict[str, float] | None]] = {}
    for name, tokens in outputs.items():
        partings = [parting(pair, *each) for each in zip(prompts, reference, tokens, strict=True)]
        found[name] = [None if each is None else asdict(each) for each in partings]
        apart = [each for each in partings if each is not None]
        worst = max(apart, key=lambda each: each.top2_gap, default=None)
        rows.append(
            {
                "name": name,
                "prompts": len(prompts),
                "equal": 1 - len(apart) / len(partings),
                "first_difference": min((each.at for each in apart), default=None),
                "top2_gap": None if worst is None else worst.top2_gap,
                "likeliest": None if worst is None else worst.likeliest,
            }
        )
    about = {"warmup": 0, "scope": "greedy, against this platform's autoregressive loop at batch 1"}
    return Report(COLUMNS, {f"numerics, {settings.pair.dtype.value}": rows}, {"partings": found}, about, [])
