"""The rules that DIVERSED is compared with (method.md 6), each a few lines on tensors.

Most are strict verification against a surrogate of the target, `pi`, or accept what a threshold lets pass. A rule's
fields are its parameters, with the defaults of their sources; `decode.parameters` sets them by name.

Shapes: V vocabulary, X drafted tokens; laws [..., V], drafted tokens [..., X]. p target law, q draft law, p0 and q0 the
same before temperature and filters.
"""

import importlib
import math
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from diversed.errors import ConfigError
from diversed.settings import DecodeSettings, Method
from diversed.verification.laws import residual, total_variation
from diversed.verification.rules import STRICT, Laws, Rule, accept_probability

__all__ = ["RULES", "Repaired", "rule_of"]


class Fallback(StrEnum):
    """What stands in for a token that a threshold did not let pass."""

    ARGMAX = "argmax"
    SAMPLE = "sample"


# -- lossy speculative decoding ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lossy(Rule):
    """Accept with `min(1, p / ((1 - alpha) q))`, replace from `norm((p/beta - q)+)`.

    At temperature 0 whatever the target holds likely is kept: `p0(x) >= (1 - alpha) max p0`.
    """

    alpha: float = 0.5
    beta: float = 1.0

    @property
    def untempered(self) -> bool:
        return True

    def accept(self, laws: Laws) -> Tensor:
        bounded = laws.of_x(laws.p) / max(1 - self.alpha, torch.finfo(laws.p.dtype).tiny)
        q_x = laws.of_x(laws.q)
        return torch.where(q_x <= bounded, 1.0, bounded / q_x)

    def replacement(self, laws: Laws) -> Tensor:
        return _or_p(residual(laws.p / self.beta, laws.q), laws)

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        best_1, at_1 = laws.p0.max(-1, keepdim=True)
        return laws.of_x(laws.p0) >= (1 - self.alpha) * best_1, at_1


@dataclass(frozen=True, slots=True)
class Mentored(Rule):
    """The law nearest to q, in total variation, among those with KL(p || out) <= divergence.

    Its optimum is q held between two multiples of p, `out = clip(q, p/b, p*a)`: per position `a` spends the divergence
    and `b` makes the sum 1. Accept with `min(1, a p/q)`, replace from `norm((p/b - q)+)`.
    """

    divergence: float = 0.1

    def accept(self, laws: Laws) -> Tensor:
        a_1, _ = self._bounds(laws)
        bounded = laws.of_x(laws.p) * a_1.to(laws.p.dtype)
        q_x = laws.of_x(laws.q)
        return torch.where(q_x <= bounded, 1.0, bounded / q_x)

    def replacement(self, laws: Laws) -> Tensor:
        _, s_1 = self._bounds(laws)
        return _or_p(residual(laws.p * s_1.to(laws.p.dtype), laws.q), laws)

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        a_1, s_1 = (bound_1.to(laws.p.dtype) for bound_1 in self._bounds(laws))
        best_1 = torch.minimum(torch.maximum(laws.q, laws.p * s_1), laws.p * a_1).argmax(-1, keepdim=True)
        return laws.x == best_1, best_1

    def _bounds(self, laws: Laws) -> tuple[Tensor, Tensor]:
        """`a` and `1/b`, [..., 1] float64. KL(p || out) grows with `a`, so bisection finds it."""
        p, q = laws.p.double(), laws.q.double()
        ratio, order = (q / p.clamp_min(torch.finfo(torch.float64).tiny)).sort(-1)
        p_sorted, q_sorted = p.gather(-1, order), q.gather(-1, order)
        p_sum, q_sum = p_sorted.cumsum(-1), q_sorted.cumsum(-1)
        filled = ratio * p_sum - q_sum  # what lifting the first k ratios to the k-th one takes

        def lift(a_1: Tensor) -> Tensor:
            """The multiple of p up to which the mass taken above `a p` fills q: [..., 1]."""
            mass_1 = (q - a_1 * p).clamp_min(0).sum(-1, keepdim=True)
            k_1 = ((filled <= mass_1).sum(-1, keepdim=True) - 1).clamp_min(0)
            return (mass_1 + q_sum.gather(-1, k_1)) / p_sum.gather(-1, k_1).clamp_min(1e-300)

        def spent(a_1: Tensor) -> Tensor:
            out = torch.minimum(torch.maximum(q, p * lift(a_1)), p * a_1)
            return torch.where(p > 0, p * (p / out.clamp_min(1e-300)).log(), 0.0).sum(-1, keepdim=True)

        low = torch.zeros_like(p[..., :1])  # log a
        high = torch.full_like(low, 60.0)
        for _ in range(60):
            middle = (low + high) / 2
            fits = spent(middle.exp()) <= self.divergence
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        a_1 = low.exp()
        return a_1, torch.minimum(lift(a_1), a_1)


# -- strict verification against a surrogate -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surrogate(Rule):
    """Strict verification against `pi`, which stands in for p."""

    @property
    def untempered(self) -> bool:
        return True

    def pi(self, laws: Laws) -> Tensor:
        """The law that is emitted, [..., V]."""
        raise NotImplementedError

    def accept(self, laws: Laws) -> Tensor:
        return accept_probability(laws.of_x(self.pi(laws)), laws.of_x(laws.q), 1.0)

    def replacement(self, laws: Laws) -> Tensor:
        return _or_p(residual(self.pi(laws), laws.q), laws)

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        best_1 = self.pi(laws).argmax(-1, keepdim=True)
        return laws.x == best_1, best_1


@dataclass(frozen=True, slots=True)
class Chow(Surrogate):
    """SpecCascade: defer to the draft where it is sure, `max q0 >= 1 - alpha`."""

    alpha: float = 0.5

    def pi(self, laws: Laws) -> Tensor:
        return torch.where(laws.q0.amax(-1, keepdim=True) >= 1 - self.alpha, laws.q, laws.p)


@dataclass(frozen=True, slots=True)
class Diff(Surrogate):
    """SpecCascade: defer to the draft where it is about as sure as the target, `max q0 >= max p0 - alpha`."""

    alpha: float = 0.0

    def pi(self, laws: Laws) -> Tensor:
        limit_1 = laws.p0.amax(-1, keepdim=True) - self.alpha
        return torch.where(laws.q0.amax(-1, keepdim=True) >= limit_1, laws.q, laws.p)


@dataclass(frozen=True, slots=True)
class Opt(Surrogate):
    """SpecCascade's optimal rule: defer to the draft where `max q0 >= max p0 - alpha TV(p, q)`."""

    alpha: float = 0.5

    def pi(self, laws: Laws) -> Tensor:
        tv_1 = total_variation(laws.p, laws.q)[..., None]
        limit_1 = laws.p0.amax(-1, keepdim=True) - self.alpha * tv_1
        return torch.where(laws.q0.amax(-1, keepdim=True) >= limit_1, laws.q, laws.p)


@dataclass(frozen=True, slots=True)
class Token(Surrogate):
    """SpecCascade token by token: the draft keeps its tokens in T, the rest of its mass goes to p.

    `pi = q 1_T + (1 - q(T)) p`.
    """

    alpha: float = 0.5

    def kept(self, laws: Laws) -> Tensor:
        """The set T, [..., V] bool."""
        raise NotImplementedError

    def pi(self, laws: Laws) -> Tensor:
        kept_q_V = laws.q * self.kept(laws)
        return kept_q_V + (1 - kept_q_V.sum(-1, keepdim=True)).clamp_min(0) * laws.p


@dataclass(frozen=True, slots=True)
class TokenV1(Token):
    """T: `q0(v) >= max p0 - alpha`."""

    def kept(self, laws: Laws) -> Tensor:
        return laws.q0 >= laws.p0.amax(-1, keepdim=True) - self.alpha


@dataclass(frozen=True, slots=True)
class TokenV2(Token):
    """T: `p0(v) >= max p0 - alpha`."""

    def kept(self, laws: Laws) -> Tensor:
        return laws.p0 >= laws.p0.amax(-1, keepdim=True) - self.alpha


@dataclass(frozen=True, slots=True)
class TokenV3(Token):
    """T: `p0(v) >= (1 - alpha) max p0`."""

    def kept(self, laws: Laws) -> Tensor:
        return laws.p0 >= (1 - self.alpha) * laws.p0.amax(-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Fuzzy(Surrogate):
    """Fuzzy speculative decoding, reduced: `pi` is q where the laws are near, JS(p, q) <= threshold (in nats)."""

    threshold: float = 0.1

    def pi(self, laws: Laws) -> Tensor:
        middle_V = (laws.p + laws.q) / 2
        p_1, q_1 = (torch.xlogy(law, law / middle_V.clamp_min(1e-38)).sum(-1, keepdim=True) for law in (laws.p, laws.q))
        return torch.where((p_1 + q_1) / 2 <= self.threshold, laws.q, laws.p)


# -- thresholds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Threshold(Rule):
    """Accept, always, what the target's law lets pass; else emit the target's best token, or a draw from p."""

    def passes(self, p_V: Tensor) -> Tensor:
        """Which tokens pass, [..., V] bool."""
        raise NotImplementedError

    def fallback_law(self, p_V: Tensor) -> Tensor:
        return one_hot(p_V.argmax(-1), p_V.shape[-1]).to(p_V.dtype)

    def accept(self, laws: Laws) -> Tensor:
        return self.passes(laws.p).gather(-1, laws.x).to(laws.p.dtype)

    def replacement(self, laws: Laws) -> Tensor:
        is_drafted_1 = laws.q.sum(-1, keepdim=True) > 0
        return torch.where(is_drafted_1, self.fallback_law(laws.p), laws.p)

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        return self.accept(laws) > 0, laws.p.argmax(-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class Typical(Threshold):
    """Medusa's typical acceptance: `p(x) > min(epsilon, delta exp(-H(p)))`."""

    epsilon: float = 0.09
    delta: float = 0.3
    fallback: Fallback = Fallback.ARGMAX

    def passes(self, p_V: Tensor) -> Tensor:
        entropy_1 = -torch.xlogy(p_V, p_V).sum(-1, keepdim=True)
        return p_V > (self.delta * (-entropy_1).exp()).clamp_max(self.epsilon)

    def fallback_law(self, p_V: Tensor) -> Tensor:
        return p_V if self.fallback is Fallback.SAMPLE else Threshold.fallback_law(self, p_V)


@dataclass(frozen=True, slots=True)
class TrtLlm(Threshold):
    """TensorRT-LLM's relaxed acceptance: x among the target's `top` likeliest, and `p(x) >= max p - delta`."""

    top: float = 10
    delta: float = 0.6

    def passes(self, p_V: Tensor) -> Tensor:
        best_K = p_V.topk(min(int(self.top), p_V.shape[-1]), -1)
        is_top_V = torch.zeros_like(p_V, dtype=torch.bool).scatter_(-1, best_K.indices, True)
        return is_top_V & (p_V >= p_V.amax(-1, keepdim=True) - self.delta)


@dataclass(frozen=True, slots=True)
class Cactus(Rule):
    """CACTUS: x is accepted as if its probability were `h = min(1, p + sqrt(2 delta p (1 - p)))`.

    A rejected x is replaced from `norm((H_x - q)+)`, where H_x gives x the probability h and scales the others.
    """

    delta: float = 0.1

    @property
    def replaces_by_token(self) -> bool:
        return True

    def _boosted(self, p: Tensor) -> Tensor:
        return (p + (2 * self.delta * p * (1 - p)).clamp_min(0).sqrt()).clamp_max(1)

    def accept(self, laws: Laws) -> Tensor:
        return accept_probability(self._boosted(laws.of_x(laws.p)), laws.of_x(laws.q), 1.0)

    def replacement(self, laws: Laws) -> Tensor:
        x_1 = laws.x
        p_1 = laws.of_x(laws.p)
        h_1 = self._boosted(p_1)
        rest_1 = (1 - h_1) / (1 - p_1).clamp_min(torch.finfo(laws.p.dtype).tiny)
        return _or_p(residual((laws.p * rest_1).scatter(-1, x_1, h_1), laws.q), laws)

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        """A one-hot p is boosted nowhere: strict."""
        best_1 = laws.p.argmax(-1, keepdim=True)
        return laws.x == best_1, best_1


# -- what wraps a rule ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repaired(Rule):
    """A rule OR strict, with strict's replacement: on the frontier, whatever the rule (method.md 5.6)."""

    rule: Rule = STRICT

    @property
    def untempered(self) -> bool:
        return self.rule.untempered

    def accept(self, laws: Laws) -> Tensor:
        return torch.maximum(self.rule.accept(laws), accept_probability(laws.of_x(laws.p), laws.of_x(laws.q), 1.0))

    def greedy(self, laws: Laws) -> tuple[Tensor, Tensor]:
        best_1 = laws.p.argmax(-1, keepdim=True)
        return self.rule.greedy(laws)[0] | (laws.x == best_1), best_1


@dataclass(frozen=True, slots=True)
class Truncated(Rule):
    """No drafts: the target's law cut to what typical acceptance lets pass, which truncation rules are to be held
    against: what they gain in quality may be the truncation's."""

    epsilon: float = 0.09
    delta: float = 0.3

    def autoregressive(self, p_V: Tensor) -> Tensor:
        kept_V = p_V * Typical(Method.TYPICAL, epsilon=self.epsilon, delta=self.delta).passes(p_V)
        return torch.where(kept_V.sum(-1, keepdim=True) > 0, kept_V, p_V)


def _or_p(law_V: Tensor, laws: Laws) -> Tensor:
    """`law`, but p where nothing was drafted, or where `law` has no mass."""
    is_drafted_1 = (laws.q.sum(-1, keepdim=True) > 0) & (law_V.sum(-1, keepdim=True) > 0)
    return torch.where(is_drafted_1, law_V, laws.p)


# -- by name -------------------------------------------------------------------------------------------------------

# `custom` names a class of the user's own: `decode.parameters` has `rule=MODULE.CLASS`.
RULES: dict[Method, type[Rule]] = {
    Method.LOSSY: Lossy,
    Method.CHOW: Chow,
    Method.DIFF: Diff,
    Method.OPT: Opt,
    Method.TOKEN_V1: TokenV1,
    Method.TOKEN_V2: TokenV2,
    Method.TOKEN_V3: TokenV3,
    Method.TYPICAL: Typical,
    Method.CACTUS: Cactus,
    Method.FUZZY: Fuzzy,
    Method.TRT_LLM: TrtLlm,
    Method.MENTORED: Mentored,
    Method.TRUNCATED: Truncated,
}

# What a parameter may be, whatever the rule.
BOUNDS: dict[str, tuple[float, float]] = {
    "alpha": (-1, 1),
    "beta": (1, math.inf),
    "delta": (0, math.inf),
    "epsilon": (0, 1),
    "threshold": (0, math.inf),
    "top": (1, math.inf),
    "divergence": (0, math.inf),
}


def rule_of(decode: DecodeSettings) -> Rule:
    """The rule that `decode` names, with its parameters. ConfigError for one that the rule does not have."""
    method = Method(decode.method)  # a copy of settings with changes is not validated, and may hold its text
    family = {
        Method.AUTOREGRESSIVE: 1.0,
        Method.STRICT: 1.0,
        Method.DRAFT_ONLY: 0.0,
        Method.STATIC: decode.weight,
        Method.DIVERSED: None,
    }
    if method in family:
        relaxed = method in (Method.STATIC, Method.DIVERSED)
        _refuse_unknown(decode, set())
        if decode.repaired:
            raise ConfigError(f"decode.repaired: method {method.value!r} needs no repair; leave it out")
        return Rule(method, family[method], decode.cap if relaxed else math.inf)
    kind = _imported(decode) if method is Method.CUSTOM else RULES[method]
    rule = kind(method, **_parameters(decode, kind))
    return Repaired(method, rule=rule) if decode.repaired else rule


def _imported(decode: DecodeSettings) -> type[Rule]:
    """The class that `rule=MODULE.CLASS` names."""
    path = str(decode.parameters.get("rule", ""))
    module, _, name = path.rpartition(".")
    where = f"decode.parameters.rule = {path!r}"
    try:
        kind = getattr(importlib.import_module(module), name) if module else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: {error}; give MODULE.CLASS of a rule that Python finds (PYTHONPATH)") from error
    if not (isinstance(kind, type) and issubclass(kind, Rule) and is_dataclass(kind)):
        raise ConfigError(f"{where}: is no rule; give MODULE.CLASS of a dataclass below diversed.verification.Rule")
    return kind


def _parameters(decode: DecodeSettings, kind: type[Rule]) -> dict[str, Any]:
    """`decode.parameters`, each checked against its bounds; of a custom rule, any number or text."""
    own = {field.name for field in fields(kind)} - {field.name for field in fields(Rule)}
    if Method(decode.method) is Method.CUSTOM:
        _refuse_unknown(decode, own | {"rule"})
        return {name: value for name, value in decode.parameters.items() if name != "rule"}
    _refuse_unknown(decode, own)
    values: dict[str, Any] = {}
    for name, value in decode.parameters.items():
        where = f"decode.parameters.{name} = {value!r}"
        if name == "fallback":
            if value not in list(Fallback):
                raise ConfigError(f"{where}: must be one of {', '.join(Fallback)}")
            values[name] = Fallback(str(value))
            continue
        low, high = BOUNDS[name]
        if isinstance(value, str) or not low <= value <= high:
            raise ConfigError(f"{where}: must be a number from {low:g} to {high:g}")
        values[name] = value
    return values


def _refuse_unknown(decode: DecodeSettings, own: set[str]) -> None:
    for name in decode.parameters:
        if name not in own:
            known = f"it has {', '.join(sorted(own))}" if own else "it has none"
            raise ConfigError(
                f"decode.parameters.{name}: not a parameter of method {Method(decode.method).value!r}; {known}"
            )
