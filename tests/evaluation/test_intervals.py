"""Intervals: by hand, against scipy, and whether they cover what they promise."""

from math import sqrt

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import bootstrap as scipy_bootstrap

from diversed.evaluation.intervals import Bootstrap, Estimate, Z, newcombe, wilson


def test_wilson_by_hand() -> None:
    assert pytest.approx(1.959964, abs=1e-6) == Z
    estimate = wilson(8, 10)
    assert (estimate.value, estimate.n) == (0.8, 10)
    assert estimate.low == pytest.approx(0.4902, abs=5e-5)
    assert estimate.high == pytest.approx(0.9433, abs=5e-5)
    assert wilson(0, 10) == Estimate(0.0, 0.0, pytest.approx(0.2775, abs=5e-5), 10)
    assert wilson(10, 10) == Estimate(1.0, pytest.approx(0.7225, abs=5e-5), 1.0, 10)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 3), (37, 60), (1760, 2000), (2000, 2000)])
def test_wilson_is_scipys(successes: int, n: int) -> None:
    reference = binomtest(successes, n).proportion_ci(0.95, "wilson")
    assert (wilson(successes, n).low, wilson(successes, n).high) == pytest.approx((reference.low, reference.high))


def test_newcombe_by_hand() -> None:
    """(both, only first, only second, neither) = (4, 3, 1, 2): phi's numerator 8 - 3 is corrected to 0, so the bounds
    are plain hypotenuses of the two Wilson intervals' arms."""
    first, second = wilson(7, 10), wilson(5, 10)
    estimate = newcombe(4, 3, 1, 2)
    assert estimate.value == pytest.approx(0.2)
    assert estimate.low == pytest.approx(0.2 - sqrt((0.7 - first.low) ** 2 + (second.high - 0.5) ** 2))
    assert estimate.high == pytest.approx(0.2 + sqrt((first.high - 0.7) ** 2 + (0.5 - second.low) ** 2))
    assert (estimate.low, estimate.high) == pytest.approx((-0.2017, 0.5261), abs=5e-5)


def test_newcombe_with_correlation_by_hand() -> None:
    """(30, 5, 2, 13): phi = (30*13 - 5*2 - 25) / sqrt(35*15*32*18)."""
    first, second = wilson(35, 50), wilson(32, 50)
    phi = 355 / sqrt(35 * 15 * 32 * 18)
    a, b = 0.7 - first.low, second.high - 0.64
    assert newcombe(30, 5, 2, 13).low == pytest.approx(0.06 - sqrt(a * a - 2 * phi * a * b + b * b))
    swapped = newcombe(30, 2, 5, 13)
    assert (swapped.low, swapped.high) == pytest.approx((-newcombe(30, 5, 2, 13).high, -newcombe(30, 5, 2, 13).low))


def test_two_methods_that_fail_everywhere_are_not_shown_equal() -> None:
    """8 of 8 prompts wrong on both sides: the interval is as wide as a rate of 0/8 is uncertain."""
    estimate = newcombe(0, 0, 0, 8)
    assert estimate == Estimate(0.0, pytest.approx(-0.3244, abs=5e-5), pytest.approx(0.3244, abs=5e-5), 8)


def test_newcombe_covers() -> None:
    """1,000 experiments of 200 prompts, true difference -.02. If the coverage is 95%, fewer than 930 hits have
    probability .003 (and the seed is fixed)."""
    rng = np.random.default_rng(0)
    hits = 0
    for cells in rng.multinomial(200, [0.80, 0.06, 0.08, 0.06], size=1000):
        estimate = newcombe(*(int(cell) for cell in cells))
        hits += estimate.low <= -0.02 <= estimate.high
    assert hits >= 930


def test_ratio_of_sums() -> None:
    estimate = Bootstrap(200).ratio([1, 2, 3], [2, 2, 4])
    assert estimate is not None
    assert (estimate.value, estimate.n) == (0.75, 3)
    assert 0.5 <= estimate.low <= 0.75 <= estimate.high <= 1  # the extreme prompts' own ratios


def test_the_interval_is_scipys() -> None:
    """BCa of a ratio of sums against scipy's with as many resamples. With 120 prompts the expanded percentiles are
    1% wider; a quantile near 2.5% of 9,999 resamples wanders by about 1.5% of the width, so 8% is beyond four
    deviations."""
    rng = np.random.default_rng(1)
    bottoms = rng.integers(1, 40, 120).astype(float)
    tops = rng.binomial(bottoms.astype(int), rng.beta(2, 2, 120)).astype(float)
    ours = Bootstrap(9999, seed=3).ratio(tops, bottoms)
    reference = scipy_bootstrap(
        (tops, bottoms), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, vectorized=True, n_resamples=9999,
        method="BCa", batch=1000, rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert ours is not None
    tolerance = 0.08 * (reference.high - reference.low)
    assert ours.low == pytest.approx(reference.low, abs=tolerance)
    assert ours.high == pytest.approx(reference.high, abs=tolerance)


def test_bootstrap_over_prompts_covers_where_wilson_over_tokens_does_not() -> None:
    """300 experiments: 60 prompts of different length, each with its own acceptance (Beta(2, 2), mean .5). Over prompts
    the interval must cover in 90% or more: at a true coverage of 94%, fewer than 270 hits have probability .002. Over
    tokens, as if they were independent, Wilson's covers far less: fewer than 210 hits have probability 1e-5 even if it
    covered in 80%. The seed is fixed."""
    rng = np.random.default_rng(4)
    covered = naive = 0
    for _ in range(300):
        lengths = rng.integers(5, 60, 60)
        accepted = rng.binomial(lengths, rng.beta(2, 2, 60))
        estimate = Bootstrap(500, seed=0).ratio(accepted, lengths)
        assert estimate is not None
        covered += estimate.low <= 0.5 <= estimate.high
        tokens = wilson(int(accepted.sum()), int(lengths.sum()))
        naive += tokens.low <= 0.5 <= tokens.high
    assert covered >= 270
    assert naive < 210


def test_few_prompts_still_cover() -> None:
    """1,000 experiments on 6 prompts (lognormal, mean exp(1/8)). Plain percentiles cover about 80% here, the expanded
    ones 90%; fewer than 860 hits have probability 5e-5 at 90%. The seed is fixed."""
    rng = np.random.default_rng(6)
    hits = 0
    for values in rng.lognormal(0, 0.5, (1000, 6)):
        estimate = Bootstrap(500).mean(values)
        hits += estimate.low <= np.exp(1 / 8) <= estimate.high
    assert hits >= 860


def test_paired_difference_and_quotient() -> None:
    """A method that always takes half the time of another is exactly 2x as fast, however the prompts differ."""
    seconds = np.array([1.0, 5.0, 2.0, 9.0])
    tokens = np.array([10.0, 30.0, 25.0, 60.0])
    bootstrap = Bootstrap(200)
    quotient = bootstrap.quotient(tokens, seconds / 2, tokens, seconds)
    assert quotient is not None
    assert (quotient.value, quotient.low, quotient.high) == pytest.approx((2, 2, 2))
    difference = bootstrap.difference(tokens + 3, np.ones(4), tokens, np.ones(4))
    assert difference is not None
    assert (difference.value, difference.low, difference.high) == pytest.approx((3, 3, 3))


def test_same_seed_same_interval() -> None:
    values = np.random.default_rng(5).normal(size=50)
    assert Bootstrap(200, seed=1).mean(values) == Bootstrap(200, seed=1).mean(values)
    assert Bootstrap(200, seed=1).mean(values) != Bootstrap(200, seed=2).mean(values)


def test_undefined_and_too_few() -> None:
    assert Bootstrap(200).ratio([0, 0], [0, 0]) is None
    with pytest.raises(ValueError, match="1 prompts: an interval needs at least 2"):
        Bootstrap(200).mean([0.5])
    rare = Bootstrap(200).ratio([1, 0, 0, 0], [2, 0, 0, 0])  # most resamples of these are 0/0 or 1/2
    assert rare is not None
    assert (rare.value, rare.low, rare.high) == (0.5, 0.5, 0.5)
