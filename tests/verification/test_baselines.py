"""The baselines' golden rows, limits, place under the frontier, and the law of what `verify` emits with them.

The chi-square test uses a fixed seed, so it cannot flicker; its threshold is the .9999 quantile: had the seed been
drawn anew, a right implementation would have failed with probability 1e-4 a rule.
"""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import pad

from diversed.errors import ConfigError
from diversed.settings import DecodeSettings, Method
from diversed.verification import (
    AUDIT,
    RULES,
    Laws,
    Rule,
    audit,
    draw,
    emitted_law,
    rule_of,
    sampling_law,
    total_variation,
    verify,
)

P = torch.tensor([0.50, 0.30, 0.15, 0.05], dtype=torch.float64)
Q = torch.tensor([0.20, 0.50, 0.10, 0.20], dtype=torch.float64)
IS_P, IS_Q = P.tolist(), Q.tolist()


def rule(method: str, repaired: bool = False, **parameters: Any) -> Rule:
    return rule_of(DecodeSettings(method=Method(method), repaired=repaired, parameters=parameters))


def emitted(method: str, p: Tensor = P, q: Tensor = Q, **parameters: Any) -> tuple[float, Tensor]:
    judged = rule(method, **parameters)
    accept, out = emitted_law(judged, Laws(p, q, torch.tensor([0]), judged.weight or 0.0))
    return float(accept), out


REPAIRED = (0.85, [0.3286, 0.50, 0.1214, 0.05])
GOLDEN = [  # method.md 6: rule, parameters, P(accept), law of the emitted token
    ("strict", {}, 0.65, IS_P),
    ("draft-only", {}, 1.0, IS_Q),
    ("lossy", {"alpha": 0.3}, 0.80, [0.3714, 0.4286, 0.1286, 0.0714]),
    ("lossy", {"alpha": 0.5}, 0.90, [0.2857, 0.50, 0.1143, 0.10]),
    ("chow", {"alpha": 0.3}, 0.65, IS_P),
    ("chow", {"alpha": 0.6}, 1.0, IS_Q),
    ("diff", {"alpha": -0.1}, 0.65, IS_P),
    ("diff", {"alpha": 0}, 1.0, IS_Q),
    ("opt", {"alpha": -0.1}, 0.65, IS_P),
    ("opt", {"alpha": 0}, 1.0, IS_Q),
    ("token-v1", {"alpha": 0.1}, 0.80, [0.25, 0.65, 0.075, 0.025]),
    ("token-v1", {"alpha": 0.35}, 0.915, [0.25, 0.53, 0.015, 0.205]),
    ("token-v2", {"alpha": 0.1}, 0.58, [0.60, 0.24, 0.12, 0.04]),
    ("token-v2", {"alpha": 0.35}, 0.76, [0.35, 0.59, 0.045, 0.015]),
    ("token-v3", {"alpha": 0.1}, 0.58, [0.60, 0.24, 0.12, 0.04]),
    ("token-v3", {"alpha": 0.35}, 0.58, [0.60, 0.24, 0.12, 0.04]),
    ("typical", {}, 0.80, [0.40, 0.50, 0.10, 0.0]),
    ("typical", {"fallback": "sample"}, 0.80, [0.30, 0.56, 0.13, 0.01]),
    ("trt-llm", {"top": 2, "delta": 0.3}, 0.70, [0.50, 0.50, 0.0, 0.0]),
    ("trt-llm", {"top": 10, "delta": 0.6}, 1.0, IS_Q),
    ("trt-llm", {"top": 10, "delta": 0.1}, 0.20, [1.0, 0.0, 0.0, 0.0]),
    ("fuzzy", {"threshold": 0.2}, 1.0, IS_Q),
    ("fuzzy", {"threshold": 0.01}, 0.65, IS_P),
    ("cactus", {"delta": 0.1}, 0.9475, [0.2461, 0.50, 0.1064, 0.1475]),
    ("cactus", {"delta": 1}, 1.0, IS_Q),
    ("typical", {"repaired": True}, *REPAIRED),
    ("trt-llm", {"repaired": True, "top": 2, "delta": 0.3}, *REPAIRED),
    ("token-v3", {"repaired": True, "alpha": 0.5}, *REPAIRED),
]


@pytest.mark.parametrize(("method", "parameters", "accept", "out"), GOLDEN, ids=[f"{r[0]} {r[1]}" for r in GOLDEN])
def test_golden_table(method: str, parameters: dict[str, Any], accept: float, out: list[float]) -> None:
    got_accept, got_out = emitted(method, **parameters)
    assert got_accept == pytest.approx(accept, abs=6e-5)
    torch.testing.assert_close(got_out, torch.tensor(out, dtype=torch.float64), atol=6e-5, rtol=0)


def test_the_golden_table_has_every_baseline_but_the_two_that_it_cannot_hold() -> None:
    """Mentored's row is its optimality below; `truncated` drafts nothing."""
    assert {row[0] for row in GOLDEN} >= set(RULES) - {Method.MENTORED, Method.TRUNCATED}


# -- limits --------------------------------------------------------------------------------------------------------

STRICT_AT = {
    "lossy": {"alpha": 0},
    "chow": {"alpha": -1},
    "diff": {"alpha": -1},
    "opt": {"alpha": -1},
    "token-v1": {"alpha": -1},
    "token-v2": {"alpha": -1},
    "fuzzy": {"threshold": 0},
    "cactus": {"delta": 0},
    "mentored": {"divergence": 0},
}
DRAFT_ONLY_AT = {
    "lossy": {"alpha": 1},
    "chow": {"alpha": 1},
    "diff": {"alpha": 1},
    "opt": {"alpha": 1},
    "token-v1": {"alpha": 1},
    "token-v2": {"alpha": 1},
    "token-v3": {"alpha": 1},
    "typical": {"epsilon": 0},
    "trt-llm": {"top": 4, "delta": 1},
    "fuzzy": {"threshold": 1},
    "cactus": {"delta": 1e9},
    "mentored": {"divergence": 10},
}


@pytest.mark.parametrize("method", STRICT_AT)
def test_at_one_end_it_is_strict(method: str) -> None:
    accept, out = emitted(method, **STRICT_AT[method])
    assert accept == pytest.approx(0.65, abs=1e-6)
    torch.testing.assert_close(out, P, atol=1e-6, rtol=0)


@pytest.mark.parametrize("method", DRAFT_ONLY_AT)
def test_at_the_other_end_it_takes_every_draft(method: str) -> None:
    accept, out = emitted(method, **DRAFT_ONLY_AT[method])
    assert accept == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(out, Q, atol=1e-6, rtol=0)


def test_token_v3_at_alpha_zero_keeps_the_drafts_mass_on_the_targets_best_token_only() -> None:
    """Its set is never empty, so unlike the others it has no strict end."""
    _, out = emitted("token-v3", alpha=0)
    torch.testing.assert_close(out, 0.2 * torch.tensor([1.0, 0, 0, 0], dtype=torch.float64) + 0.8 * P)


# -- properties ----------------------------------------------------------------------------------------------------

counts = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(lambda row: sum(row) > 0)
ON_THE_FRONTIER = ("strict", "lossy", "chow", "diff", "opt", "fuzzy", "cactus", "mentored")
EXAMPLES = {
    "strict": {},
    "lossy": {"alpha": 0.4},
    "chow": {"alpha": 0.4},
    "diff": {"alpha": 0.1},
    "opt": {"alpha": 0.4},
    "token-v1": {"alpha": 0.2},
    "token-v2": {"alpha": 0.2},
    "token-v3": {"alpha": 0.6},
    "typical": {"fallback": "sample"},
    "cactus": {"delta": 0.2},
    "fuzzy": {"threshold": 0.1},
    "trt-llm": {"top": 3, "delta": 0.3},
    "mentored": {"divergence": 0.1},
}


def law(row: list[int]) -> Tensor:
    values = torch.tensor(row, dtype=torch.float64)
    return values / values.sum()


@pytest.mark.parametrize("repaired", [False, True], ids=["plain", "repaired"])
@pytest.mark.parametrize("method", EXAMPLES)
@settings(max_examples=25, deadline=None)
@given(a=counts, b=counts)
def test_no_rule_is_above_the_frontier(method: str, repaired: bool, a: list[int], b: list[int]) -> None:
    """A <= 1 - TV(p, q) + TV(out, p) (method.md 5.2); equal for those it lists, and for every repaired rule (5.6)."""
    if repaired and method == "strict":
        return
    p, q = law(a), law(b)
    accept, out = emitted(method, p, q, repaired=repaired, **EXAMPLES[method])
    assert float(out.sum()) == pytest.approx(1, abs=1e-9)
    gap = float(1 - total_variation(p, q) + total_variation(out, p)) - accept
    assert gap > -1e-9
    if repaired or method in ON_THE_FRONTIER:
        assert gap == pytest.approx(0, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(a=counts, b=counts, divergence=st.floats(1e-3, 1))
def test_mentored_spends_its_divergence_and_no_more(a: list[int], b: list[int], divergence: float) -> None:
    """It accepts all where q is near enough; elsewhere KL(p || out) is what was allowed; out lies between q and p."""
    p, q = law(a), law(b)
    accept, out = emitted("mentored", p, q, divergence=divergence)
    kl = float(torch.where(p > 0, p * (p / out.clamp_min(1e-300)).log(), 0.0).sum())
    assert kl <= divergence + 1e-6
    if accept < 1 - 1e-6 and bool((p > 0).all()) and bool((q > 0).all()):
        assert kl == pytest.approx(divergence, abs=1e-5)
    bounds = torch.stack([p, q]).amin(0), torch.stack([p, q]).amax(0)
    assert bool(((out >= bounds[0] - 1e-7) & (out <= bounds[1] + 1e-7)).all())


def test_mentored_is_optimal() -> None:
    """No law that mixes its optimum with another at the same divergence is nearer to q (5,000 random directions)."""
    _, out = emitted("mentored", divergence=0.05)
    weight_XV = torch.rand(5000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    candidate_XV = 0.95 * out + 0.05 * weight_XV / weight_XV.sum(-1, keepdim=True)
    fits_X = (P * (P / candidate_XV).log()).sum(-1) <= 0.05
    assert int(fits_X.sum()) > 100
    assert bool((total_variation(candidate_XV[fits_X], Q) >= total_variation(out, Q) - 1e-9).all())


# -- what is drawn -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repaired", [False, True], ids=["plain", "repaired"])
@pytest.mark.parametrize("method", EXAMPLES)
def test_verify_emits_the_exact_law_and_the_target_after_it(method: str, repaired: bool) -> None:
    if repaired and method == "strict":
        return
    B = 100_000
    u = torch.rand(B, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    p, q = P.float(), Q.float()
    x_BN = draw(q.expand(B, 4), u[:, :1])[:, None]
    judged = rule(method, repaired, **EXAMPLES[method])
    drafted_B = torch.ones(B, dtype=torch.long)
    q_BMV = pad(q.expand(B, 1, 4), (0, 0, 0, 1))  # behind the drafted token there is nothing
    verdict = verify(p.expand(B, 2, 4), q_BMV, x_BN, drafted_B, judged, u[:, 1:2], u[:, 2:4])
    accept, out = emitted(method, repaired=repaired, **EXAMPLES[method])
    accepted_B = verdict.accepted_B == 1
    assert float(accepted_B.double().mean()) == pytest.approx(accept, abs=4 * math.sqrt(0.25 / B))
    assert_law(verdict.tokens_BM[:, 0], out)
    assert_law(verdict.tokens_BM[accepted_B, 1], P)  # the bonus token's law is the target's


def assert_law(tokens: Tensor, expected: Tensor) -> None:
    observed = torch.bincount(tokens, minlength=len(expected)).double()
    possible = expected > 1e-6  # laws are float32 in `verify`
    assert not bool(observed[~possible].any())
    wanted = expected[possible] * len(tokens)
    statistic = float(((observed[possible] - wanted) ** 2 / wanted).sum())
    assert statistic < chi2.ppf(0.9999, max(int(possible.sum()) - 1, 1))


def test_truncated_draws_from_what_typical_acceptance_lets_pass() -> None:
    B = 50_000
    u = torch.rand(B, 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    p_BMV, nothing, empty_B = P.float().expand(B, 1, 4), torch.zeros(B, 0), torch.zeros(B, dtype=torch.long)
    verdict = verify(p_BMV, p_BMV[:, :0], nothing.long(), empty_B, rule("truncated"), nothing, u)
    assert_law(verdict.tokens_BM[:, 0], torch.tensor([0.5, 0.3, 0.15, 0.0], dtype=torch.float64) / 0.95)


# -- temperature ---------------------------------------------------------------------------------------------------


def test_cascades_look_at_the_laws_before_temperature() -> None:
    """At temperature .1 both laws are nearly one-hot, and every draft would look sure."""
    logits = Q.log()[None, None]
    p_tempered, q_tempered = (sampling_law(law.log()[None, None].float(), torch.tensor([0.1])) for law in (P, Q))
    chow = rule("chow", alpha=0.4)  # defers where max q0 >= .6
    x = torch.tensor([[[1]]])
    tempered = Laws(p_tempered, q_tempered, x)
    assert float(q_tempered.max()) > 0.9
    assert float(chow.accept(tempered)) == 1
    right = Laws(p_tempered, q_tempered, x, 1.0, P[None, None].float(), logits.softmax(-1).float())
    assert float(chow.accept(right)) < 0.1


def test_greedy_rows() -> None:
    """Token 1 drafted, argmax p is 0, p = (.5, .3, .15, .05)."""
    expected = {  # kept?, what stands in
        ("lossy", (("alpha", 0.3),)): (False, 0),
        ("lossy", (("alpha", 0.5),)): (True, 0),
        ("chow", (("alpha", 0.6),)): (True, 1),
        ("chow", (("alpha", 0.1),)): (False, 0),
        ("token-v1", (("alpha", 0.1),)): (True, 1),
        ("typical", ()): (True, 0),
        ("trt-llm", (("delta", 0.1),)): (False, 0),
        ("cactus", (("delta", 1),)): (False, 0),
        ("mentored", (("divergence", 10),)): (True, 1),
    }
    for (method, parameters), (kept, token) in expected.items():
        keep, best = rule(method, **dict(parameters)).greedy(Laws(P, Q, torch.tensor([1])))
        assert (bool(keep), int(best)) == (kept, token), (method, parameters)
    assert bool(rule("trt-llm", repaired=True, delta=0.1).greedy(Laws(P, Q, torch.tensor([0])))[0])


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "parameters", "message"),
    [
        ("lossy", {"alpah": 0.5}, "decode.parameters.alpah: not a parameter of method 'lossy'; it has alpha, beta"),
        ("static", {"alpha": 0.5}, "decode.parameters.alpha: not a parameter of method 'static'; it has none"),
        ("lossy", {"alpha": 2}, "decode.parameters.alpha = 2.0: must be a number from -1 to 1"),
        ("lossy", {"alpha": "high"}, "decode.parameters.alpha = 'high': must be a number from -1 to 1"),
        ("typical", {"fallback": "none"}, "decode.parameters.fallback = 'none': must be one of argmax, sample"),
    ],
)
def test_a_wrong_parameter_is_named(method: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        rule(method, **parameters)


def test_the_family_needs_no_repair() -> None:
    with pytest.raises(ConfigError, match=r"decode.repaired: method 'static'"):
        rule("static", repaired=True)


# -- audits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("strict", {}), ("lossy", {"alpha": 0.3}), ("token-v3", {}), ("typical", {}), ("cactus", {})],
)
def test_an_audit_says_what_the_exact_law_is(method: str, parameters: dict[str, float]) -> None:
    judged = rule(method, **parameters)
    x = torch.tensor([1])
    found = dict(zip(AUDIT, audit(judged, Laws(P, Q, x), x).tolist(), strict=True))
    accept, out = emitted_law(judged, Laws(P, Q, x))
    tv = float(total_variation(P, out))
    assert found["acceptance"] == pytest.approx(float(accept))
    assert found["output_tv"] == pytest.approx(tv)
    kept = out > 0
    assert found["output_kl"] == pytest.approx(float((out * (out / P).log())[kept].sum()))
    assert found["overshoot_mass"] == pytest.approx(float((out - 2 * P).clamp_min(0).sum()))
    assert found["frontier_gap"] == pytest.approx(1 - 0.35 + tv - float(accept))
    assert found["frontier_gap"] > -1e-9
    assert found["output_probability"] == pytest.approx(float(out[1]))
    assert found["best_probability"] == pytest.approx(0.5)


def test_an_audit_leaves_out_what_would_take_a_square_of_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diversed.verification.rules.LARGEST_SQUARE", 3)
    x = torch.tensor([1])
    found = dict(zip(AUDIT, audit(rule("cactus"), Laws(P, Q, x), x).tolist(), strict=True))
    unknown = {name for name, value in found.items() if value != value}
    assert unknown == set(AUDIT) - {"best_probability"}
    assert audit(rule("lossy"), Laws(P, Q, x), x).isfinite().all()


@pytest.mark.parametrize("method", ["lossy", "token-v1", "typical", "mentored"])
def test_the_short_way_to_the_law_is_the_long_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = rule(method)
    short = emitted_law(judged, Laws(P, Q, torch.tensor([0])))
    monkeypatch.setattr(type(judged), "replaces_by_token", True)
    long = emitted_law(judged, Laws(P, Q, torch.tensor([0])))
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one, other)


def test_audits_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged positions by the rule, a bonus and what was not drafted as p itself, an autoregressive step by its law."""
    p_BMV, q_BMV = P.expand(1, 3, 4).float(), pad(Q.expand(1, 1, 4), (0, 0, 0, 2)).float()  # one token was drafted
    x_BN, half_BM = torch.tensor([[1, 0]]), torch.full((1, 3), 0.5, dtype=torch.float64)
    judged = rule("static")
    verdict = verify(
        p_BMV, q_BMV, x_BN, torch.tensor([1]), Rule(judged.method, 0.5), half_BM[:, :2], half_BM, audited=True
    )
    audit_MA = verdict.numbers_BMX[0, :, 4:]
    tv = audit_MA[:, AUDIT.index("output_tv")]
    assert tv.tolist() == pytest.approx([0.175, 0, 0], abs=1e-6)
    assert audit_MA[:, AUDIT.index("acceptance")].tolist() == pytest.approx([0.825, 1, 1], abs=1e-6)
    nothing = torch.zeros(1, dtype=torch.long)
    step = verify(
        p_BMV[:, :1], q_BMV[:, :0], x_BN[:, :0], nothing, rule("truncated"), half_BM[:, :0], half_BM, audited=True
    )
    # p without its last token, which typical acceptance does not let pass
    assert step.numbers_BMX[0, 0, 4 + AUDIT.index("output_tv")].item() == pytest.approx(0.05, abs=1e-6)
    plain = verify(p_BMV, q_BMV, x_BN, torch.tensor([1]), judged, half_BM[:, :2], half_BM)
    assert plain.numbers_BMX.shape == (1, 3, 4)
