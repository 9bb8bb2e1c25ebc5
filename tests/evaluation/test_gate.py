"""The quality gate and its edges."""

from collections.abc import Callable

import pytest

from diversed.evaluation.gate import quality_gate
from diversed.evaluation.intervals import Bootstrap
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import EvaluateSettings

BOOTSTRAP = Bootstrap(200)
SETTINGS = EvaluateSettings(margin=0.05, loop_margin=0.02)
MakeResult = Callable[..., ExampleResult]


def results(make: MakeResult, n: int, right: int, **changes: object) -> list[ExampleResult]:
    """n prompts, the first `right` of which are answered rightly."""
    return [make(str(i), quality=float(i < right), **changes) for i in range(n)]


def test_equal_quality_on_many_prompts_passes(make_result: MakeResult) -> None:
    strict = results(make_result, 1000, 880)
    gate = quality_gate(strict, strict, SETTINGS, BOOTSTRAP)
    assert gate.passed
    assert gate.reasons == ()
    assert gate.difference.value == 0


def test_ties_on_few_prompts_show_nothing(make_result: MakeResult) -> None:
    """All wrong on both sides, 8 prompts: no difference seen, none ruled out; the reason says how many it takes."""
    strict = results(make_result, 8, 0)
    gate = quality_gate(strict, strict, SETTINGS, BOOTSTRAP)
    assert not gate.passed
    told = "quality minus strict's is +0.000 [-0.324, +0.324], n = 8: a loss of 0.05 is not ruled out"
    assert gate.reasons == (told, f"nor is equality: some {gate.prompts_needed} prompts would tell")
    assert gate.prompts_needed == 688  # 8 * (.3244 / .05 * 2.8 / 1.96)^2


def test_worse_quality_fails(make_result: MakeResult) -> None:
    gate = quality_gate(results(make_result, 1000, 780), results(make_result, 1000, 880), SETTINGS, BOOTSTRAP)
    assert not gate.passed
    assert gate.difference.value == pytest.approx(-0.1)
    assert gate.difference.high < 0
    assert len(gate.reasons) == 1  # equality is ruled out


def test_a_loss_within_the_margin_passes_only_if_its_interval_does(make_result: MakeResult) -> None:
    strict = results(make_result, 2000, 1760)
    assert quality_gate(results(make_result, 2000, 1730), strict, SETTINGS, BOOTSTRAP).passed
    assert not quality_gate(results(make_result, 2000, 1665), strict, SETTINGS, BOOTSTRAP).passed  # -.0475


@pytest.mark.parametrize("broken", [{"empty": True}, {"longest_repeat": 24}])
def test_a_run_of_loops_or_empties_never_passes(make_result: MakeResult, broken: dict[str, object]) -> None:
    """Not even with the better quality, and not against a strict run that is broken in the same way."""
    good, bad = results(make_result, 1000, 500), results(make_result, 1000, 1000, **broken)
    against_good = quality_gate(bad, good, SETTINGS, BOOTSTRAP)
    assert against_good.reasons == (
        "100.0% of the outputs are empty or loop; strict has 0.0%, and 2.0% more are allowed",
        "every output is empty or loops",
    )
    against_bad = quality_gate(bad, bad, SETTINGS, BOOTSTRAP)
    assert against_bad.reasons == ("every output is empty or loops",)
    assert not against_good.passed
    assert not against_bad.passed


@pytest.mark.parametrize(("loops", "passed"), [(30, True), (31, False)])
def test_more_loops_than_strict(make_result: MakeResult, loops: int, passed: bool) -> None:
    strict = [make_result(str(i), longest_repeat=40 if i < 10 else 0) for i in range(1000)]
    candidate = [make_result(str(i), longest_repeat=40 if i < loops else 0) for i in range(1000)]
    gate = quality_gate(candidate, strict, SETTINGS, BOOTSTRAP)
    assert gate.passed is passed
    assert (gate.unhealthy, gate.unhealthy_strict) == (loops / 1000, 0.01)


def test_an_output_both_empty_and_looping_counts_once(make_result: MakeResult) -> None:
    results_ = [make_result(str(i), empty=i == 0, longest_repeat=30 if i == 0 else 0) for i in range(100)]
    assert quality_gate(results_, results_, SETTINGS, BOOTSTRAP).unhealthy == 0.01


def test_other_prompts_are_refused(make_result: MakeResult) -> None:
    with pytest.raises(ValueError, match="not the same prompts"):
        quality_gate([make_result("a"), make_result("b")], [make_result("a"), make_result("c")], SETTINGS, BOOTSTRAP)
