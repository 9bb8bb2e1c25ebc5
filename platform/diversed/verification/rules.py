"""How a drafted token is judged: one family, one function.

Every method here is a point (w, c) of the capped ensemble (method.md 5.5): accept `x ~ q` with probability

    a(x) = 1                                     where q(x) <= p(x)
           min(v(x), c * p(x)) / q(x)            elsewhere,   v = w*p + (1-w)*q

and replace a rejected token by a draw from `norm((p-q)+)`. c = inf gives `1 - w + w*p(x)/q(x)` (DIVERSED, static),
w = 1 or c = 1 gives strict speculative decoding, w = 0 accepts all.

Shapes: B rows, N drafted positions, M = N + 1 verified positions (the last one has no draft), V vocabulary.
p target law, q draft law, v verification law, w weight on the target.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor
from torch.nn.functional import pad

from diversed.settings import DecodeSettings, Method
from diversed.verification.laws import draw, residual, total_variation

__all__ = ["Kind", "Rule", "Verdict", "accept_probability", "output_law", "verify"]


class Kind(IntEnum):
    """Where an emitted token comes from."""

    NONE = 0
    ACCEPTED = 1
    REPLACEMENT = 2
    BONUS = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """A method and its parameters. `weight` None: the weight is learned, and given per position."""

    method: Method
    weight: float | None
    cap: float = math.inf

    @classmethod
    def of(cls, decode: DecodeSettings) -> "Rule":
        weights = {
            Method.AUTOREGRESSIVE: 1.0,
            Method.STRICT: 1.0,
            Method.DRAFT_ONLY: 0.0,
            Method.STATIC: decode.weight,
            Method.DIVERSED: None,
        }
        relaxed = decode.method in (Method.STATIC, Method.DIVERSED)
        return cls(decode.method, weights[decode.method], decode.cap if relaxed else math.inf)


@dataclass(slots=True)
class Verdict:
    """What one verification decides. Columns past `emitted_B` hold no meaning."""

    tokens_BM: Tensor  # emitted tokens: the accepted ones, then one replacement or bonus
    emitted_B: Tensor  # accepted + 1
    drafted_B: Tensor  # tokens that were up for verification
    kind_BM: Tensor  # Kind of each emitted token
    p_BM: Tensor  # p of the emitted token
    q_BM: Tensor  # q of the emitted token; 0 at a bonus
    tv_BM: Tensor  # TV(p, q) at the position; 0 at a bonus
    w_BM: Tensor  # weight used; 1 at a bonus (its law is p)

    def cpu(self) -> "Verdict":
        return Verdict(*(getattr(self, name).cpu() for name in self.__slots__))


def accept_probability(p: Tensor, q: Tensor, w: Tensor | float, cap: float = math.inf) -> Tensor:
    """P(accept) of a token with probabilities `p` and `q`; elementwise, any broadcastable shapes.

    `q` = 0 (a token that cannot be drafted) gives 1, by continuity of the first branch.
    """
    bounded = w * p + (1 - w) * q
    if cap != math.inf:
        bounded = torch.minimum(bounded, cap * p)
    return torch.where(q <= p, 1.0, bounded / q.clamp_min(torch.finfo(q.dtype).tiny)).clamp(0, 1)


def output_law(p_V: Tensor, q_V: Tensor, w: float, cap: float = math.inf) -> Tensor:
    """Exact law of the emitted token, [..., V]: `q*a + (1 - sum q*a) * norm((p-q)+)`."""
    kept_V = q_V * accept_probability(p_V, q_V, w, cap)
    return kept_V + (1 - kept_V.sum(-1, keepdim=True)) * residual(p_V, q_V)


def verify(
    p_BMV: Tensor,
    q_BNV: Tensor,
    x_BN: Tensor,
    drafted_B: Tensor,
    w_BN: Tensor | float,
    coins_BN: Tensor,
    u_BM: Tensor,
    greedy_B: Tensor | None = None,
    cap: float = math.inf,
) -> Verdict:
    """One round for B rows (method.md 2): accept a prefix of `x`, then emit one replacement or bonus token.

    `drafted_B` <= N tokens of a row are up for verification. `coins_BN` decide acceptance, `u_BM` draws the last
    token; all uniform in [0, 1). Rows of `greedy_B` follow `mixture-argmax`: accept iff `x == argmax v`, replace by
    `argmax v`, bonus `argmax p`. N = 0 is one autoregressive step.
    """
    B, M, V = p_BMV.shape
    N = M - 1
    if N == 0:
        return _autoregressive_step(p_BMV, u_BM, greedy_B)
    column_M = torch.arange(M, device=p_BMV.device)
    valid_BN = column_M[:N] < drafted_B[:, None]
    # q = 0 past the drafted tokens: there the residual of p and q is p, which is the bonus token's law.
    q_BMV = pad(q_BNV * valid_BN[..., None], (0, 0, 0, 1))
    w_BM = pad(torch.where(valid_BN, w_BN, 1.0), (0, 1), value=1.0)

    index_BN1 = x_BN[..., None]
    p_x_BN = p_BMV[:, :N].gather(-1, index_BN1).squeeze(-1)
    q_x_BN = q_BMV[:, :N].gather(-1, index_BN1).squeeze(-1)
    accept_BN = coins_BN < accept_probability(p_x_BN, q_x_BN, w_BM[:, :N], cap)
    if greedy_B is not None:
        v_BMV = _capped_mixture(p_BMV, q_BMV, w_BM, cap)
        best_BM = v_BMV.argmax(-1)
        accept_BN = torch.where(greedy_B[:, None], x_BN == best_BM[:, :N], accept_BN)
    accepted_B = (accept_BN & valid_BN).long().cumprod(-1).sum(-1)

    last_B1 = accepted_B[:, None]
    row_B1V = last_B1[..., None].expand(-1, 1, V)
    last_law_BV = residual(p_BMV.gather(1, row_B1V).squeeze(1), q_BMV.gather(1, row_B1V).squeeze(1))
    last_token_B = draw(last_law_BV, u_BM.gather(1, last_B1).squeeze(1))
    if greedy_B is not None:
        last_token_B = torch.where(greedy_B, best_BM.gather(1, last_B1).squeeze(1), last_token_B)
    tokens_BM = torch.cat([x_BN, x_BN.new_zeros(B, 1)], 1).scatter(1, last_B1, last_token_B[:, None])

    tv_BM = total_variation(p_BMV, q_BMV) * (column_M < drafted_B[:, None])
    last_kind_B = torch.where(accepted_B < drafted_B, int(Kind.REPLACEMENT), int(Kind.BONUS))
    kind_BM = torch.where(
        column_M < last_B1, int(Kind.ACCEPTED), torch.where(column_M == last_B1, last_kind_B[:, None], int(Kind.NONE))
    )
    return Verdict(
        tokens_BM=tokens_BM,
        emitted_B=accepted_B + 1,
        drafted_B=drafted_B,
        kind_BM=kind_BM,
        p_BM=p_BMV.gather(-1, tokens_BM[..., None]).squeeze(-1),
        q_BM=q_BMV.gather(-1, tokens_BM[..., None]).squeeze(-1),
        tv_BM=tv_BM,
        w_BM=w_BM,
    )


def _autoregressive_step(p_BMV: Tensor, u_BM: Tensor, greedy_B: Tensor | None) -> Verdict:
    """N = 0: one bonus token per row."""
    token_B = draw(p_BMV[:, 0], u_BM[:, 0])
    if greedy_B is not None:
        token_B = torch.where(greedy_B, p_BMV[:, 0].argmax(-1), token_B)
    zero_B1 = torch.zeros_like(p_BMV[..., 0])
    return Verdict(
        tokens_BM=token_B[:, None],
        emitted_B=torch.ones_like(token_B),
        drafted_B=torch.zeros_like(token_B),
        kind_BM=torch.full_like(token_B, int(Kind.BONUS))[:, None],
        p_BM=p_BMV[:, 0].gather(-1, token_B[:, None]),
        q_BM=zero_B1,
        tv_BM=zero_B1,
        w_BM=zero_B1 + 1,
    )


def _capped_mixture(p_BMV: Tensor, q_BMV: Tensor, w_BM: Tensor, cap: float) -> Tensor:
    """The (unnormalised where capped) verification law `min(v, c*p)` whose argmax a greedy row takes, [B, M, V]."""
    v_BMV = w_BM[..., None] * p_BMV + (1 - w_BM[..., None]) * q_BMV
    return v_BMV if cap == math.inf else torch.minimum(v_BMV, cap * p_BMV)
