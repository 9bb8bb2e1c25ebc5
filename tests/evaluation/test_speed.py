"""Measured speed: the order of turns, the peers, and the pooled numbers by hand. No time is asserted."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diversed.decoding import Request, build_engine
from diversed.decoding.costs import Costs
from diversed.errors import DataError
from diversed.evaluation import speed
from diversed.evaluation.grid import grid
from diversed.evaluation.intervals import Bootstrap
from diversed.evaluation.peers import HuggingFace
from diversed.evaluation.speed import HF_ASSISTED, HF_GENERATE, WARMUPS, measure_speed, read_speed, summarise_speed
from diversed.settings import Settings
from diversed.tasks import Split, Task

COSTS = Costs(t_autoregressive=0.004, t_target={1: 0.004, 4: 0.005}, t_draft=0.001, device="cpu", threads=1)


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def test_every_method_takes_turns(task: Task, settings: Settings) -> None:
    """Warm-up apart, each prompt is continued by all methods in an order that starts one further each time, with the
    same seeds for all of them."""
    calls: list[tuple[str, int, int]] = []

    def runner(label: str) -> Callable[..., int]:
        def run(prompt_ids: list[int], max_new_tokens: int, seed: int) -> int:
            calls.append((label, prompt_ids[0], seed))
            return 7

        return run

    runners = {label: runner(label) for label in "abc"}
    examples = task.examples(settings.task, Split.TEST, 0)[:2]
    tokens, seconds, warmup = speed._time(runners, [[10], [11]], examples, settings, quiet())
    assert [label for label, *_ in calls[: 3 * WARMUPS]] == [label for label in "abc" for _ in range(WARMUPS)]
    turns = calls[3 * WARMUPS :]
    assert [(label, prompt) for label, prompt, _ in turns] == [
        ("a", 10), ("b", 10), ("c", 10), ("b", 11), ("c", 11), ("a", 11),
        ("b", 10), ("c", 10), ("a", 10), ("c", 11), ("a", 11), ("b", 11),
    ]  # fmt: skip
    seeds = [tuple(sorted({seed for *_, seed in turns[i : i + 3]})) for i in range(0, 12, 3)]
    assert all(len(each) == 1 for each in seeds)
    assert len(set(seeds)) == 4  # each repetition of a prompt has its own
    assert tokens == {label: [[7, 7], [7, 7]] for label in "abc"}
    assert all(len(row) == 2 for label in "abc" for row in seconds[label])
    assert warmup.keys() == set("abc")


def test_record_and_resume(
    pair: Any, task: Task, settings: Settings, engines: Callable[..., Any], tmp_path: Path
) -> None:
    examples = task.examples(settings.task, Split.TEST, 0)
    variants = grid(settings, lambda _: None)  # type: ignore[arg-type, return-value]
    path = tmp_path / "speed.json"
    record = measure_speed(pair, settings, settings.decode, variants, examples, COSTS, engines, path, quiet())
    labels = ["autoregressive", "strict", "static w=0.5", "static w=0.2", HF_GENERATE, HF_ASSISTED]
    assert list(record["tokens"]) == list(record["seconds"]) == labels
    for label in labels:
        assert [len(row) for row in record["tokens"][label]] == [2, 2, 2]  # 3 prompts, 2 repetitions
        assert all(0 < count <= 16 for row in record["tokens"][label] for count in row)
    assert record["prompts"] == ["test-0", "test-1", "test-2"]
    assert record["warmup"]["generations_left_out_per_method"] == WARMUPS
    assert record["costs"]["speedup_per_block"]["3"] == pytest.approx(0.004 / (0.005 + 3 * 0.001))
    assert read_speed(path) == record

    def no_engine(decode: object, head: object) -> Any:
        raise AssertionError("measured again")

    assert measure_speed(pair, settings, settings.decode, variants, examples, COSTS, no_engine, path, quiet()) == record
    more = settings.updated({"evaluate.speed_repeats": 3})
    with pytest.raises(AssertionError, match="measured again"):
        measure_speed(pair, more, more.decode, variants, examples, COSTS, no_engine, path, quiet())


@pytest.mark.parametrize("assisted", [False, True])
def test_the_peers_decode_as_we_do(pair: Any, settings: Settings, assisted: bool) -> None:
    """Greedy, Hugging Face's two ways emit as many tokens as our autoregressive loop, prompt by prompt; and the draft's
    own generation options are left as they were."""
    decode = settings.decode.model_copy(update={"temperature": 0.0})
    own = build_engine(pair, decode.model_copy(update={"method": "autoregressive"}))
    peer = HuggingFace(pair, decode, assisted)
    before = pair.draft.generation_config
    for i in range(6):
        prompt = pair.encode(f"{i} prompt {i}", False)
        assert peer(prompt, 24, seed=0) == len(own.generate([Request.of(prompt, 24, 0, decode)])[0].tokens)
    assert pair.draft.generation_config is before


@pytest.mark.parametrize("assisted", [False, True])
def test_the_peers_seed_is_theirs(pair: Any, settings: Settings, assisted: bool) -> None:
    """Sampling: the same seed stops at the same place; torch's global state is put back."""
    import torch

    peer = HuggingFace(pair, settings.decode, assisted)
    state = torch.get_rng_state()
    lengths = [[peer(pair.encode("abc", False), 60, seed) for seed in range(8)] for _ in range(2)]
    assert lengths[0] == lengths[1]
    assert len(set(lengths[0])) > 1
    assert torch.equal(torch.get_rng_state(), state)


def test_the_assistant_drafts_a_constant_number(pair: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict's peer drafts `draft_length` tokens each round: neither confidence nor a heuristic changes it."""
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    asked: list[int] = []
    original = AssistedCandidateGenerator._prepare_generation_args

    def spy(self: Any, input_ids: Any, min_new_tokens: int, max_new_tokens: int) -> Any:
        asked.append(max_new_tokens)
        arguments = original(self, input_ids, min_new_tokens, max_new_tokens)
        assert not arguments["generation_config"].assistant_confidence_threshold
        return arguments

    monkeypatch.setattr(AssistedCandidateGenerator, "_prepare_generation_args", spy)
    HuggingFace(pair, settings.decode.model_copy(update={"draft_length": 4}), assisted=True)(
        pair.encode("abc", False), 40, 0
    )
    assert set(asked[:-1]) == {4}  # the last round may have room for fewer


def test_summary_by_hand() -> None:
    """Tokens per second are sums over sums; DIVERSED here writes twice as much in the same time, of which nothing is
    left once length is adjusted for."""
    record = {
        "tokens": {
            "autoregressive": [[10, 10], [30, 30]],
            "strict": [[10, 10], [30, 30]],
            "diversed": [[20, 20], [60, 60]],
            HF_GENERATE: [[10, 10], [30, 30]],
        },
        "seconds": {
            "autoregressive": [[1.0, 1.0], [3.0, 3.0]],
            "strict": [[0.5, 0.5], [1.5, 1.5]],
            "diversed": [[1.0, 1.0], [3.0, 3.0]],
            HF_GENERATE: [[2.0, 2.0], [6.0, 6.0]],
        },
    }
    numbers = summarise_speed(record, Bootstrap(200))
    assert {name: e.value for name, e in numbers["diversed"].items()} == pytest.approx(
        {
            "tokens_per_second": 20.0,
            "speedup_measured": 2.0,
            "speedup_over_hf": 4.0,
            "speedup_over_strict": 1.0,
            "length_ratio": 2.0,
            "speedup_length_adjusted": 1.0,
        }
    )
    assert numbers["strict"]["speedup_measured"].value == pytest.approx(2.0)
    assert numbers["strict"]["tokens_per_second"].n == 2


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_a_file_that_is_no_speed_record(tmp_path: Path, content: str) -> None:
    (tmp_path / "speed.json").write_text(content)
    with pytest.raises(DataError, match="not a speed record"):
        read_speed(tmp_path / "speed.json")
