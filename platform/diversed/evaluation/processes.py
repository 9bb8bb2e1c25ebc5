"""What a process pays before and beside decoding, each time in a fresh one: start-up, and peak memory.

This module runs itself (`python -m diversed.evaluation.processes STAGE`). What is imported up here is part of what is
measured, so it is little.
"""

import copy
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diversed.errors import DiversedError
from diversed.settings import Method, Settings, from_record

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from diversed.models import Pair

__all__ = ["STAGES", "Footprint", "measure_memory", "run_process", "run_stage", "without_eos"]

MEMORY_REQUESTS = 8  # decoded together
MEMORY_TOKENS = 1024  # of prompt and output, if the models have as many positions
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

STAGES = {
    "import torch, transformers": "the libraries alone",
    "import diversed.decoding": "the engine and what it imports",
    "load the pair": "both models' weights",
    "first generation": "the same, and one prompt continued to its end",
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a process in bytes, while `requests` requests of `tokens` tokens each are decoded together."""

    requests: int
    tokens: int  # of prompt and output
    imports: int  # resident before the models were loaded
    loaded: int  # resident with the models loaded
    peak: int  # highest while decoding
    weights: int  # of both models, from the shapes
    caches: int  # of both models for these requests and tokens, from the shapes


def measure_memory(settings: Settings) -> Footprint:
    """Strict decoding of long requests in a fresh process."""
    return Footprint(**json.loads(_run_itself("memory", settings)))


def run_stage(stage: str, settings: Settings, prompt: str) -> None:
    """One of `STAGES` in a fresh process, from its start to its end."""
    if stage.startswith("import "):
        run_process([sys.executable, "-c", stage])
    else:
        _run_itself(stage, settings, prompt)


def run_process(command: Sequence[str], text: str = "") -> str:
    """The output of `command`, which gets `text` and this process's import path; DiversedError if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DiversedError(f"{' '.join(command[1:])}: ended with exit code {done.returncode}: {last}")
    return done.stdout


def _run_itself(what: str, settings: Settings, prompt: str = "") -> str:
    given = json.dumps({"settings": settings.record(), "prompt": prompt})
    return run_process([sys.executable, "-m", "diversed.evaluation.processes", what], given)


def without_eos(pair: "Pair") -> "Pair":
    """The same models; nothing ends a generation before its last token."""
    endless = copy.copy(pair)
    endless.eos_ids = ()
    return endless


# -- in the fresh process --------------------------------------------------------------------------------------------


def main(what: str) -> None:
    """Do `what`, "memory" or one of `STAGES` behind the imports, with settings and prompt from standard input."""
    given = json.load(sys.stdin)
    settings = from_record(given["settings"])
    if what == "memory":
        print(json.dumps(asdict(_decode_long_requests(settings))))
        return
    pair = _loaded(settings)
    if what == "first generation":
        _generate_once(settings, pair, given["prompt"])


def _loaded(settings: Settings) -> "Pair":
    from diversed.models import load_pair, set_threads

    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    _ = pair.target, pair.draft
    return pair


def _generate_once(settings: Settings, pair: "Pair", prompt: str) -> None:
    from diversed.decoding import Request, build_engine

    decode = settings.decode.model_copy(update={"method": Method.STRICT})
    prompt_ids = pair.encode(prompt, settings.task.chat_template)
    build_engine(pair, decode).generate([Request.of(prompt_ids, settings.task.max_new_tokens, settings.seed, decode)])


def _decode_long_requests(settings: Settings) -> Footprint:
    from diversed.decoding import Request, build_engine

    imports = _resident()
    pair = without_eos(_loaded(settings))
    tokens = min(MEMORY_TOKENS, pair.context)
    new = min(settings.task.max_new_tokens, tokens - 1)
    decode = settings.decode.model_copy(update={"method": Method.STRICT, "batch_size": MEMORY_REQUESTS})
    prompt_ids = [i % pair.vocab_size for i in range(tokens - new)]  # what they say takes no memory
    loaded = _resident()
    _forget_peak()
    build_engine(pair, decode).generate([Request.of(prompt_ids, new, seed, decode) for seed in range(MEMORY_REQUESTS)])
    models = (pair.target, pair.draft)
    return Footprint(
        requests=MEMORY_REQUESTS,
        tokens=tokens,
        imports=imports,
        loaded=loaded,
        peak=_peak(),
        weights=sum(_weight_bytes(model) for model in models),
        caches=sum(_cache_bytes(model, MEMORY_REQUESTS * tokens) for model in models),
    )


def _weight_bytes(model: "PreTrainedModel") -> int:
    return sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))


def _cache_bytes(model: "PreTrainedModel", positions: int) -> int:
    """Keys and values of all layers, in the model's dtype."""
    config: Any = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * positions * model.dtype.itemsize)


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _forget_peak() -> None:
    """Loading is not decoding: where the system can, its peak starts anew."""
    if CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")


def _peak() -> int:
    """Highest resident bytes. Linux's `ru_maxrss` may be that of the process that started this one; `VmHWM` is not."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: bytes


if __name__ == "__main__":
    main(sys.argv[1])
