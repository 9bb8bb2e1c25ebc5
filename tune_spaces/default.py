"""The default space: how much acceptance is worth, how fast to learn it, how far to draft, where to start.

It is laid around the settings, and its first point is the settings themselves.
"""

from ray import tune

from diversed.settings import Settings
from diversed.tuning.space import Space

__all__ = ["space"]

LAMBDAS = (0.05, 3.0)  # the paper uses .1 to .5; above 3 acceptance outweighs any reward
DRAFT_LENGTHS = (3, 5, 7)  # the paper's
INITIAL_WEIGHTS = (0.3, 0.9)


def space(settings: Settings) -> Space:
    rate = settings.train.learning_rate
    return Space(
        domains={
            "train.lam": tune.loguniform(*LAMBDAS),
            "train.learning_rate": tune.loguniform(rate / 4, rate * 2),
            "decode.draft_length": tune.choice(sorted({*DRAFT_LENGTHS, settings.decode.draft_length})),
            "verifier.initial_weight": tune.uniform(*INITIAL_WEIGHTS),
        },
        first={
            "train.lam": _clip(settings.train.lam, LAMBDAS),
            "train.learning_rate": rate,
            "decode.draft_length": settings.decode.draft_length,
            "verifier.initial_weight": _clip(settings.verifier.initial_weight, INITIAL_WEIGHTS),
        },
    )


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
