"""Common random numbers, recorded results, what is run again and what is not: the real engine, a tiny random pair."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from diversed.errors import DataError
from diversed.evaluation.compare import (
    Variant,
    compare,
    evaluate_variant,
    fingerprint,
    head_fingerprint,
    matched_static,
    prompt_seed,
    read_results,
    standard_variants,
    static_variant,
)
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import Method, Settings
from diversed.tasks import Split, Task
from diversed.verifier import Head


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=200)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def no_engine(decode: object, head: object) -> Any:
    raise AssertionError("a recorded method was run again")


def test_standard_variants(settings: Settings) -> None:
    head = Head(32, 32)
    variants = standard_variants(settings.updated({"decode.cap": 2.0, "decode.top_p": 0.9}), head)
    assert [v.label for v in variants] == ["autoregressive", "strict", "static w=0.5", "static w=0.2", "diversed"]
    assert [v.decode.method.value for v in variants] == ["autoregressive", "strict", "static", "static", "diversed"]
    assert [v.decode.weight for v in variants[2:4]] == [0.5, 0.2]
    assert [v.decode.cap for v in variants[2:]] == [float("inf"), float("inf"), 2.0]  # the cap is DIVERSED's
    assert {v.decode.top_p for v in variants} == {0.9}
    assert [v.head for v in variants] == [None] * 4 + [head]
    assert len(standard_variants(settings, None)) == 4


def test_methods_share_their_random_numbers(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any]
) -> None:
    """The static ensemble with w = 1 *is* strict: same texts, whatever the method is called. And an example's noise is
    its own: alone it gives the same text as among others."""
    examples = task.examples(settings.task, Split.TEST, 0)
    strict, *_ = (v for v in standard_variants(settings, None) if v.label == "strict")
    results = evaluate_variant(pair, task, settings, strict, examples, engines)
    same = evaluate_variant(pair, task, settings, static_variant(settings, 1.0), examples, engines)
    assert [r.text for r in same] == [r.text for r in results]
    assert [r.id for r in results] == [example.id for example in examples]
    alone = evaluate_variant(pair, task, settings, strict, examples[5:6], engines)
    assert [(r.text, r.accepted_histogram) for r in alone] == [(r.text, r.accepted_histogram) for r in results[5:6]]
    relaxed = evaluate_variant(pair, task, settings, static_variant(settings, 0.2), examples, engines)
    assert sum(r.accepted for r in relaxed) / sum(r.verified for r in relaxed) > sum(r.accepted for r in results) / sum(
        r.verified for r in results
    )


def test_results_add_up(pair: Any, task: Task, settings: Settings, engines: Callable[..., Any]) -> None:
    """Acceptance lies in [0, 1]; emitted = accepted + replacements + bonuses; the histogram counts every round once."""
    examples = task.examples(settings.task, Split.TEST, 0)
    for variant in standard_variants(settings, None):
        for r in evaluate_variant(pair, task, settings, variant, examples, engines):
            assert 0 <= r.accepted <= r.verified <= min(r.drafted, r.tokens)
            assert r.tokens <= 16
            assert sum(r.accepted_histogram) == r.rounds
            assert sum(i * count for i, count in enumerate(r.accepted_histogram)) == r.accepted
            bonuses = r.tokens - r.verified
            assert bonuses <= r.rounds
            if variant.label == "autoregressive":
                assert (r.rounds, r.drafted) == (r.tokens, 0)


def test_recorded_methods_are_not_run_again(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    examples = task.examples(settings.task, Split.TEST, 0)
    variants = standard_variants(settings, Head(32, 32))
    results = compare(pair, task, settings, variants, examples, engines, tmp_path, console)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "autoregressive.jsonl", "diversed.jsonl", "static-w0.2.jsonl", "static-w0.5.jsonl", "strict.jsonl",
    ]  # fmt: skip
    assert "strict: 12 prompts in" in shown(console)  # no terminal: one line per method
    assert compare(pair, task, settings, variants, examples, no_engine, tmp_path, console) == results
    other_batch = settings.updated({"decode.batch_size": 7, "pair.threads": 2})
    variants = standard_variants(other_batch, Head(32, 32))
    assert compare(pair, task, other_batch, variants, examples, no_engine, tmp_path, console) == results


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"decode.temperature": 0.7},
        {"decode.draft_length": 4},
        {"task.max_new_tokens": 8},
        {"task.test_size": 11},
        {"pair.dtype": "bfloat16"},
    ],
)
def test_other_settings_are_run_again(pair: Any, task: Task, settings: Settings, change: dict[str, Any]) -> None:
    def of(settings: Settings) -> str:
        examples = task.examples(settings.task, Split.TEST, settings.seed)
        return fingerprint(pair, settings, standard_variants(settings, None)[1], examples)

    assert of(settings.updated(change)) != of(settings)


def test_another_head_is_run_again(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    examples = task.examples(settings.task, Split.TEST, 0)
    for head in (Head(32, 32, 0.5), Head(32, 32, 0.9)):
        diversed = Variant("diversed", settings.decode, head)
        compare(pair, task, settings, [diversed], examples, engines, tmp_path, console)
        assert read_results(tmp_path / "diversed.jsonl").header["head"] == head_fingerprint(head)
    assert head_fingerprint(Head(32, 32, 0.5)) == head_fingerprint(Head(32, 32, 0.5))
    moved = Head(32, 32)
    with torch.no_grad():
        moved.weight_D[3] += 1e-6
    assert head_fingerprint(moved) != head_fingerprint(Head(32, 32))


def test_an_interrupted_method_leaves_no_file(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    """The first method is kept; the second, stopped in the middle, leaves nothing; the next attempt runs that one."""
    examples = task.examples(settings.task, Split.TEST, 0)
    variants = standard_variants(settings, None)[:2]
    runs: list[str] = []

    def failing(decode: Any, head: Any) -> Any:
        runs.append(decode.method.value)
        engine = engines(decode, head)
        if decode.method is Method.STRICT and runs.count("strict") == 1:
            generate = engine.generate

            def stopped(requests: Any, progress: Any) -> Any:
                def stop(done: int) -> None:
                    if done >= 4:
                        raise KeyboardInterrupt

                return generate(requests, stop)

            engine.generate = stopped
        return engine

    with pytest.raises(KeyboardInterrupt):
        compare(pair, task, settings, variants, examples, failing, tmp_path, console)
    assert [path.name for path in tmp_path.iterdir()] == ["autoregressive.jsonl"]
    results = compare(pair, task, settings, variants, examples, failing, tmp_path, console)
    assert runs == ["autoregressive", "strict", "strict"]
    assert results == compare(pair, task, settings, variants, examples, engines, tmp_path / "uninterrupted", console)


@pytest.mark.parametrize("content", ["", "not json\n", '{"fingerprint": "x"}\n{"id": 1}\n', "[1]\n"])
def test_a_file_that_is_no_result_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "strict.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"strict\.jsonl: not a result file of this version"):
        read_results(path)


def test_result_files_are_plain_json(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path, console: Console
) -> None:
    """No NaN or infinity, though the cap is infinite by default."""
    examples = task.examples(settings.task, Split.TEST, 0)
    compare(pair, task, settings, standard_variants(settings, None), examples, engines, tmp_path, console)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for path in tmp_path.iterdir():
        header, *lines = (json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines())
        assert header["decode"]["cap"] == "inf"
        assert header["prompts"] == len(lines) == 12


def test_matched_static(settings: Settings, make_result: Callable[..., ExampleResult]) -> None:
    """Acceptance .6 (strict), .7 (w=.5), .8 (w=.2), 1 (w=0): .9 lies half way between the last two, at w = .1."""

    def accepting(share: float) -> list[ExampleResult]:
        return [make_result("a", accepted=round(1000 * share), verified=1000)]

    grid = {"strict": accepting(0.6), "static w=0.5": accepting(0.7), "static w=0.2": accepting(0.8)}
    variant = matched_static(settings, {**grid, "diversed": accepting(0.9)})
    assert variant is not None
    assert (variant.label, variant.decode.weight, variant.decode.method) == ("static w=0.1", 0.1, Method.STATIC)
    assert matched_static(settings, {**grid, "diversed": accepting(0.75)}).label == "static w=0.35"  # type: ignore[union-attr]
    assert matched_static(settings, {**grid, "diversed": accepting(0.8)}) is None  # on the grid
    assert matched_static(settings, {**grid, "diversed": accepting(0.55)}) is None  # stricter than strict
    assert matched_static(settings, grid) is None


def test_prompt_seed_knows_no_method(task: Task, settings: Settings) -> None:
    first, second = task.examples(settings.task, Split.TEST, 0)[:2]
    assert prompt_seed(settings, first) == prompt_seed(settings.updated({"decode.method": "strict"}), first)
    assert len({prompt_seed(settings, first), prompt_seed(settings, second), prompt_seed(settings, first, 1)}) == 3
    assert prompt_seed(settings, first) != prompt_seed(settings.updated({"seed": 1}), first)
