"""95% intervals. The unit is the prompt: what is resampled, and what `Estimate.n` counts.

Tokens of one prompt share its difficulty and each other's mistakes, so a rate that is pooled over tokens or rounds
(acceptance, block efficiency) is a ratio of sums over prompts and is bootstrapped over prompts. A Wilson interval over
its thousands of tokens would be too narrow. Wilson is for rates with one yes or no per prompt (accuracy, loops).

Shapes: N prompts, C columns, R resamples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

__all__ = ["CONFIDENCE", "Bootstrap", "Estimate", "newcombe", "wilson"]

CONFIDENCE = 0.95
NORMAL = NormalDist()
Z = NORMAL.inv_cdf(0.5 + CONFIDENCE / 2)

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]  # sums over prompts [..., C] -> [...]; a common scale of the sums has no effect


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95% interval and the number of prompts it rests on."""

    value: float
    low: float
    high: float
    n: int

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit; `factor` is positive and known exactly."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.n)

    def cell(self, factor: float, form: str) -> tuple[str, str]:
        """Number and interval in another unit, for two lines of a table."""
        value, low, high = (format(number * factor, form) for number in (self.value, self.low, self.high))
        return value, f"{low} – {high}" if form.startswith("+") else f"{low}–{high}"

    def told(self, factor: float, form: str) -> str:
        """Number and interval in another unit, for a sentence."""
        return f"{self.value * factor:{form}} [{self.low * factor:{form}}, {self.high * factor:{form}}]"


def wilson(successes: int, n: int) -> Estimate:
    """Wilson's score interval of a rate (Wilson 1927); it has a width at 0 and 1 too."""
    rate = successes / n
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    # At 0 and n the bounds are 0 and 1 exactly, not up to rounding.
    low, high = (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)
    return Estimate(rate, low, high, n)


def newcombe(both: int, only_first: int, only_second: int, neither: int) -> Estimate:
    """Difference first - second of two rates on the same prompts: Newcombe's hybrid score interval (Newcombe 1998,
    Statistics in Medicine 17:2635, method 10).

    It keeps a width where no prompt differs: two methods that both fail on 8 of 8 prompts are not thereby shown equal.
    """
    n = both + only_first + only_second + neither
    first, second = wilson(both + only_first, n), wilson(both + only_second, n)
    margins = (both + only_first) * (only_second + neither) * (both + only_second) * (only_first + neither)
    agreement = float(both * neither - only_first * only_second)
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)  # his continuity correction
    phi = agreement / sqrt(margins) if margins else 0.0
    below = _hypotenuse(first.value - first.low, second.high - second.value, phi)
    above = _hypotenuse(first.high - first.value, second.value - second.low, phi)
    difference = (only_first - only_second) / n
    return Estimate(difference, difference - below, difference + above, n)


def _hypotenuse(a: float, b: float, correlation: float) -> float:
    return sqrt(max(a * a - 2 * correlation * a * b + b * b, 0.0))


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Seeded bootstrap over prompts with bias-corrected and accelerated bounds (BCa; Efron 1987).

    Resamples of n prompts vary too little by about (n-1)/n, which tells where prompts are few: the bounds are taken
    from expanded percentiles (Hesterberg 2015, The American Statistician 69:371). The same resamples serve all
    statistics over the same number of prompts, so numbers repeat to the last digit and cost one matrix product each.
    """

    resamples: int = 2000
    seed: int = 0

    def __call__(self, rows_NC: ArrayLike, statistic: Statistic) -> Estimate | None:
        """Interval of `statistic`, a function of the columns' sums over prompts.

        None where it is not defined on the data (0/0); resamples where it is not defined are left out. ValueError for
        fewer than two prompts.
        """
        rows = np.asarray(rows_NC, dtype=np.float64)
        n = len(rows)
        if n < 2:
            raise ValueError(f"{n} prompts: an interval needs at least 2")
        sums_C = rows.sum(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(statistic(sums_C))
            if not np.isfinite(value):
                return None
            drawn_R = _finite(statistic(_weights(n, self.resamples, self.seed) @ rows))
            jackknife_N = _finite(statistic(sums_C - rows))
        below = (np.mean(drawn_R < value) + np.mean(drawn_R <= value)) / 2  # ties count half
        reach = sqrt(n / (n - 1)) * float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))  # Z for many prompts
        bias = NORMAL.inv_cdf(float(np.clip(below, 0.5 / self.resamples, 1 - 0.5 / self.resamples)))
        pulls_N = jackknife_N.mean() - jackknife_N
        spread = float((pulls_N**2).sum())
        acceleration = float((pulls_N**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
        low, high = (
            float(np.quantile(drawn_R, NORMAL.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))))
            for z in (-reach, reach)
        )
        return Estimate(value, low, high, n)

    def ratio(self, tops_N: ArrayLike, bottoms_N: ArrayLike) -> Estimate | None:
        """Sum of `tops` over sum of `bottoms`; None if the latter is 0."""
        return self(np.column_stack([tops_N, bottoms_N]), lambda sums: sums[..., 0] / sums[..., 1])

    def mean(self, values_N: ArrayLike) -> Estimate:
        """Mean of one value per prompt."""
        values = np.asarray(values_N, dtype=np.float64)
        estimate = self.ratio(values, np.ones_like(values))
        if estimate is None:
            raise ValueError("the values are not all finite")
        return estimate

    def difference(
        self, first_tops_N: ArrayLike, first_bottoms_N: ArrayLike, second_tops_N: ArrayLike, second_bottoms_N: ArrayLike
    ) -> Estimate | None:
        """Paired difference of two ratios of sums, first - second, over the same prompts."""
        rows = np.column_stack([first_tops_N, first_bottoms_N, second_tops_N, second_bottoms_N])
        return self(rows, lambda sums: sums[..., 0] / sums[..., 1] - sums[..., 2] / sums[..., 3])

    def quotient(
        self, first_tops_N: ArrayLike, first_bottoms_N: ArrayLike, second_tops_N: ArrayLike, second_bottoms_N: ArrayLike
    ) -> Estimate | None:
        """Paired quotient of two ratios of sums, first / second, over the same prompts."""
        rows = np.column_stack([first_tops_N, first_bottoms_N, second_tops_N, second_bottoms_N])
        return self(rows, lambda sums: (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3]))


def _finite(values: Array) -> Array:
    return values[np.isfinite(values)]


@lru_cache(maxsize=4)
def _weights(n: int, resamples: int, seed: int) -> Array:
    """How often each prompt is in each resample, [R, N]."""
    rng = np.random.default_rng([seed, n])
    weights_RN = np.empty((resamples, n))
    for row_N in weights_RN:
        row_N[:] = np.bincount(rng.integers(n, size=n), minlength=n)
    return weights_RN
