"""REINFORCE++ on the head's weights, from records without a vocabulary axis (paper, section 4; method.md 4).

Maximised: `E_{x~v}[R(x)] + lambda * E[mean_t (1 - TV(q_t, v_t))]`, where `v = w*p + (1-w)*q` is the law of a judged
token. As `log v(x) = log(w*p(x) + (1-w)*q(x))` and `TV(q, v) = w*TV(p, q)`, a position needs only its features,
`p(x)`, `q(x)` and `TV(p, q)`.

Shapes: N judged positions of all sequences, one after the other; S sequences = P prompts x K rollouts; D features.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from diversed.verifier import Head

__all__ = ["Batch", "Losses", "advantages", "losses"]

EPSILON = 1e-6  # in the division by the batch's standard deviation


def advantages(reward_PK: Tensor) -> Tensor:
    """Reward minus the prompt's mean, over the standard deviation of these in the whole batch, [P, K] float32.

    Zero where all rollouts of a prompt are equally good: such a prompt teaches nothing about reward. A single rollout
    (K = 1) has no others of its prompt: it is compared with the batch's mean.
    """
    reward_PK = reward_PK.double()  # in float32, equal rewards would leave a rounding error to be blown up
    if reward_PK.shape[1] == 1:
        centred_PK = reward_PK - reward_PK.mean()
    else:
        centred_PK = reward_PK - reward_PK.mean(1, keepdim=True)
    if centred_PK.numel() < 2:  # an epoch's last prompt may be alone
        return torch.zeros_like(centred_PK, dtype=torch.float32)
    return (centred_PK / (centred_PK.std() + EPSILON)).float()


@dataclass(frozen=True, slots=True)
class Batch:
    """The judged positions of S sequences, and what each counts for."""

    features_ND: Tensor
    p_N: Tensor  # target's probability of the emitted token
    q_N: Tensor  # draft's
    tv_N: Tensor  # TV(p, q)
    w_N: Tensor  # weight on the target under which the token was drawn
    advantage_N: Tensor  # of the position's sequence
    share_N: Tensor  # 1 / (S * judged positions of its sequence): a sum of these is a mean over sequences of means

    @classmethod
    def of(
        cls,
        features_ND: Tensor,
        p_N: Tensor,
        q_N: Tensor,
        tv_N: Tensor,
        w_N: Tensor,
        lengths_S: Tensor,
        reward_PK: Tensor,
    ) -> Self:
        """`lengths_S`: judged positions of each sequence, S = P*K in the order of `reward_PK`; 0 is allowed."""
        share_S = 1 / (len(lengths_S) * lengths_S.clamp_min(1))
        advantage_S = advantages(reward_PK).flatten()
        of_sequence = (value_S.float().repeat_interleave(lengths_S) for value_S in (advantage_S, share_S))
        return cls(features_ND, p_N, q_N, tv_N, w_N, *of_sequence)

    def to(self, device: torch.device) -> Self:
        return type(self)(*(getattr(self, name).to(device) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars; `total` is what to minimise."""

    total: Tensor
    policy: Tensor
    acceptance: Tensor  # mean over sequences of the mean 1 - w*TV(p, q)


def losses(head: Head, batch: Batch, lam: float, clip_ratio: float | None = None) -> Losses:
    """`-mean_i A_i * mean_t log v(x_t) - lam * mean_i mean_t (1 - w_t*TV_t)`, t over sequence i's judged positions.

    With `clip_ratio` the policy term is PPO's, on the ratio `v(x)/v_old(x)`: for further passes over the same rollouts.
    At the weights they were drawn with, its gradient is the same.
    """
    w_N = head(batch.features_ND)
    v_N = _mixture(w_N, batch)
    if clip_ratio is None:
        gain_N = batch.advantage_N * v_N.log()
    else:
        ratio_N = v_N / _mixture(batch.w_N, batch)
        clipped_N = ratio_N.clamp(1 - clip_ratio, 1 + clip_ratio)
        gain_N = torch.minimum(batch.advantage_N * ratio_N, batch.advantage_N * clipped_N)
    policy = -(batch.share_N * gain_N).sum()
    acceptance = (batch.share_N * (1 - w_N * batch.tv_N)).sum()
    return Losses(policy - lam * acceptance, policy, acceptance)


def _mixture(w_N: Tensor, batch: Batch) -> Tensor:
    """v(x), positive for a token that was drawn; the bound only keeps a rounding to zero from becoming infinite."""
    return (w_N * batch.p_N + (1 - w_N) * batch.q_N).clamp_min(torch.finfo(torch.float32).tiny)
