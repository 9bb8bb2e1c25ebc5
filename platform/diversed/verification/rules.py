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

    ACCEPTED = 1
    REPLACEMENT = 2
    BONUS = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """A method and its parameters. `weight` None: the weight is learned, and given per position.

    Its three functions are all that a verification asks of a rule: another rule is a subclass with other ones.
    """

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

    def accept(self, p_BNV: Tensor, q_BNV: Tensor, x_BN: Tensor, w_BN: Tensor | float) -> Tensor:
        """P(accept) of the drafted tokens, [B, N]; `w` is `weight`, or what was learned."""
        x_BN1 = x_BN[..., None]
        p_x_BN, q_x_BN = p_BNV.gather(-1, x_BN1).squeeze(-1), q_BNV.gather(-1, x_BN1).squeeze(-1)
        return accept_probability(p_x_BN, q_x_BN, w_BN, self.cap)

    def replacement(self, p_BV: Tensor, q_BV: Tensor) -> Tensor:
        """The law of the token in a rejected one's place, [B, V]; where q = 0 (nothing was drafted) it must be p."""
        return residual(p_BV, q_BV)

    def greedy_law(self, p_BNV: Tensor, q_BNV: Tensor, w_BN: Tensor | float) -> Tensor:
        """What a greedy row takes the argmax of: `min(v, c*p)`, not normalised, [B, N, V]."""
        w_BN1 = w_BN if isinstance(w_BN, float) else w_BN[..., None]
        v_BNV = w_BN1 * p_BNV + (1 - w_BN1) * q_BNV
        return v_BNV if self.cap == math.inf else torch.minimum(v_BNV, self.cap * p_BNV)


STRICT = Rule(Method.STRICT, 1.0)


@dataclass(slots=True)
class Verdict:
    """What one verification decides. Columns past the accepted tokens and the one after them hold no meaning."""

    tokens_BM: Tensor  # emitted tokens: the accepted ones, then one replacement or bonus
    accepted_B: Tensor
    drafted_B: Tensor  # tokens that were up for verification
    p_BM: Tensor  # p of the emitted token
    q_BM: Tensor  # q of the emitted token; 0 at a bonus
    tv_BM: Tensor  # TV(p, q) at the position; 0 at a bonus
    w_BM: Tensor  # weight used; 1 at a bonus (its law is p)

    def cpu(self) -> "Verdict":
        """On the CPU, in one transfer: the one time in a round that the host waits for the device."""
        if self.tokens_BM.device.type == "cpu":
            return self
        values = [getattr(self, name) for name in self.__slots__]
        flat = torch.cat([value.reshape(-1).double() for value in values]).cpu()  # float64 holds token ids exactly
        parts = flat.split([value.numel() for value in values])
        return Verdict(*(part.to(value.dtype).view(value.shape) for part, value in zip(parts, values, strict=True)))


def accept_probability(p: Tensor, q: Tensor, w: Tensor | float, cap: float = math.inf) -> Tensor:
    """P(accept) of a token with probabilities `p` and `q`; elementwise, any broadcastable shapes.

    `q` = 0 (a token that cannot be drafted) gives 1, by continuity of the first branch; the other branch's 0/0 is not
    looked at.
    """
    bounded = p if isinstance(w, float) and w == 1 else w * p + (1 - w) * q
    if cap != math.inf:
        bounded = torch.minimum(bounded, cap * p)
    return torch.where(q <= p, 1.0, bounded / q)


def output_law(p_V: Tensor, q_V: Tensor, w: float, cap: float = math.inf) -> Tensor:
    """Exact law of the emitted token, [..., V]: `q*a + (1 - sum q*a) * norm((p-q)+)`."""
    kept_V = q_V * accept_probability(p_V, q_V, w, cap)
    return kept_V + (1 - kept_V.sum(-1, keepdim=True)) * residual(p_V, q_V)


def verify(
    p_BMV: Tensor,
    q_BNV: Tensor,
    x_BN: Tensor,
    drafted_B: Tensor,
    rule: Rule,
    coins_BN: Tensor,
    u_BM: Tensor,
    greedy_B: Tensor | None = None,
    w_BN: Tensor | None = None,
) -> Verdict:
    """One round for B rows (method.md 2): accept a prefix of `x`, then emit one replacement or bonus token.

    `drafted_B` <= N tokens of a row are up for verification. `coins_BN` decide acceptance, `u_BM` draws the last
    token; all uniform in [0, 1). Rows of `greedy_B` follow `mixture-argmax`: accept iff `x == argmax v`, replace by
    `argmax v`, bonus `argmax p`. `w_BN` is for a rule whose weight is learned. N = 0 is one autoregressive step.
    """
    N = p_BMV.shape[1] - 1
    if N == 0:
        return _autoregressive_step(p_BMV, u_BM, greedy_B)
    valid_BN = torch.arange(N, device=p_BMV.device) < drafted_B[:, None]
    weight: Tensor | float = 1.0 if rule.weight is None else rule.weight
    if w_BN is not None:
        weight = w_BN

    p_BNV = p_BMV[:, :N]
    accept_BN = coins_BN < rule.accept(p_BNV, q_BNV, x_BN, weight)
    if greedy_B is not None:
        best_BM = torch.cat([rule.greedy_law(p_BNV, q_BNV, weight), p_BMV[:, N:]], 1).argmax(-1)
        # Past the drafted tokens the law is p, as after the last of them.
        best_BM = torch.where(pad(valid_BN, (0, 1)), best_BM, p_BMV.argmax(-1))
        accept_BN = torch.where(greedy_B[:, None], x_BN == best_BM[:, :N], accept_BN)
    accepted_B = (accept_BN & valid_BN).cumprod(-1).sum(-1)

    row_B, last_B1 = torch.arange(len(accepted_B), device=p_BMV.device), accepted_B[:, None]
    # q = 0 after the last drafted token: the residual of p and q is p, which is the bonus token's law.
    q_last_BV = q_BNV[row_B, accepted_B.clamp_max(N - 1)] * (last_B1 < drafted_B[:, None])
    last_token_B1 = draw(rule.replacement(p_BMV[row_B, accepted_B], q_last_BV), u_BM.gather(1, last_B1))[:, None]
    if greedy_B is not None:
        last_token_B1 = torch.where(greedy_B[:, None], best_BM.gather(1, last_B1), last_token_B1)
    tokens_BM = pad(x_BN, (0, 1)).scatter_(1, last_B1, last_token_B1)
    index_BM1 = tokens_BM[..., None]
    return Verdict(
        tokens_BM=tokens_BM,
        accepted_B=accepted_B,
        drafted_B=drafted_B,
        p_BM=p_BMV.gather(-1, index_BM1).squeeze(-1),
        q_BM=pad(q_BNV.gather(-1, index_BM1[:, :N]).squeeze(-1) * valid_BN, (0, 1)),
        tv_BM=pad(total_variation(p_BNV, q_BNV) * valid_BN, (0, 1)),
        w_BM=pad(torch.where(valid_BN, weight, 1.0), (0, 1), value=1.0),
    )


def _autoregressive_step(p_BMV: Tensor, u_BM: Tensor, greedy_B: Tensor | None) -> Verdict:
    """N = 0: one bonus token per row."""
    token_B = draw(p_BMV[:, 0], u_BM[:, :1])
    if greedy_B is not None:
        token_B = torch.where(greedy_B, p_BMV[:, 0].argmax(-1), token_B)
    zero_B1 = torch.zeros_like(p_BMV[..., 0])
    return Verdict(
        tokens_BM=token_B[:, None],
        accepted_B=torch.zeros_like(token_B),
        drafted_B=torch.zeros_like(token_B),
        p_BM=p_BMV[:, 0].gather(-1, token_B[:, None]),
        q_BM=zero_B1,
        tv_BM=zero_B1,
        w_BM=zero_B1 + 1,
    )
