"""Per-example records and pooled numbers, by hand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diversed.decoding import Generation, Request
from diversed.evaluation.intervals import Bootstrap, wilson
from diversed.evaluation.metrics import (
    ExampleResult,
    MethodSummary,
    example_result,
    longest_repeat,
    paired,
    paired_quality,
    summarise,
)

BOOTSTRAP = Bootstrap(200)
Make = Callable[..., Generation]
MakeResult = Callable[..., ExampleResult]


def test_example_result_by_hand(make_generation: Make) -> None:
    """Two rounds, N = 2: the first accepts both and adds a bonus token, the second replaces its first draft."""
    generation = make_generation(
        "AABR",
        accepted=[2, 0],
        drafted=[2, 2],
        p=[0.5, 0.0005, 0.9, 0.25],
        q=[0.25, 0.4, 0.0, 0.05],
        tv=[0.3, 0.5, 0.0, 0.2],
        w=[1.0, 0.5, 1.0, 0.25],
        tokens=[7, 8, 7, 8],
        finish_reason="length",
    )
    result = example_result("x", 3, "static w=0.5", generation, "a b", 1.0, draft_length=2)
    counts = (result.tokens, result.rounds, result.drafted, result.accepted, result.verified, result.rare)
    assert counts == (4, 2, 4, 2, 3, 1)
    assert result.accepted_histogram == [1, 0, 1]
    assert (result.tv_sum, result.w_sum) == pytest.approx((1.0, 1.75))
    assert result.p_sum == pytest.approx(1.6505)
    assert result.sample == 3
    assert (result.truncated, result.empty, result.looped) == (True, False, False)
    assert result.distinct_bigrams == 2  # 78, 87, 78
    assert ExampleResult(**result.record()) == result


def test_audited_sums(make_generation: Make) -> None:
    """Sums over all tokens; None without an audit, for greedy decoding, and where the law is too large to know."""
    generation = make_generation("AB", [1], [1], [0.5, 0.9], [0.1, 0.0], [0.5, 1.0])
    names = ("output_tv_sum", "output_kl_sum", "overshoot_sum", "gap_sum", "smallest_gap")

    def sums(**changes: Any) -> tuple[Any, ...]:
        result = example_result("x", 0, "diversed", replace(generation, **changes), "a", 1.0, 1)
        return tuple(getattr(result, name) for name in names)

    assert sums() == (None,) * 5
    # acceptance, output TV, KL, overshoot, gap, out(x), max p
    rows = torch.tensor([[0.8, 0.1, 0.2, 0.05, 0.02, 0.5, 0.6], [1, 0, 0, 0, -0.01, 0.9, 0.9]])
    assert sums(audit_TA=rows) == pytest.approx((0.1, 0.2, 0.05, 0.01, -0.01))
    unknown = rows.clone()
    unknown[0, :5] = torch.nan
    assert sums(audit_TA=unknown) == (None,) * 5
    assert sums(audit_TA=rows, request=Request((5,), 64, 0, 0.0)) == (None,) * 5


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        ([], 0),
        ([5], 0),
        ([5, 5], 0),  # two copies are no loop
        ([5, 5, 5], 3),
        ([1, 2] * 3, 6),
        ([1, 2] * 3 + [1], 7),  # a started period counts
        ([9, 8, 7, *[1, 2, 3] * 4, 6], 12),
        ([1, 2, 3, 4] * 2, 0),
        ([*[4] * 5, 9, *[4] * 7], 7),  # the longest of two
        ([*range(32)] * 3, 96),
        ([*range(33)] * 3, 0),  # a phrase of 33 tokens is longer than is looked for
        ([*range(100)], 0),
    ],
)
def test_longest_repeat(tokens: list[int], length: int) -> None:
    assert longest_repeat(np.array(tokens, dtype=np.int64)) == length


@pytest.mark.parametrize(
    ("tokens", "looped"),
    [
        ([3, 4, 5, *[1, 2, 3, 4, 5, 6, 7, 8] * 3], True),  # 24 tokens
        ([1, 2, 3, 4, 5, 6, 7] * 3, False),  # 21 tokens
        ([6] * 24, True),
        ([6] * 23, False),
    ],
)
def test_what_counts_as_a_loop(make_generation: Make, tokens: list[int], looped: bool) -> None:
    n = len(tokens)
    generation = make_generation("B" * n, [0] * n, [0] * n, [1.0] * n, [0.0] * n, [1.0] * n, tokens=tokens)
    assert example_result("x", 0, "autoregressive", generation, "a", 1.0, 3).looped is looped


def test_summary_by_hand(make_result: MakeResult) -> None:
    results = [
        make_result("a", quality=1.0, tokens=10, rounds=4, drafted=12, accepted=6, verified=8, w_sum=4.0, rare=1),
        make_result("b", quality=0.0, tokens=30, rounds=6, drafted=18, accepted=14, verified=16, w_sum=8.0, empty=True),
        make_result("c", quality=1.0, finish_reason="length", longest_repeat=30, accepted_histogram=[0, 2, 2]),
    ]
    summary = summarise(results, BOOTSTRAP)
    values = {name: estimate.value for name, estimate in summary.metrics.items()}
    assert values["quality"] == pytest.approx(2 / 3)
    assert values["acceptance_rate"] == pytest.approx(26 / 42)
    assert values["token_acceptance"] == pytest.approx(26 / 32)
    assert values["block_efficiency"] == pytest.approx(50 / 14)
    assert values["drafted_per_round"] == pytest.approx(42 / 14)
    assert values["accepted_per_round"] == pytest.approx(26 / 14)
    assert values["output_tokens"] == pytest.approx(50 / 3)
    assert values["mean_weight"] == pytest.approx(20 / 32)
    assert values["rare_share"] == pytest.approx(1 / 50)
    assert values["distinct_2"] == pytest.approx(27 / 47)
    for name in ("truncated", "empty", "looped"):
        assert summary.metrics[name] == wilson(1, 3)
    assert summary.metrics["quality"] == wilson(2, 3)
    assert {estimate.n for estimate in summary.metrics.values()} == {3}
    assert summary.accepted_histogram == [2, 4, 4, 2]
    assert MethodSummary.of(summary.record()) == summary


def test_autoregressive_has_no_acceptance(make_result: MakeResult) -> None:
    results = [make_result(name, drafted=0, accepted=0, verified=0, rounds=10, tokens=10) for name in "ab"]
    summary = summarise(results, BOOTSTRAP)
    undefined = {"acceptance_rate", "token_acceptance", "drafted_per_round", "accepted_per_round", "mean_weight"}
    assert not undefined & summary.metrics.keys()
    assert summary.metrics["block_efficiency"].value == 1.0
    assert paired(results, results, BOOTSTRAP).keys() == {"quality", "block_efficiency", "output_tokens"}


def test_the_unit_is_the_prompt(make_result: MakeResult) -> None:
    """Several samples of a prompt are one unit: n counts prompts, and a copy of every sample narrows nothing."""
    once = [make_result(str(i), quality=float(i % 3 == 0), accepted=i) for i in range(8)]
    summary, twice = summarise(once, BOOTSTRAP), summarise(once + once, BOOTSTRAP)
    assert twice.prompts == 8
    assert twice.metrics["token_acceptance"] == summary.metrics["token_acceptance"]
    assert twice.metrics["quality"] == BOOTSTRAP.mean([r.quality for r in once])  # no longer one yes or no per prompt


def test_paired_by_hand(make_result: MakeResult) -> None:
    ours = [make_result("a", tokens=12, accepted=8), make_result("b", tokens=8, quality=0.5)]
    theirs = [make_result("b"), make_result("a")]  # the order does not matter
    numbers = {name: estimate.value for name, estimate in paired(ours, theirs, BOOTSTRAP).items()}
    assert numbers == {
        "quality": pytest.approx(-0.25),
        "token_acceptance": pytest.approx(14 / 16 - 12 / 16),
        "block_efficiency": pytest.approx(1.0),
        "output_tokens": pytest.approx(1.0),
    }
    with pytest.raises(ValueError, match="not the same prompts: 1 are on one side only"):
        paired(ours, theirs[:1], BOOTSTRAP)


def test_paired_quality_takes_the_interval_that_fits(make_result: MakeResult) -> None:
    strict = [make_result(str(i), quality=0.0) for i in range(8)]
    assert paired_quality(strict, strict, BOOTSTRAP).low == pytest.approx(-0.3244, abs=5e-5)  # yes or no: Newcombe
    rouge = [make_result(str(i), quality=0.1 * i) for i in range(8)]
    better = [make_result(str(i), quality=0.1 * i + 0.05) for i in range(8)]
    difference = paired_quality(better, rouge, BOOTSTRAP)
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.05, 0.05, 0.05))
