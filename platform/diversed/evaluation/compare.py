"""Methods on the same prompts with common random numbers; one file of per-example results each.

The noise of a prompt depends on the root seed, the task and the prompt, not on the method (the engine indexes it by
output position), so methods differ by their rule and not by their luck.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console

from diversed.artifacts import git_commit, write_text_atomic
from diversed.decoding import Engine, Request, Weigh
from diversed.errors import DataError
from diversed.evaluation.metrics import ExampleResult, example_result
from diversed.evaluation.progress import Bar
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, Method, Settings
from diversed.tasks import Example, Task

__all__ = [
    "EngineFactory",
    "Recorded",
    "Variant",
    "compare",
    "evaluate_variant",
    "fingerprint",
    "head_fingerprint",
    "matched_static",
    "prompt_seed",
    "read_results",
    "standard_variants",
    "static_variant",
]

FORMAT = 1  # of the result files; raise it when their meaning changes


@dataclass(frozen=True, slots=True)
class Variant:
    """One method with its parameters. `head` gives the weight of DIVERSED, and of no other method."""

    label: str
    decode: DecodeSettings
    head: torch.nn.Module | None = None


class EngineFactory(Protocol):
    """Makes the engine of a variant; `diversed.cluster.engine_for` with the pair bound."""

    def __call__(self, decode: DecodeSettings, head: Weigh | None) -> Engine: ...


def standard_variants(settings: Settings, head: torch.nn.Module | None) -> list[Variant]:
    """Autoregressive, strict, the static grid of `evaluate.static_weights`, and DIVERSED if there is a head."""
    decode = settings.decode
    variants = [
        Variant(method.value, decode.model_copy(update={"method": method}))
        for method in (Method.AUTOREGRESSIVE, Method.STRICT)
    ]
    variants += [static_variant(settings, weight) for weight in settings.evaluate.static_weights]
    if head is not None:
        variants.append(Variant(Method.DIVERSED.value, decode.model_copy(update={"method": Method.DIVERSED}), head))
    return variants


def static_variant(settings: Settings, weight: float) -> Variant:
    """The paper's static ensemble: one weight everywhere and no cap, whatever cap DIVERSED runs with."""
    changes = {"method": Method.STATIC, "weight": weight, "cap": float("inf")}
    return Variant(f"static w={weight:g}", settings.decode.model_copy(update=changes))


def matched_static(settings: Settings, results: dict[str, list[ExampleResult]]) -> Variant | None:
    """The static ensemble that accepts as much as DIVERSED did, by interpolation; None if no weight does.

    This is the training-free way to the same speed. A static rule accepts with probability 1 - w*TV at each position,
    so between strict (w = 1), the grid and w = 0 (accepts all) the acceptance falls steadily with w.
    """
    if Method.DIVERSED not in results:
        return None
    weights = {static_variant(settings, w).label: w for w in settings.evaluate.static_weights} | {
        Method.STRICT.value: 1.0
    }
    points = sorted([(1.0, 0.0), *((_acceptance(results[label]), w) for label, w in weights.items())])
    wanted = _acceptance(results[Method.DIVERSED])
    if not points[0][0] < wanted < 1:
        return None
    weight = float(np.interp(wanted, [acceptance for acceptance, _ in points], [weight for _, weight in points]))
    variant = static_variant(settings, round(weight, 3))
    return None if variant.label in results else variant


def _acceptance(results: Sequence[ExampleResult]) -> float:
    return sum(result.accepted for result in results) / max(1, sum(result.verified for result in results))


def prompt_seed(settings: Settings, example: Example, repeat: int = 0) -> int:
    """Seed of a prompt's noise: common to all methods."""
    return derive_seed(settings.seed, settings.task.name, "common", example.id, repeat)


def evaluate_variant(
    pair: Pair,
    task: Task,
    settings: Settings,
    variant: Variant,
    examples: Sequence[Example],
    engine_factory: EngineFactory,
    progress: Callable[[int], None] | None = None,
) -> list[ExampleResult]:
    """Continue each example's prompt under `variant` and score the text; results in the order of the examples."""
    decode = variant.decode
    requests = [
        Request.of(
            pair.encode(example.prompt, settings.task.chat_template),
            settings.task.max_new_tokens,
            prompt_seed(settings, example),
            decode,
        )
        for example in examples
    ]
    engine = engine_factory(decode, variant.head)
    try:
        generations = engine.generate(requests, progress)
    finally:
        engine.close()
    results = []
    for example, generation in zip(examples, generations, strict=True):
        text = pair.decode(generation.tokens, decode.stop)
        quality = task.metric(example, text)
        results.append(
            example_result(example.id, variant.label, generation, text, quality, decode.draft_length, decode.cap)
        )
    return results


@dataclass(frozen=True, slots=True)
class Recorded:
    """A result file: who made it, and its results."""

    header: dict[str, Any]
    results: list[ExampleResult]


def compare(
    pair: Pair,
    task: Task,
    settings: Settings,
    variants: Iterable[Variant],
    examples: Sequence[Example],
    engine_factory: EngineFactory,
    folder: Path,
    console: Console,
    results: dict[str, list[ExampleResult]] | None = None,
) -> dict[str, list[ExampleResult]]:
    """Results of each variant by label, from `folder` if they are there, else run and recorded there.

    They are put into `results` one by one, so that `variants` may be a generator that looks at the earlier ones before
    it names the next.
    """
    results = {} if results is None else results
    for variant in variants:
        path = folder / f"{_slug(variant.label)}.jsonl"
        wanted = fingerprint(pair, settings, variant, examples)
        recorded = read_results(path) if path.is_file() else None
        if recorded is None or recorded.header.get("fingerprint") != wanted:
            recorded = _record(pair, task, settings, variant, examples, engine_factory, path, wanted, console)
        else:
            console.print(f"{variant.label}: {len(recorded.results)} prompts, recorded {recorded.header['date']}")
        results[variant.label] = recorded.results
    return results


def _record(
    pair: Pair,
    task: Task,
    settings: Settings,
    variant: Variant,
    examples: Sequence[Example],
    engine_factory: EngineFactory,
    path: Path,
    wanted: str,
    console: Console,
) -> Recorded:
    start = time.perf_counter()
    with Bar(console, variant.label, len(examples), "prompts") as bar:
        results = evaluate_variant(pair, task, settings, variant, examples, engine_factory, bar.update)
    header = {
        "fingerprint": wanted,
        "label": variant.label,
        "method": variant.decode.method.value,
        "decode": _plain(variant.decode),
        "head": None if variant.head is None else head_fingerprint(variant.head),
        "prompts": len(results),
        "seconds": round(time.perf_counter() - start, 3),
        "git_commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    lines = [header, *(result.record() for result in results)]
    write_text_atomic(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    return Recorded(header, results)


def read_results(path: Path) -> Recorded:
    """A file written by `compare`; DataError if it is none."""
    try:
        header, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        if "fingerprint" not in header:
            raise ValueError("its first line is no header")
        return Recorded(header, [ExampleResult(**line) for line in lines])
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: not a result file of this version: {error}; remove it to have it made again"
        ) from error


def fingerprint(pair: Pair, settings: Settings, variant: Variant, examples: Sequence[Example]) -> str:
    """Digest of all that decides a variant's results. Batch size, placement, threads and device are not in it: the
    tokens do not depend on them."""
    decode = _plain(variant.decode)
    del decode["batch_size"]
    parts = {
        "format": FORMAT,
        "pair": pair.identity,
        "draft_words": None if pair.draft_words_K is None else pair.draft_words_K.tolist(),
        "dtype": settings.pair.dtype.value,
        "seed": settings.seed,
        "task": settings.task.name,
        "max_new_tokens": settings.task.max_new_tokens,
        "chat_template": settings.task.chat_template,
        "label": variant.label,
        "decode": decode,
        "head": None if variant.head is None else head_fingerprint(variant.head),
        "examples": [[example.id, example.prompt, example.reference] for example in examples],
    }
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def head_fingerprint(head: torch.nn.Module) -> str:
    """Digest of a head's numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(head.state_dict().items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain(decode: DecodeSettings) -> dict[str, Any]:
    """Values that JSON has: an infinite cap is the word `inf`, which the settings read back."""
    values = decode.model_dump(mode="json")
    return {name: "inf" if value == float("inf") else value for name, value in values.items()}


def _slug(label: str) -> str:
    return label.replace(" ", "-").replace("=", "")
