"""Methods on the same prompts with common random numbers; one file of per-example results each.

The noise of a sample depends on the root seed, the task, the prompt and the sample's number, not on the method (the
engine indexes it by output position), so methods differ by their rule and not by their luck.

<folder>/T1-N5/static-w0.5.jsonl           a header, then one line per sample
<folder>/T1-N5/static-w0.5.parts/*.jsonl   pieces of it while it is being made

Pieces are what is decoded at a time, by this process or by several (`workers.py`); each file is written whole, so work
that was stopped goes on at the pieces that are missing.
"""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console

from diversed.artifacts import git_commit, write_text_atomic
from diversed.decoding import Engine, Request, Weigh
from diversed.errors import DataError
from diversed.evaluation.metrics import ExampleResult, example_result
from diversed.evaluation.progress import Bar
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, Settings
from diversed.tasks import Example, Task

__all__ = [
    "EngineFactory",
    "Part",
    "PartRunner",
    "Recorded",
    "Results",
    "Runner",
    "Sample",
    "Variant",
    "cell_name",
    "compare",
    "evaluate_variant",
    "fingerprint",
    "head_fingerprint",
    "prompt_seed",
    "read_results",
    "run_here",
    "samples_of",
]

FORMAT = 2  # of the result files; raise it when their meaning changes
PART_BATCHES = 4  # batches of a part: enough to keep rows busy, few enough to lose little when stopped

Sample = tuple[Example, int]  # a prompt and the number of its sample
Results = dict[tuple[str, str], list[ExampleResult]]  # by cell and label


def cell_name(temperature: float, draft_length: int) -> str:
    """The folder of a cell's results."""
    return f"T{temperature:g}-N{draft_length}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One method with its parameters. `head` gives the weight of DIVERSED, and of no other method."""

    label: str
    decode: DecodeSettings
    head: torch.nn.Module | None = None

    @property
    def cell(self) -> str:
        """Names the temperature and draft length; 0 where nothing is drafted."""
        return cell_name(self.decode.temperature, self.decode.draft_length if self.decode.method.drafts else 0)

    @property
    def path(self) -> Path:
        """Of its result file, below the folder of all."""
        return Path(self.cell) / f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.label).strip('-')}.jsonl"


class EngineFactory(Protocol):
    """Makes the engine of a variant; `diversed.cluster.engine_for` with the pair bound."""

    def __call__(self, decode: DecodeSettings, head: Weigh | None) -> Engine: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Samples of one variant, and the file that their results go to."""

    variant: Variant
    samples: tuple[Sample, ...]
    path: Path


class Runner(Protocol):
    """Runs parts, and yields each once its file is written."""

    def __call__(self, parts: Sequence[Part], /) -> Iterator[Part]: ...


def samples_of(settings: Settings, examples: Sequence[Example]) -> list[Sample]:
    """All samples of an evaluation, `evaluate.samples` per prompt."""
    return [(example, number) for number in range(settings.evaluate.samples) for example in examples]


def prompt_seed(settings: Settings, example: Example, number: int = 0) -> int:
    """Seed of the noise of a prompt's sample: common to all methods."""
    return derive_seed(settings.seed, settings.task.name, "common", example.id, number)


def evaluate_variant(
    pair: Pair,
    task: Task,
    settings: Settings,
    variant: Variant,
    samples: Sequence[Sample],
    engine: Engine,
    progress: Callable[[int], None] | None = None,
) -> list[ExampleResult]:
    """Continue each sample's prompt with `engine`, made for `variant`, and score the text; in the order of samples."""
    requests = [
        Request.of(
            pair.encode(example.prompt, settings.task.chat_template),
            settings.task.max_new_tokens,
            prompt_seed(settings, example, number),
            variant.decode,
            audited=True,
        )
        for example, number in samples
    ]
    results = []
    for (example, number), generation in zip(samples, engine.generate(requests, progress), strict=True):
        text = pair.decode(generation.tokens, variant.decode.stop)
        quality = task.metric(example, text)
        results.append(
            example_result(example.id, number, variant.label, generation, text, quality, variant.decode.draft_length)
        )
    return results


class PartRunner:
    """Runs parts in this process; one engine is kept for parts of one variant."""

    def __init__(self, pair: Pair, task: Task, settings: Settings, engine_factory: EngineFactory) -> None:
        self._pair, self._task, self._settings, self._engine_factory = pair, task, settings, engine_factory
        self._engine: Engine | None = None
        self._variant: tuple[str, str] | None = None

    def run(self, part: Part) -> None:
        """Write the part's file."""
        variant = part.variant
        engine = self._engine_of(variant)
        results = evaluate_variant(self._pair, self._task, self._settings, variant, part.samples, engine)
        write_text_atomic(part.path, _lines(result.record() for result in results))

    def _engine_of(self, variant: Variant) -> Engine:
        if self._engine is None or self._variant != (variant.cell, variant.label):
            self.close()
            self._engine = self._engine_factory(variant.decode, variant.head)
            self._variant = (variant.cell, variant.label)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def run_here(pair: Pair, task: Task, settings: Settings, engine_factory: EngineFactory) -> Runner:
    """One part after the other, in this process."""

    def run(parts: Sequence[Part], /) -> Iterator[Part]:
        runner = PartRunner(pair, task, settings, engine_factory)
        try:
            for part in parts:
                runner.run(part)
                yield part
        finally:
            runner.close()

    return run


@dataclass(frozen=True, slots=True)
class Recorded:
    """A result file: who made it, and its results."""

    header: dict[str, Any]
    results: list[ExampleResult]


def compare(
    pair: Pair,
    settings: Settings,
    variants: Sequence[Variant],
    examples: Sequence[Example],
    run: Runner,
    folder: Path,
    console: Console,
) -> Results:
    """Results of each variant by cell and label, from `folder` if they are there, else run and recorded there."""
    samples = samples_of(settings, examples)
    results: Results = {}
    missing: dict[tuple[str, str], list[Part]] = {}  # parts to be run, per variant
    wanted = {}
    for variant in variants:
        key, path = (variant.cell, variant.label), folder / variant.path
        wanted[key] = fingerprint(pair, settings, variant, examples)
        recorded = read_results(path) if path.is_file() else None
        if recorded is not None and recorded.header.get("fingerprint") == wanted[key]:
            console.print(
                f"{_name(variant)}: {len(recorded.results)} samples, recorded {recorded.header['date']}",
                highlight=False,
            )
            results[key] = recorded.results
        else:
            missing[key] = _parts(variant, samples, path, wanted[key])
    todo = [part for parts in missing.values() for part in parts if not part.path.is_file()]
    if len(todo) < sum(map(len, missing.values())):
        console.print(f"{sum(map(len, missing.values())) - len(todo)} parts are there from before", highlight=False)
    left = {key: {part.path for part in parts if not part.path.is_file()} for key, parts in missing.items()}
    started = time.perf_counter()
    for key in [key for key, paths in left.items() if not paths]:
        results[key] = _assemble(missing[key], folder, wanted[key]).results
    if not todo:
        return {(variant.cell, variant.label): results[variant.cell, variant.label] for variant in variants}
    done = 0
    with Bar(console, "samples", sum(len(part.samples) for part in todo), "samples") as bar:
        for part in run(todo):
            done += len(part.samples)
            bar.update(done)
            key = (part.variant.cell, part.variant.label)
            left[key].remove(part.path)
            if not left[key]:
                results[key] = _assemble(missing[key], folder, wanted[key]).results
                seconds = time.perf_counter() - started
                console.print(
                    f"{_name(part.variant)}: {len(results[key])} samples, {seconds:.1f} s so far", highlight=False
                )
    return {(variant.cell, variant.label): results[variant.cell, variant.label] for variant in variants}


def _name(variant: Variant) -> str:
    return f"{variant.cell} {variant.label}"


def _parts(variant: Variant, samples: Sequence[Sample], path: Path, wanted: str) -> list[Part]:
    size = PART_BATCHES * variant.decode.batch_size
    folder = path.with_suffix(".parts")
    return [
        Part(variant, tuple(samples[i : i + size]), folder / f"{wanted[:12]}-{size}-{i}.jsonl")
        for i in range(0, len(samples), size)
    ]


def _assemble(parts: Sequence[Part], folder: Path, wanted: str) -> Recorded:
    """The variant's file from its parts, which are removed."""
    variant = parts[0].variant
    lines = "".join(part.path.read_text(encoding="utf-8") for part in parts)
    header = {
        "fingerprint": wanted,
        "label": variant.label,
        "cell": variant.cell,
        "method": variant.decode.method.value,
        "decode": _plain(variant.decode),
        "head": None if variant.head is None else head_fingerprint(variant.head),
        "samples": sum(len(part.samples) for part in parts),
        "git_commit": git_commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    path = folder / variant.path
    write_text_atomic(path, _lines([header]) + lines)
    shutil.rmtree(path.with_suffix(".parts"), ignore_errors=True)
    return read_results(path)


def _lines(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


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
        "samples": settings.evaluate.samples,
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
