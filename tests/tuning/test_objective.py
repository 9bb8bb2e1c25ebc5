"""The objective and the promotion rule, exact, on results made by hand."""

import dataclasses
import json

import pytest

from diversed.decoding.costs import Costs
from diversed.evaluation.intervals import Bootstrap
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import EvaluateSettings
from diversed.tuning.objective import Contender, decide, score

COSTS = Costs(t_autoregressive=8.0, t_target={1: 8.0, 4: 9.0, 6: 10.0}, t_draft=1.0, device="none", threads=1)
SETTINGS = EvaluateSettings(margin=0.05, loop_margin=0.02)
BOOTSTRAP = Bootstrap(resamples=500, seed=0)


def result(
    index: int, *, quality: float = 1.0, tokens: int = 30, rounds: int = 6, longest_repeat: int = 0, empty: bool = False
):
    return ExampleResult(
        id=f"prompt-{index}",
        sample=0,
        label="made by hand",
        quality=quality,
        tokens=tokens,
        rounds=rounds,
        drafted=5 * rounds,
        accepted=tokens - rounds,
        verified=tokens - rounds,
        accepted_histogram=[0, 0, 0, 0, rounds, 0],
        finish_reason="stop",
        tv_sum=0.0,
        w_sum=0.5 * (tokens - rounds),
        p_sum=float(tokens),
        rare=0,
        output_tv_sum=0.0,
        output_kl_sum=0.0,
        overshoot_sum=0.0,
        gap_sum=0.0,
        smallest_gap=0.0,
        empty=empty,
        longest_repeat=longest_repeat,
        distinct_bigrams=tokens - 1,
        text="",
    )


def results(n: int = 200, wrong: int = 20, **changes):
    """`n` prompts of which the first `wrong` are answered wrongly."""
    return [result(i, quality=float(i >= wrong), **changes) for i in range(n)]


def measured(candidate, strict=None, draft_length=5):
    return score(candidate, strict or results(tokens=30, rounds=15), draft_length, COSTS, SETTINGS, BOOTSTRAP)


def test_a_feasible_candidate_scores_its_predicted_speedup():
    found = measured(results(tokens=30, rounds=6))
    assert found.feasible
    assert found.reason == ""
    # block efficiency 5, t_AR 8, a round of N = 5 costs t_target(6) + 5 * t_draft = 15
    assert found.value == pytest.approx(5 * 8 / 15, abs=1e-12)
    assert (found.speedup.value, found.speedup.low, found.speedup.high) == pytest.approx((found.value,) * 3)
    assert found.report()["block_efficiency"] == pytest.approx(5)
    assert found.report()["mean_weight"] == pytest.approx(0.5)


def test_the_cost_of_a_round_belongs_to_the_draft_length():
    assert measured(results(rounds=6), draft_length=3).value == pytest.approx(5 * 8 / (9 + 3), abs=1e-12)


def test_an_infeasible_candidate_scores_its_distance_whatever_its_speed():
    slow, fast = (measured(results(wrong=60, rounds=rounds)) for rounds in (15, 6))
    assert not slow.feasible
    assert "-0.200 [" in slow.reason
    assert slow.value == fast.value == pytest.approx(SETTINGS.margin + slow.gate.difference.low)
    assert fast.speedup.value > slow.speedup.value


def test_the_further_from_strict_the_lower():
    scores = [measured(results(wrong=wrong)).value for wrong in (30, 60, 120, 200)]
    assert scores == sorted(scores, reverse=True)
    assert all(value < 0 for value in scores)


def test_every_feasible_candidate_ranks_above_every_infeasible_one():
    slowest = measured(results(tokens=30, rounds=30))
    assert slowest.feasible
    assert slowest.value > 0 > measured(results(wrong=40, rounds=5)).value


def test_case_22_loops_are_infeasible_though_fastest_and_as_good():
    """Planted fault: loops and empty outputs count as any other output."""
    looping = [result(i, quality=float(i >= 20), rounds=5, longest_repeat=30 if i % 10 == 0 else 0) for i in range(200)]
    found = measured(looping)
    assert not found.feasible
    assert "10.0% of the outputs are empty or loop" in found.reason
    assert found.value == pytest.approx(-(0.1 - 0.02))


def test_empty_outputs_throughout_are_infeasible_even_beside_an_empty_strict():
    empty = [result(i, quality=0.0, empty=True) for i in range(200)]
    found = measured(empty, empty)
    assert not found.feasible
    assert found.value <= -1


def test_few_prompts_show_nothing():
    found = measured(results(n=8, wrong=0), results(n=8, wrong=0, rounds=15))
    assert not found.feasible
    assert "is not ruled out" in found.reason


def test_other_prompts_are_refused():
    with pytest.raises(ValueError, match="not the same prompts"):
        measured(results(n=200), results(n=199))


def test_the_report_is_flat_and_finite():
    report = measured(results()).report()
    assert json.loads(json.dumps(report, allow_nan=False)) == report


# -- promotion -------------------------------------------------------------------------------------------------------

STRICT = results(rounds=15)


def contender(name="challenger", draft_length=5, **changes):
    return Contender(name, results(**changes), draft_length)


def decision(challenger, champion=None):
    return decide(challenger, champion, STRICT, COSTS, SETTINGS, BOOTSTRAP)


def test_the_first_champion_must_be_as_good_as_strict_and_faster_than_autoregressive():
    found = decision(contender(rounds=6))
    assert found.promoted
    assert found.gain is None
    assert [reason.partition(":")[0] for reason in found.reasons] == ["met", "met"]


def test_the_first_challenger_that_is_slower_than_autoregressive_is_not_promoted():
    found = decision(contender(tokens=30, rounds=20))  # block efficiency 1.5 * 8/15 < 1
    assert not found.promoted
    assert found.reasons[1].startswith("not met: predicted speed-up over autoregressive 0.80")


def test_a_faster_challenger_of_worse_quality_is_not_promoted():
    found = decision(contender(wrong=60, rounds=5), contender("champion", rounds=6))
    assert not found.promoted
    assert found.reasons[0].startswith("not met: ")
    assert found.reasons[1].startswith("met")


def test_a_challenger_must_be_faster_than_the_champion():
    champion = contender("diversed-x version 3", rounds=6)
    assert decision(contender(rounds=5), champion).promoted
    equal = decision(contender(rounds=6), champion)
    assert not equal.promoted
    assert equal.gain.value == 0
    assert "against diversed-x version 3" in equal.reasons[1]


def test_the_gain_is_that_of_predicted_speedups_with_each_ones_draft_length():
    found = decision(contender(rounds=6, draft_length=3), contender("champion", rounds=6, draft_length=5))
    assert found.gain.value == pytest.approx(5 * 8 / 12 - 5 * 8 / 15)
    assert found.promoted


def test_a_gain_that_noise_may_explain_does_not_promote():
    """Half the prompts are faster by one round, a little less than half slower: the paired interval includes 0."""
    base = results(rounds=10)
    mixed = [dataclasses.replace(r, rounds=9 if i % 2 or i % 40 == 0 else 11) for i, r in enumerate(base)]
    found = decision(Contender("challenger", mixed, 5), Contender("champion", base, 5))
    assert found.gain.low < 0 < found.gain.high
    assert not found.promoted


def test_a_decision_is_plain_json():
    found = decision(contender(rounds=5), contender("champion", rounds=6))
    assert json.loads(json.dumps(found.record(), allow_nan=False))["promoted"] is True
    assert found.tags()["promotion.promoted"] == "true"
