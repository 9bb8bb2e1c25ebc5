"""Common random numbers, recorded results, what is run again and what is not: the real engine, a tiny random pair."""

import json
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from diversed.errors import DataError
from diversed.evaluation.compare import (
    Part,
    Runner,
    Variant,
    compare,
    evaluate_variant,
    fingerprint,
    head_fingerprint,
    prompt_seed,
    read_results,
    run_here,
    samples_of,
)
from diversed.evaluation.grid import grid, static_variant
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import Settings
from diversed.tasks import Split, Task
from diversed.verifier import Head


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=200)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def no_run(parts: Any) -> Any:
    assert not parts, "a recorded method was run again"
    return iter(())


def variants_of(settings: Settings, head: Head | None = None) -> list[Variant]:
    checkpoint = {} if head is None else {"verifier.checkpoint": "given"}
    return grid(settings.updated(checkpoint), lambda _: head)  # type: ignore[arg-type, return-value]


@pytest.fixture
def evaluate(pair: Any, task: Task, settings: Settings, engines: Callable[..., Any]) -> Callable[..., Any]:
    def run(variant: Variant, samples: list[Any]) -> list[ExampleResult]:
        return evaluate_variant(pair, task, settings, variant, samples, engines(variant.decode, variant.head))

    return run


def test_methods_share_their_random_numbers(task: Task, settings: Settings, evaluate: Callable[..., Any]) -> None:
    """The static ensemble with w = 1 *is* strict: same texts, whatever the method is called. And an example's noise is
    its own: alone it gives the same text as among others."""
    examples = task.examples(settings.task, Split.TEST, 0)
    samples = samples_of(settings, examples)
    strict, *_ = (v for v in variants_of(settings) if v.label == "strict")
    results = evaluate(strict, samples)
    same = evaluate(static_variant(settings.decode, 1.0), samples)
    assert [r.text for r in same] == [r.text for r in results]
    assert [r.id for r in results] == [example.id for example in examples]
    alone = evaluate(strict, samples[5:6])
    assert [(r.text, r.accepted_histogram) for r in alone] == [(r.text, r.accepted_histogram) for r in results[5:6]]
    relaxed = evaluate(static_variant(settings.decode, 0.2), samples)
    assert sum(r.accepted for r in relaxed) / sum(r.verified for r in relaxed) > sum(r.accepted for r in results) / sum(
        r.verified for r in results
    )


def test_results_add_up(task: Task, settings: Settings, evaluate: Callable[..., Any]) -> None:
    """Acceptance lies in [0, 1]; emitted = accepted + replacements + bonuses; the histogram counts every round once."""
    examples = task.examples(settings.task, Split.TEST, 0)
    for variant in variants_of(settings):
        for r in evaluate(variant, samples_of(settings, examples)):
            assert 0 <= r.accepted <= r.verified <= min(r.drafted, r.tokens)
            assert r.tokens <= 16
            assert sum(r.accepted_histogram) == r.rounds
            assert sum(i * count for i, count in enumerate(r.accepted_histogram)) == r.accepted
            bonuses = r.tokens - r.verified
            assert bonuses <= r.rounds
            assert r.smallest_gap is not None
            assert r.smallest_gap > -1e-5
            assert r.gap_sum == pytest.approx(0, abs=1e-4)  # strict and the ensembles are on the frontier
            if variant.label in ("autoregressive", "strict"):
                assert r.output_tv_sum == pytest.approx(0, abs=1e-5)
            if variant.label == "autoregressive":
                assert (r.rounds, r.drafted) == (r.tokens, 0)


@pytest.fixture
def run(pair: Any, task: Task, settings: Settings, engines: Callable[..., Any]) -> Runner:
    return run_here(pair, task, settings, engines)


def test_recorded_methods_are_not_run_again(
    pair: Any, task: Task, settings: Settings, run: Runner, tmp_path: Path, console: Console
) -> None:
    examples = task.examples(settings.task, Split.TEST, 0)
    variants = variants_of(settings, Head(32, 32))
    results = compare(pair, settings, variants, examples, run, tmp_path, console)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == [
        "T1-N0/autoregressive.jsonl", "T1-N3/diversed.jsonl", "T1-N3/static-w-0.2.jsonl", "T1-N3/static-w-0.5.jsonl",
        "T1-N3/strict.jsonl",
    ]  # fmt: skip
    assert "T1-N3 strict: 12 samples, " in shown(console)  # no terminal: one line per method
    assert compare(pair, settings, variants, examples, no_run, tmp_path, console) == results
    other_batch = settings.updated({"decode.batch_size": 7, "pair.threads": 2})
    variants = variants_of(other_batch, Head(32, 32))
    assert compare(pair, other_batch, variants, examples, no_run, tmp_path, console) == results


def test_several_samples_per_prompt(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    """Each has noise of its own; the first is what a single one would be."""
    examples = task.examples(settings.task, Split.TEST, 0)
    strict = variants_of(settings)[1:2]
    alone = compare(pair, settings, strict, examples, run_here(pair, task, settings, engines), tmp_path / "1", console)
    more = settings.updated({"evaluate.samples": 3})
    run = run_here(pair, task, more, engines)
    three = compare(pair, more, strict, examples, run, tmp_path / "3", console)["T1-N3", "strict"]
    # Numbers may differ in their last bit: the rows of a batch differ.
    assert [r.text for r in three[:12]] == [r.text for r in alone["T1-N3", "strict"]]
    assert [(r.id, r.sample) for r in three] == [(f"test-{i}", k) for k in range(3) for i in range(12)]
    assert len({r.text for r in three if r.id == "test-0"}) > 1


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"decode.temperature": 0.7},
        {"decode.draft_length": 4},
        {"task.max_new_tokens": 8},
        {"task.test_size": 11},
        {"evaluate.samples": 2},
        {"pair.dtype": "bfloat16"},
    ],
)
def test_other_settings_are_run_again(pair: Any, task: Task, settings: Settings, change: dict[str, Any]) -> None:
    def of(settings: Settings) -> str:
        examples = task.examples(settings.task, Split.TEST, settings.seed)
        return fingerprint(pair, settings, variants_of(settings)[1], examples)

    assert of(settings.updated(change)) != of(settings)


def test_another_head_is_run_again(
    pair: Any, task: Task, settings: Settings, run: Runner, tmp_path: Path, console: Console
) -> None:
    examples = task.examples(settings.task, Split.TEST, 0)
    for head in (Head(32, 32, 0.5), Head(32, 32, 0.9)):
        diversed = Variant("diversed", settings.decode, head)
        compare(pair, settings, [diversed], examples, run, tmp_path, console)
        assert read_results(tmp_path / diversed.path).header["head"] == head_fingerprint(head)
    assert head_fingerprint(Head(32, 32, 0.5)) == head_fingerprint(Head(32, 32, 0.5))
    moved = Head(32, 32)
    with torch.no_grad():
        moved.weight_D[3] += 1e-6
    assert head_fingerprint(moved) != head_fingerprint(Head(32, 32))


def test_work_that_was_stopped_goes_on_at_the_missing_parts(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    """A method's file appears when it is whole; its finished parts are not run again, and the bytes are the same."""
    examples = task.examples(settings.task.model_copy(update={"test_size": 40}), Split.TEST, 0)  # 3 parts of 16
    variants = variants_of(settings)[:2]
    here = run_here(pair, task, settings, engines)
    parts: list[str] = []

    def stopping(todo: Sequence[Part], /) -> Iterator[Part]:
        for part in here(todo):
            parts.append(str(part.path))
            if len(parts) == 5:
                raise KeyboardInterrupt
            yield part

    with pytest.raises(KeyboardInterrupt):
        compare(pair, settings, variants, examples, stopping, tmp_path / "stopped", console)
    files = [str(path.relative_to(tmp_path / "stopped")) for path in (tmp_path / "stopped").glob("*/*")]
    assert sorted(files) == ["T1-N0/autoregressive.jsonl", "T1-N3/strict.parts"]
    results = compare(pair, settings, variants, examples, stopping, tmp_path / "stopped", console)
    assert len(parts) == len(set(parts)) == 6
    assert "2 parts are there from before" in shown(console)
    assert results == compare(pair, settings, variants, examples, here, tmp_path / "whole", console)
    for variant in variants:
        lines = [(tmp_path / name / variant.path).read_text().splitlines()[1:] for name in ("stopped", "whole")]
        assert lines[0] == lines[1]
        assert len(lines[0]) == 40
    assert not list(tmp_path.glob("*/*/*.parts"))


@pytest.mark.parametrize("content", ["", "not json\n", '{"fingerprint": "x"}\n{"id": 1}\n', "[1]\n"])
def test_a_file_that_is_no_result_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "strict.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"strict\.jsonl: not a result file of this version"):
        read_results(path)


def test_result_files_are_plain_json(
    pair: Any, task: Task, settings: Settings, run: Runner, tmp_path: Path, console: Console
) -> None:
    """No NaN or infinity, though the cap is infinite by default."""
    examples = task.examples(settings.task, Split.TEST, 0)
    compare(pair, settings, variants_of(settings), examples, run, tmp_path, console)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for path in tmp_path.glob("*/*.jsonl"):
        header, *lines = (json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines())
        assert header["decode"]["cap"] == "inf"
        assert header["samples"] == len(lines) == 12


def test_prompt_seed_knows_no_method(task: Task, settings: Settings) -> None:
    first, second = task.examples(settings.task, Split.TEST, 0)[:2]
    assert prompt_seed(settings, first) == prompt_seed(settings.updated({"decode.method": "strict"}), first)
    assert len({prompt_seed(settings, first), prompt_seed(settings, second), prompt_seed(settings, first, 1)}) == 3
    assert prompt_seed(settings, first) != prompt_seed(settings.updated({"seed": 1}), first)
