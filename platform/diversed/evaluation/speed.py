"""Measured speed: wall clock, one prompt at a time, every method on the same prompts and seeds in one interleaved run.

Within a repetition each prompt is continued by all methods before the next prompt's turn, in an order that rotates, so
a machine that slows down slows all methods. Tokens per second are the sum of tokens over the sum of seconds. Warm-up
generations are timed apart and counted in the record, but are in no number.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from diversed.artifacts import git_commit, write_json_atomic
from diversed.decoding import Engine, Request
from diversed.decoding.costs import Costs, predicted_speedup
from diversed.errors import DataError
from diversed.evaluation.compare import EngineFactory, Variant, fingerprint, prompt_seed
from diversed.evaluation.intervals import Array, Bootstrap, Estimate
from diversed.evaluation.peers import HuggingFace
from diversed.evaluation.progress import Bar
from diversed.models import Pair
from diversed.settings import DecodeSettings, Method, Settings
from diversed.tasks import Example

__all__ = ["HF_ASSISTED", "HF_GENERATE", "measure_speed", "read_speed", "summarise_speed"]

HF_GENERATE = "HF generate"
HF_ASSISTED = "HF assisted (strict)"
WARMUPS = 2  # generations per method

Runner = Callable[[Sequence[int], int, int], int]  # (prompt ids, max_new_tokens, seed) -> tokens generated


def measure_speed(
    pair: Pair,
    settings: Settings,
    decode: DecodeSettings,
    variants: Sequence[Variant],
    examples: Sequence[Example],
    costs: Costs,
    engine_factory: EngineFactory,
    path: Path,
    console: Console,
) -> dict[str, Any]:
    """Time `variants`, all in the cell of `decode`, and Hugging Face's two ways on the first `evaluate.speed_prompts`
    examples.

    The record is returned and written to `path`; one that is there already, for the same work, is returned as it is.
    """
    timed = list(examples[: settings.evaluate.speed_prompts])
    wanted = _fingerprint(pair, settings, variants, timed)
    if path.is_file() and (recorded := read_speed(path))["fingerprint"] == wanted:
        console.print(f"speed: {len(timed)} prompts, recorded {recorded['date']}", highlight=False)
        return recorded
    runners: dict[str, Runner] = {}
    engines: list[Engine] = []
    try:
        for variant in variants:
            alone = variant.decode.model_copy(update={"batch_size": 1})
            engines.append(engine_factory(alone, variant.head))
            runners[variant.label] = _Own(engines[-1], alone)
        runners[HF_GENERATE] = HuggingFace(pair, decode, assisted=False)
        runners[HF_ASSISTED] = HuggingFace(pair, decode, assisted=True)
        prompts = [pair.encode(example.prompt, settings.task.chat_template) for example in timed]
        tokens, seconds, warmup = _time(runners, prompts, timed, settings, console)
    finally:
        for engine in engines:
            engine.close()
    prices: dict[str, Any] = asdict(costs)
    prices["t_target"] = {str(tokens): price for tokens, price in costs.t_target.items()}
    # The prediction for a method is its block efficiency times this, by draft length.
    lengths = [tokens - 1 for tokens in costs.t_target if tokens > 1]
    prices["speedup_per_block"] = {str(n): predicted_speedup(1.0, n, costs) for n in lengths}
    record = {
        "scope": "wall clock, one prompt at a time",
        "fingerprint": wanted,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "device": _device(pair),
        "threads": torch.get_num_threads(),
        "placement": settings.pair.placement.value,
        "compiled": settings.pair.compiled,
        "dtype": settings.pair.dtype.value,
        "temperature": decode.temperature,
        "draft_length": decode.draft_length,
        "max_new_tokens": settings.task.max_new_tokens,
        "costs": prices,
        "prompts": [example.id for example in timed],
        "repeats": settings.evaluate.speed_repeats,
        "warmup": {"generations_left_out_per_method": WARMUPS, "seconds": warmup},
        "tokens": tokens,
        "seconds": seconds,
    }
    write_json_atomic(path, record)
    return record


@dataclass(frozen=True, slots=True)
class _Own:
    """This platform's engine as a runner."""

    engine: Engine
    decode: DecodeSettings

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int, seed: int) -> int:
        return len(self.engine.generate([Request.of(list(prompt_ids), max_new_tokens, seed, self.decode)])[0].tokens)


Matrix = list[list[float]]  # [prompt][repeat]


def _time(
    runners: Mapping[str, Runner],
    prompts: Sequence[list[int]],
    examples: Sequence[Example],
    settings: Settings,
    console: Console,
) -> tuple[dict[str, Matrix], dict[str, Matrix], dict[str, float]]:
    """Tokens and seconds of each method per prompt and repetition, and the seconds of its warm-up."""
    limit, repeats = settings.task.max_new_tokens, settings.evaluate.speed_repeats
    order = list(runners)
    tokens: dict[str, Matrix] = {label: [[] for _ in prompts] for label in order}
    seconds: dict[str, Matrix] = {label: [[] for _ in prompts] for label in order}
    warmup = {}
    for label in order:
        start = time.perf_counter()
        for i in range(WARMUPS):
            runners[label](prompts[i % len(prompts)], limit, prompt_seed(settings, examples[i % len(prompts)]))
        warmup[label] = round(time.perf_counter() - start, 6)
    done = 0
    with Bar(console, "speed", repeats * len(prompts) * len(order), "generations") as bar:
        for repeat in range(repeats):
            for i, (prompt, example) in enumerate(zip(prompts, examples, strict=True)):
                seed = prompt_seed(settings, example, repeat)
                first = (repeat + i) % len(order)
                for label in order[first:] + order[:first]:
                    start = time.perf_counter()
                    count = runners[label](prompt, limit, seed)
                    seconds[label][i].append(round(time.perf_counter() - start, 6))
                    tokens[label][i].append(count)
                    done += 1
                    bar.update(done)
    return tokens, seconds, warmup


def _fingerprint(pair: Pair, settings: Settings, variants: Sequence[Variant], examples: Sequence[Example]) -> str:
    parts = {
        "variants": [fingerprint(pair, settings, variant, examples) for variant in variants],
        "repeats": settings.evaluate.speed_repeats,
        "device": _device(pair),
        "threads": torch.get_num_threads(),
        "placement": settings.pair.placement.value,
        "compiled": settings.pair.compiled,
    }
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _device(pair: Pair) -> str:
    return torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else "cpu"


def read_speed(path: Path) -> dict[str, Any]:
    """A record of `measure_speed`; DataError if the file is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a speed record: {error}; remove it to have it measured again") from error
    if not isinstance(record, dict) or not {"fingerprint", "tokens", "seconds"} <= record.keys():
        raise DataError(f"{path}: not a speed record; remove it to have it measured again")
    return record


def summarise_speed(record: Mapping[str, Any], bootstrap: Bootstrap) -> dict[str, dict[str, Estimate]]:
    """Numbers by method label:

    - `tokens_per_second`;
    - `speedup_measured`, over this platform's own autoregressive loop; `speedup_over_hf`, over `HF generate`;
      `speedup_over_strict`: quotients of tokens per second on the same prompts;
    - `length_ratio`, tokens emitted over the autoregressive loop's, and `speedup_length_adjusted`, `speedup_measured`
      divided by it: what remains if rambling earns nothing. It is the autoregressive loop's time over the method's.
    """
    # Of each method, the sums of tokens and of seconds per prompt.
    runs: dict[str, tuple[Array, Array]] = {
        label: (np.array(tokens, dtype=np.float64).sum(1), np.array(record["seconds"][label]).sum(1))
        for label, tokens in record["tokens"].items()
    }
    baselines = {
        "speedup_measured": Method.AUTOREGRESSIVE.value,
        "speedup_over_hf": HF_GENERATE,
        "speedup_over_strict": Method.STRICT.value,
    }
    summaries = {}
    for label, (tokens, seconds) in runs.items():
        numbers = {"tokens_per_second": bootstrap.ratio(tokens, seconds)}
        for name, baseline in baselines.items():
            if baseline in runs:
                numbers[name] = bootstrap.quotient(tokens, seconds, *runs[baseline])
        if Method.AUTOREGRESSIVE in runs:
            own_tokens, own_seconds = runs[Method.AUTOREGRESSIVE]
            numbers["length_ratio"] = bootstrap.ratio(tokens, own_tokens)
            numbers["speedup_length_adjusted"] = bootstrap.ratio(own_seconds, seconds)
        summaries[label] = {name: estimate for name, estimate in numbers.items() if estimate is not None}
    return summaries
