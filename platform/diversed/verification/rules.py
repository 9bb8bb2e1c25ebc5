"""How a drafted token is judged: what a rule is, the paper's family of rules, and the one function that applies them.

Every method of the family is a point (w, c) of the capped ensemble (method.md 5.5): accept `x ~ q` with probability

    a(x) = 1                                     where q(x) <= p(x)
           min(v(x), c * p(x)) / q(x)            elsewhere,   v = w*p + (1-w)*q

and replace a rejected token by a draw from `(p-q)+`, normalised. c = inf gives `1 - w + w*p(x)/q(x)` (DIVERSED,
static), w = 1 or c = 1 gives strict speculative decoding, w = 0 accepts all. All other rules are in `baselines.py`.

Shapes: B rows, N drafted positions, M = N + 1 verified positions (the last one has no draft), V vocabulary.
p target law, q draft law, v verification law, w weight on the target.
"""

import math
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from diversed.settings import Method
from diversed.verification.laws import draw, residual, total_variation

__all__ = [
    "AUDIT",
    "OVERSHOOT",
    "Kind",
    "Laws",
    "Rule",
    "Verdict",
    "accept_probability",
    "audit",
    "emitted_law",
    "is_drafted",
    "verify",
]


class Kind(IntEnum):
    """Where an emitted token comes from."""

    ACCEPTED = 1
    REPLACEMENT = 2
    BONUS = 3


@dataclass(frozen=True, slots=True)
class Laws:
    """What a rule may look at, at any number of positions: laws [..., V], X tokens that may have been drafted [..., X]
    (a verification asks about one, an audit about all), weights [..., 1]."""

    p: Tensor
    q: Tensor
    x: Tensor
    w: Tensor | float = 1.0
    # Before temperature and filters; None where these change nothing.
    untempered_p: Tensor | None = None
    untempered_q: Tensor | None = None

    def of_x(self, law_V: Tensor) -> Tensor:
        """A law's probability of the drafted tokens, [..., X]."""
        return law_V.gather(-1, self.x)

    @property
    def p0(self) -> Tensor:
        return self.p if self.untempered_p is None else self.untempered_p

    @property
    def q0(self) -> Tensor:
        return self.q if self.untempered_q is None else self.untempered_q


@dataclass(frozen=True, slots=True)
class Rule:
    """A method and its parameters. `weight` None: the weight is learned, and given per position.

    Its functions are all that a verification asks of a rule: another rule is a subclass with other ones.
    """

    method: Method
    weight: float | None = 1.0
    cap: float = math.inf

    @property
    def untempered(self) -> bool:
        """Whether it looks at the laws before temperature and filters."""
        return False

    @property
    def replaces_by_token(self) -> bool:
        """Whether the law of a replacement depends on which token was rejected."""
        return False

    def accept(self, laws: Laws) -> Tensor:
        """P(accept) of the drafted tokens, [..., X]."""
        return accept_probability(laws.of_x(laws.p), laws.of_x(laws.q), laws.w, self.cap)

    def replacement(self, laws: Laws) -> Tensor:
        """The law of the token in the place of the one `x`, which was rejected, [..., V]; it need not be normalised.
        It may look at `x` if it `replaces_by_token`.

        Where q = 0 (nothing was drafted) it must be p.
        """
        return residual(laws.p, laws.q)

    def autoregressive(self, p_V: Tensor) -> Tensor:
        """The law of a token for which nothing was drafted because there is no drafter, [..., V]."""
        return p_V

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        """At temperature 0: which tokens are kept, [..., X], and what stands in for those that are not, [..., 1].

        Here `mixture-argmax`: x is kept if it is the argmax of `min(v, c*p)`, else that argmax is emitted.
        """
        v_V = laws.w * laws.p + (1 - laws.w) * laws.q
        best_1 = (v_V if self.cap == math.inf else torch.minimum(v_V, self.cap * laws.p)).argmax(-1, keepdim=True)
        return laws.x == best_1, best_1


STRICT = Rule(Method.STRICT)
DRAFT_ONLY = Rule(Method.DRAFT_ONLY, 0.0)

# What an audit says of a position, all from the exact law `out` that the rule emits there: P(accept), TV(out, p),
# KL(out || p) in nats, the mass of out above OVERSHOOT * p, the gap to the frontier (method.md 5.2), out of the emitted
# token, and max p.
AUDIT = (
    "acceptance",
    "output_tv",
    "output_kl",
    "overshoot_mass",
    "frontier_gap",
    "output_probability",
    "best_probability",
)
OVERSHOOT = 2.0
SMALLEST_P = 1e-12  # in the divergence: a token that a filter bans in the target costs 28 nats, not infinitely many
LARGEST_SQUARE = 4096


@dataclass(slots=True)
class Verdict:
    """What one verification decides. Columns past the accepted tokens and the one after them hold no meaning.

    numbers_BMX are, of each emitted token: p; q, 0 at a bonus; TV(p, q) at its position, 0 at a bonus; the weight used,
    1 at a bonus (its law is p); and if they were asked for the numbers of `AUDIT`, at a bonus as for out = p.
    """

    tokens_BM: Tensor  # emitted tokens: the accepted ones, then one replacement or bonus
    accepted_B: Tensor
    drafted_B: Tensor  # tokens that were up for verification
    numbers_BMX: Tensor

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
    return (bounded / q).masked_fill_(q <= p, 1.0)


def emitted_law(rule: Rule, laws: Laws) -> tuple[Tensor, Tensor]:
    """Exact P(accept) and law of the emitted token under any rule, [...] and [..., V]; `laws.x` is not looked at.

    `out = sum_x q(x) (a(x) 1_x + (1 - a(x)) r_x)`: every token of the vocabulary is tried as the drafted one. Where the
    replacement's law r depends on x that takes V^2 numbers a position.
    """
    V = laws.p.shape[-1]
    x_V = torch.arange(V, device=laws.p.device).expand(laws.p.shape)
    kept_V = laws.q * rule.accept(replace(laws, x=x_V))
    rejected_V = laws.q - kept_V
    if not rule.replaces_by_token:
        law_V = _normalised(rule.replacement(laws))
        return kept_V.sum(-1), kept_V + rejected_V.sum(-1, keepdim=True) * law_V

    def each(law_V: Tensor | None) -> Tensor | None:
        return None if law_V is None else law_V[..., None, :].expand(*laws.p.shape, V)

    each_w = laws.w if isinstance(laws.w, float) else laws.w[..., None]
    every = Laws(each(laws.p), each(laws.q), x_V[..., None], each_w, each(laws.untempered_p), each(laws.untempered_q))  # type: ignore[arg-type]
    return kept_V.sum(-1), kept_V + (rejected_V[..., None] * _normalised(rule.replacement(every))).sum(-2)


def _normalised(law_V: Tensor) -> Tensor:
    return law_V / law_V.sum(-1, keepdim=True)


def audit(rule: Rule, laws: Laws, token_1: Tensor) -> Tensor:
    """What `AUDIT` names, at each position: [..., A]. `token_1` are the emitted tokens, [..., 1].

    A rule that replaces by token takes V^2 numbers a position: over LARGEST_SQUARE, what depends on `out` is NaN.
    """
    p_V, q_V = laws.p, laws.q
    if rule.replaces_by_token and p_V.shape[-1] > LARGEST_SQUARE:
        accepted, out_V = torch.full_like(p_V[..., 0], torch.nan), torch.full_like(p_V, torch.nan)
    else:
        accepted, out_V = emitted_law(rule, laws)
    # The sums of float32 laws differ from 1 by rounding, which would outweigh the small differences looked for here.
    p_V, q_V, out_V = (_normalised(law_V.double()) for law_V in (p_V, q_V, out_V))
    output_tv = total_variation(p_V, out_V)
    columns = {
        "acceptance": accepted.double(),
        "output_tv": output_tv,
        "output_kl": torch.xlogy(out_V, out_V / p_V.clamp_min(SMALLEST_P)).sum(-1),
        "overshoot_mass": (out_V - OVERSHOOT * p_V).clamp_min(0).sum(-1),
        "frontier_gap": 1 - total_variation(p_V, q_V) + output_tv - accepted,
        "output_probability": out_V.gather(-1, token_1).squeeze(-1),
        "best_probability": laws.p.amax(-1).double(),  # as it is, to be compared with p of a token
    }
    return torch.stack([columns[name] for name in AUDIT], -1)


def verify(
    p_BMV: Tensor,
    q_BMV: Tensor,
    x_BN: Tensor,
    drafted_B: Tensor,
    rule: Rule,
    coins_BN: Tensor,
    u_BM: Tensor,
    greedy_B: Tensor | None = None,
    w_BN: Tensor | None = None,
    untempered: tuple[Tensor, Tensor] | None = None,
    audited: bool = False,
) -> Verdict:
    """One round for B rows (method.md 2): accept a prefix of `x`, then emit one replacement or bonus token.

    `drafted_B` <= N tokens of a row are up for verification; behind them `q_BMV` is 0, up to the bonus position that
    nothing is ever drafted for. `coins_BN` decide acceptance, `u_BM` draws the last token; all uniform in [0, 1). Rows
    of `greedy_B` take what the rule's `greedy` says, and as bonus `argmax p`. `w_BN` is for a rule whose weight is
    learned. `untempered` are p_BMV and q_BMV before temperature and filters, where these differ and the rule looks at
    them. `audited` adds the numbers of `AUDIT`. N = 0 is one autoregressive step.
    """
    N = p_BMV.shape[1] - 1
    if N == 0:
        return _autoregressive_step(rule, p_BMV, u_BM, greedy_B, audited)
    weight: Tensor | float = 1.0 if rule.weight is None else rule.weight
    if w_BN is not None:
        weight = w_BN[..., None]
    p0_BMV, q0_BMV = untempered or (None, None)
    laws = Laws(
        p_BMV[:, :N],
        q_BMV[:, :N],
        x_BN[..., None],
        weight,
        None if p0_BMV is None else p0_BMV[:, :N],
        None if q0_BMV is None else q0_BMV[:, :N],
    )
    accept_BN = coins_BN < rule.accept(laws).squeeze(-1)
    if greedy_B is not None:
        keep_BN, best_BN = (values_BN1.squeeze(-1) for values_BN1 in rule.greedy(laws))
        # Past the drafted tokens the law is p, as after the last of them.
        best_BM = p_BMV.argmax(-1)
        best_BM[:, :N] = torch.where(is_drafted(N, drafted_B), best_BN, best_BM[:, :N])
        accept_BN = torch.where(greedy_B[:, None], keep_BN, accept_BN)
    accepted_B = torch.minimum(accept_BN.cumprod(-1).sum(-1), drafted_B)

    at, last_B1 = (_first_integers(p_BMV.shape[0], p_BMV.device), accepted_B), accepted_B[:, None]
    # q = 0 after the last drafted token: what replaces it is drawn from p, which is the bonus token's law.
    last = Laws(
        p_BMV[at],
        q_BMV[at],
        x_BN.gather(1, last_B1.clamp_max(N - 1)) if rule.replaces_by_token else x_BN[:, :1],
        untempered_p=None if p0_BMV is None else p0_BMV[at],
        untempered_q=None if q0_BMV is None else q0_BMV[at],
    )
    last_token_B1 = draw(rule.replacement(last), u_BM.gather(1, last_B1))[:, None]
    if greedy_B is not None:
        last_token_B1 = torch.where(greedy_B[:, None], best_BM.gather(1, last_B1), last_token_B1)
    tokens_BM = torch.cat([x_BN, last_token_B1], 1).scatter_(1, last_B1, last_token_B1)
    index_BM1 = tokens_BM[..., None]
    numbers = [
        p_BMV.gather(-1, index_BM1),
        q_BMV.gather(-1, index_BM1),
        total_variation(p_BMV, q_BMV)[..., None],
        _weights(weight, drafted_B, N),
    ]
    if audited:
        audit_BMA = audit(STRICT, Laws(p_BMV, p_BMV, index_BM1), index_BM1)
        judged_BNA = audit(rule, laws, index_BM1[:, :N])
        audit_BMA[:, :N] = torch.where(is_drafted(N, drafted_B)[..., None], judged_BNA, audit_BMA[:, :N])
        numbers.append(audit_BMA)
    return Verdict(tokens_BM, accepted_B, drafted_B, torch.cat(numbers, -1))


def is_drafted(N: int, drafted_B: Tensor) -> Tensor:
    """Which of N positions hold a token that is up for verification, [B, N]."""
    return _first_integers(N, drafted_B.device) < drafted_B[:, None]


@cache
def _first_integers(count: int, device: torch.device) -> Tensor:
    """0, 1, .. `count` - 1: read only. Kept, since making it takes as long as using it."""
    with torch.inference_mode(mode=False):
        return torch.arange(count, device=device)


@cache
def _ones(B: int, M: int, device: torch.device) -> Tensor:
    """[B, M, 1]: read only."""
    with torch.inference_mode(mode=False):
        return torch.ones(B, M, 1, device=device)


def _weights(weight: Tensor | float, drafted_B: Tensor, N: int) -> Tensor:
    """What was used at each position, [B, M, 1]: 1 where nothing was drafted."""
    ones_BM1 = _ones(len(drafted_B), N + 1, drafted_B.device)
    if isinstance(weight, float):
        return ones_BM1 if weight == 1 else torch.where(is_drafted(N + 1, drafted_B)[..., None], weight, ones_BM1)
    return pad(torch.where(is_drafted(N, drafted_B)[..., None], weight, 1.0), (0, 0, 0, 1), value=1.0)


def _autoregressive_step(rule: Rule, p_BMV: Tensor, u_BM: Tensor, greedy_B: Tensor | None, audited: bool) -> Verdict:
    """N = 0: one bonus token per row."""
    law_BMV = rule.autoregressive(p_BMV)
    token_B = draw(law_BMV[:, 0], u_BM[:, :1])
    if greedy_B is not None:
        token_B = torch.where(greedy_B, p_BMV[:, 0].argmax(-1), token_B)
    token_B11, none_B = token_B[:, None, None], torch.zeros_like(token_B)
    p_B11 = p_BMV.gather(-1, token_B11)
    zero_B11 = torch.zeros_like(p_B11)
    numbers = [p_B11, zero_B11, zero_B11, _ones(len(token_B), 1, token_B.device)]
    if audited:  # the law itself is what is emitted: as if it had been drafted, and nothing rejected
        numbers.append(audit(DRAFT_ONLY, Laws(p_BMV, law_BMV, token_B11, 0.0), token_B11))
    return Verdict(token_B[:, None], none_B, none_B, torch.cat(numbers, -1))
