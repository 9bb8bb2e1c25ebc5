"""Rollouts: prompts through the engine under the current head, and what the learner and the curves need of them.

The tokens the engine emits at judged positions (accepted or replaced, EOS included) are exactly v-distributed. Bonus
tokens are not (their law is p), nor does the weight at their positions matter, so they are left out here.

Shapes: S sequences = P prompts x K rollouts, prompt by prompt; N judged positions of all of them; D features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from diversed.decoding import Generation, Request
from diversed.evaluation.metrics import METRICS, RATES, ExampleResult, Metric, example_result
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, Method, Settings
from diversed.tasks import Example, Task
from diversed.training.learner import Batch

__all__ = ["CURVES", "Pool", "batch_of", "requests_for", "results_of", "rollout_decode"]

POOLED = (
    "token_acceptance", "acceptance_rate", "block_efficiency", "drafted_per_round", "accepted_per_round", "mean_weight",
    "total_variation", "output_tokens",
)  # fmt: skip
# What the training curves show, each a sum over a sum of rollouts. The last ones tell a collapse from a success: empty
# and looping texts are the fastest of all.
CURVES: dict[str, Metric] = {
    "reward": Metric(lambda r: r.quality, lambda _: 1, "mean reward"),
    **{name: METRICS[name] for name in POOLED},
    **{name: Metric(is_so, lambda _: 1, f"share of rollouts: {name}") for name, is_so in RATES.items()},
    "longest_repeat": Metric(lambda r: r.longest_repeat, lambda r: r.tokens, "tokens of the longest loop / tokens"),
}


def rollout_decode(settings: Settings) -> DecodeSettings:
    """How training decodes: DIVERSED at the training temperature, uncapped, since only then is v the tokens' law."""
    changes = {
        "method": Method.DIVERSED,
        "temperature": settings.train.temperature,
        "cap": math.inf,
        "batch_size": settings.train.batch_size,
    }
    return settings.decode.model_copy(update=changes)


def training_seed(settings: Settings) -> int:
    """Root of all that is random in a training run. Which prompts it trains on is not: that is `settings.seed`'s."""
    repeat = settings.train.repeat
    return derive_seed(settings.seed, "repeat", repeat) if repeat else settings.seed


def requests_for(examples: Sequence[Example], settings: Settings, pair: Pair, epoch: int) -> list[Request]:
    """K requests per example, prompt by prompt. Seeds depend on nothing but the run's seed, epoch, example and k."""
    decode, task = rollout_decode(settings), settings.task
    requests = []
    for example in examples:
        prompt_ids = pair.encode(example.prompt, task.chat_template)
        for k in range(settings.train.rollouts):
            seed = derive_seed(training_seed(settings), task.name, "train", epoch, example.id, k)
            requests.append(Request.of(prompt_ids, task.max_new_tokens, seed, decode))
    return requests


def results_of(
    generations: Sequence[Generation], examples: Sequence[Example], settings: Settings, pair: Pair, task: Task
) -> list[ExampleResult]:
    """Each rollout's text and counts; its `quality` is the reward."""
    decode, K = rollout_decode(settings), settings.train.rollouts
    results = []
    for i, generation in enumerate(generations):
        example, text = examples[i // K], pair.decode(generation.tokens, decode.stop)
        reward = task.reward(example, text)
        results.append(example_result(example.id, i % K, decode.method, generation, text, reward, decode.draft_length))
    return results


def batch_of(generations: Sequence[Generation], results: Sequence[ExampleResult], rollouts: int) -> Batch:
    """The learner's batch: judged positions of generations with collected features, and the results' rewards."""
    judged = [generation.mask_T.bool() for generation in generations]

    def joined(name: str) -> torch.Tensor:
        return torch.cat([getattr(each, name)[mask_T] for each, mask_T in zip(generations, judged, strict=True)])

    lengths_S = torch.tensor([int(mask_T.sum()) for mask_T in judged])
    reward_PK = torch.tensor([result.quality for result in results], dtype=torch.float64).view(-1, rollouts)
    return Batch.of(
        joined("features_TD"), joined("p_T"), joined("q_T"), joined("tv_T"), joined("w_T"), lengths_S, reward_PK
    )


@dataclass(slots=True)
class Pool:
    """Rollouts of one or more updates, pooled into the numbers of the curves."""

    results: list[ExampleResult] = field(default_factory=list)
    overlap: float = 0.0  # sum of 1 - w*TV over judged positions

    def add(self, results: Sequence[ExampleResult], batch: Batch) -> None:
        self.results.extend(results)
        self.overlap += float((1 - batch.w_N * batch.tv_N).double().sum())

    def metrics(self) -> dict[str, float]:
        """`CURVES` and `expected_acceptance`, mean of 1 - w*TV; a number whose denominator is 0 is left out."""
        sums = {
            name: (sum(metric.top(r) or 0 for r in self.results), sum(metric.bottom(r) or 0 for r in self.results))
            for name, metric in CURVES.items()
        }
        sums["expected_acceptance"] = (self.overlap, sum(result.verified for result in self.results))
        return {name: float(top / bottom) for name, (top, bottom) in sums.items() if bottom}
