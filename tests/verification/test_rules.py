"""The rules as mathematics: golden rows, identities, limits, and the law of what `verify` emits.

Chi-square tests use a fixed seed, so they cannot flicker; their threshold is the .9999 quantile: had the seed been
drawn anew, a right implementation would have failed with probability 1e-4.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor
from torch.nn.functional import pad

from diversed.settings import DecodeSettings, Method
from diversed.verification import (
    Laws,
    Rule,
    accept_probability,
    draw,
    emitted_law,
    residual,
    rule_of,
    sampling_law,
    total_variation,
    verify,
)
from diversed.verification.rules import STRICT

P = torch.tensor([0.50, 0.30, 0.15, 0.05])
Q = torch.tensor([0.20, 0.50, 0.10, 0.20])
INF = math.inf

GOLDEN = [  # method.md 6: weight, cap, P(accept), law of the emitted token
    ("strict", 1.0, INF, 0.65, [0.50, 0.30, 0.15, 0.05]),
    ("ensemble .9", 0.9, INF, 0.685, [0.47, 0.32, 0.145, 0.065]),
    ("ensemble .5", 0.5, INF, 0.825, [0.35, 0.40, 0.125, 0.125]),
    ("ensemble .1", 0.1, INF, 0.965, [0.23, 0.48, 0.105, 0.185]),
    ("draft-only", 0.0, INF, 1.0, [0.20, 0.50, 0.10, 0.20]),
    ("capped .5, 2", 0.5, 2.0, 0.80, [0.3714, 0.40, 0.1286, 0.10]),
    ("capped .1, 2", 0.1, 2.0, 0.88, [0.3029, 0.48, 0.1171, 0.10]),
    ("capped .1, 1.5", 0.1, 1.5, 0.825, [0.35, 0.45, 0.125, 0.075]),
    ("lossy .3 = capped 0, 1/.7", 0.0, 1 / 0.7, 0.80, [0.3714, 0.4286, 0.1286, 0.0714]),
    ("lossy .5 = capped 0, 2", 0.0, 2.0, 0.90, [0.2857, 0.50, 0.1143, 0.10]),
    ("cap 1 is strict", 0.3, 1.0, 0.65, [0.50, 0.30, 0.15, 0.05]),
]


@pytest.mark.parametrize(("name", "w", "cap", "accept", "out"), GOLDEN, ids=[row[0] for row in GOLDEN])
def test_golden_table(name: str, w: float, cap: float, accept: float, out: list[float]) -> None:
    assert (Q * accept_probability(P, Q, w, cap)).sum().item() == pytest.approx(accept, abs=1e-6)
    torch.testing.assert_close(output_law(P, Q, w, cap), torch.tensor(out), atol=6e-5, rtol=0)


def test_case_03_the_replacement_law_is_normalised_by_its_mass() -> None:
    """Planted fault: the residual by softmax, which gives tokens with p <= q a probability."""
    assert total_variation(P, Q).item() == pytest.approx(0.35, abs=1e-6)
    replacement = residual(P, Q)
    torch.testing.assert_close(replacement / replacement.sum(), torch.tensor([6 / 7, 0.0, 1 / 7, 0.0]))


def output_law(p: Tensor, q: Tensor, w: float, cap: float = INF) -> Tensor:
    """Law of the emitted token under a member of the family."""
    return emitted_law(Rule(Method.STATIC, w, cap), Laws(p, q, torch.tensor([0]), w))[1]


laws = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(lambda counts: sum(counts) > 0)
weights = st.floats(0, 1)
caps = st.one_of(st.just(INF), st.floats(1, 50))


def law(counts: list[int]) -> Tensor:
    values = torch.tensor(counts, dtype=torch.float64)
    return values / values.sum()


@given(laws, laws, weights, caps)
def test_every_member_of_the_family_is_on_the_frontier(a: list[int], b: list[int], w: float, cap: float) -> None:
    """A = 1 - TV(p, q) + TV(out, p): no rule that sees p and q accepts more at the same bias (method.md 5.2)."""
    p, q = law(a), law(b)
    accept = (q * accept_probability(p, q, w, cap)).sum()
    out = output_law(p, q, w, cap)
    assert out.sum().item() == pytest.approx(1, abs=1e-9)
    assert (accept - (1 - total_variation(p, q) + total_variation(out, p))).abs() < 1e-9


@given(laws, laws, weights, st.floats(1, 50))
def test_the_cap_bounds_the_overshoot(a: list[int], b: list[int], w: float, cap: float) -> None:
    p, q = law(a), law(b)
    assert bool((output_law(p, q, w, cap) <= cap * p + 1e-12).all())


@given(laws, laws, weights)
def test_the_uncapped_law_is_the_mixture_and_acceptance_is_one_minus_w_tv(a: list[int], b: list[int], w: float) -> None:
    p, q = law(a), law(b)
    torch.testing.assert_close(output_law(p, q, w), w * p + (1 - w) * q, atol=1e-12, rtol=0)
    accept = (q * accept_probability(p, q, w)).sum()
    assert accept.item() == pytest.approx(1 - w * total_variation(p, q).item(), abs=1e-9)


def test_rules_carry_the_parameters_of_their_method_only() -> None:
    decode = {"weight": 0.3, "cap": 2.0}
    family = (Method.AUTOREGRESSIVE, Method.STRICT, Method.DRAFT_ONLY, Method.STATIC, Method.DIVERSED)
    rules = {method: rule_of(DecodeSettings(method=method, **decode)) for method in family}
    assert {method: (rule.weight, rule.cap) for method, rule in rules.items()} == {
        Method.AUTOREGRESSIVE: (1.0, INF),
        Method.STRICT: (1.0, INF),
        Method.DRAFT_ONLY: (0.0, INF),
        Method.STATIC: (0.3, 2.0),
        Method.DIVERSED: (None, 2.0),
    }


# -- drawing ------------------------------------------------------------------------------------------------------


def and_nothing(q_BNV: Tensor) -> Tensor:
    """[B, M, V]: behind the drafted tokens there is nothing."""
    return pad(q_BNV, (0, 0, 0, 1))


def assert_law(tokens: Tensor, expected: Tensor) -> None:
    """Chi-square of observed tokens against a law, threshold at the .9999 quantile."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    assert not bool(counts[expected == 0].any())
    expected_counts = expected[expected > 0].double() * len(tokens)
    statistic = ((counts[expected > 0] - expected_counts) ** 2 / expected_counts).sum().item()
    assert statistic < chi2.ppf(0.9999, int((expected > 0).sum()) - 1)


@pytest.mark.parametrize(
    ("w", "cap"), [(1.0, INF), (0.5, INF), (0.1, INF), (0.0, INF), (0.5, 2.0), (0.1, 1.5)], ids=str
)
def test_verify_emits_the_exact_law_and_accepts_at_the_exact_rate(w: float, cap: float) -> None:
    B = 200_000
    generator = torch.Generator().manual_seed(11)
    u = torch.rand(B, 4, generator=generator, dtype=torch.float64)
    p_BMV = P.expand(B, 2, 4)
    x_BN = draw(Q.expand(B, 4), u[:, :1])[:, None]
    rule = Rule(Method.STATIC, w, cap)
    drafted_B = torch.ones(B, dtype=torch.long)
    verdict = verify(p_BMV, and_nothing(Q.expand(B, 1, 4)), x_BN, drafted_B, rule, u[:, 1:2], u[:, 2:4])
    assert_law(verdict.tokens_BM[:, 0], output_law(P, Q, w, cap))
    accepted = verdict.accepted_B == 1
    rate = (Q * accept_probability(P, Q, w, cap)).sum().item()
    assert accepted.double().mean().item() == pytest.approx(rate, abs=4 * math.sqrt(0.25 / B))
    if w > 0:
        assert_law(verdict.tokens_BM[accepted, 1], P)  # the bonus token's law is the target's


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    st.one_of(st.just(0.0), st.just(math.nextafter(1, 0)), st.floats(0, 1, exclude_max=True)),
)
def test_draw_stays_on_the_support(counts: list[int], u: float) -> None:
    values = torch.tensor([counts], dtype=torch.float32)
    token = draw(values / values.sum(), torch.tensor([[u]], dtype=torch.float64))
    assert values[0, token[0]] > 0


def test_draw_needs_no_normalised_law() -> None:
    tokens = draw(torch.tensor([[0.0, 2.0, 0.0, 6.0]]).expand(4, 4), torch.tensor([[0.0], [0.2499], [0.25], [0.999]]))
    assert tokens.tolist() == [1, 1, 3, 3]


# -- the round ----------------------------------------------------------------------------------------------------


def test_a_round_walks_to_the_first_rejection() -> None:
    p_BMV = torch.full((3, 4, 4), 0.25)
    q_BMV = and_nothing(torch.full((3, 3, 4), 0.25))
    q_BMV[2, 1:] = 0  # row 2 has drafted one token
    p_BMV[1, 1] = torch.tensor([0.0, 0.5, 0.5, 0.0])  # row 1: its second token, 0, is impossible under p
    x_BN = torch.zeros(3, 3, dtype=torch.long)
    drafted_B = torch.tensor([3, 3, 1])
    u_BN, u_BM = torch.full((3, 3), 0.9), torch.full((3, 4), 0.6)
    verdict = verify(p_BMV, q_BMV, x_BN, drafted_B, STRICT, u_BN, u_BM)
    assert verdict.accepted_B.tolist() == [3, 1, 1]
    assert verdict.drafted_B.tolist() == [3, 3, 1]
    assert verdict.tokens_BM[1, 1] == 2
    assert verdict.tokens_BM[0].tolist() == [0, 0, 0, 2]
    assert verdict.numbers_BMX[1, 1].tolist() == [0.5, 0.25, 0.5, 1.0]
    assert verdict.numbers_BMX[2, :2].tolist() == [[0.25, 0.25, 0.0, 1.0], [0.25, 0.0, 0.0, 1.0]]


def test_no_draft_is_one_autoregressive_step() -> None:
    empty = torch.zeros(1, 0)
    verdict = verify(
        P[None, None],
        P[None, None][:, :0],
        empty.long(),
        torch.zeros(1, dtype=torch.long),
        STRICT,
        empty,
        torch.tensor([[0.6]]),
    )
    assert verdict.tokens_BM.tolist() == [[1]]
    assert verdict.accepted_B.tolist() == verdict.drafted_B.tolist() == [0]
    assert verdict.numbers_BMX.tolist() == [[[pytest.approx(0.3), 0, 0, 1]]]


def test_greedy_rows_follow_the_argmax_of_the_mixture() -> None:
    """w = .9: argmax v is 0 (v = .47, .32, ..); w = .1: it is 1. Row 2 is not greedy and takes its coin."""
    p_BMV, q_BMV = P.expand(3, 2, 4), and_nothing(Q.expand(3, 1, 4))
    x_BN = torch.tensor([[1], [1], [1]])
    w_BN, coins_BN, u_BM = torch.tensor([[0.9], [0.1], [0.9]]), torch.full((3, 1), 0.5), torch.zeros(3, 2)
    greedy_B = torch.tensor([True, True, False])
    learned = Rule(Method.DIVERSED, None)
    verdict = verify(p_BMV, q_BMV, x_BN, torch.ones(3, dtype=torch.long), learned, coins_BN, u_BM, greedy_B, w_BN)
    assert verdict.accepted_B.tolist() == [0, 1, 1]
    assert verdict.tokens_BM[0, 0] == 0
    assert verdict.tokens_BM[1].tolist() == [1, 0]  # accepted, then the bonus argmax p


def test_case_02_a_greedy_draft_has_a_one_hot_law() -> None:
    """Planted fault: the ratio has the draft's soft law though its token was its argmax: P(accept) .60 instead of .30.

    At the engine: `test_case_02_prompt_lookup_emits_the_exact_law`."""
    B = 20_000
    u = torch.rand(B, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    greedy_V = torch.nn.functional.one_hot(Q.argmax(), 4).float()
    x_BN = Q.argmax().expand(B, 1)
    q_BMV, drafted_B = and_nothing(greedy_V.expand(B, 1, 4)), torch.ones(B, dtype=torch.long)
    verdict = verify(P.expand(B, 2, 4), q_BMV, x_BN, drafted_B, STRICT, u[:, :1], u[:, 1:])
    assert verdict.accepted_B.double().mean().item() == pytest.approx(0.30, abs=4 * math.sqrt(0.25 / B))
    assert_law(verdict.tokens_BM[:, 0], P)


def test_case_05_zero_residual() -> None:
    """Planted fault: a residual without a fallback has no mass to draw from where p equals q up to rounding."""
    p = torch.softmax(torch.randn(1000, 50, generator=torch.Generator().manual_seed(3)), -1)
    q = p * (1 + 1e-7)
    for w in (0.0, 0.5, 1.0):
        assert bool((accept_probability(p, q, w) > 1 - 1e-6).all())
    assert bool(torch.isfinite(residual(p, p)).all())
    torch.testing.assert_close(residual(p, p), p)


# -- the sampling law ---------------------------------------------------------------------------------------------


def one(value: float) -> Tensor:
    return torch.tensor([value])


def test_temperature_top_k_and_top_p() -> None:
    logits = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]]).log()
    torch.testing.assert_close(sampling_law(logits, one(1.0))[0, 0], torch.tensor([0.4, 0.3, 0.2, 0.1]))
    squared = torch.tensor([0.16, 0.09, 0.04, 0.01]) / 0.30
    torch.testing.assert_close(sampling_law(logits, one(0.5))[0, 0], squared)
    top2 = torch.tensor([4 / 7, 3 / 7, 0, 0])
    torch.testing.assert_close(sampling_law(logits, one(1.0), torch.tensor([2]))[0, 0], top2)
    torch.testing.assert_close(sampling_law(logits, one(1.0), None, one(0.65))[0, 0], top2)
    torch.testing.assert_close(sampling_law(logits, one(1.0), None, one(0.05))[0, 0], torch.tensor([1.0, 0, 0, 0]))
    both = sampling_law(logits.expand(2, 1, 4), one(1.0).expand(2), torch.tensor([0, 3]), torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(both[0, 0], torch.tensor([0.4, 0.3, 0.2, 0.1]))
    torch.testing.assert_close(both[1, 0], top2)  # of the three kept, .44 and .33 reach .5


@settings(max_examples=50)
@given(st.integers(1, 8), st.floats(0.05, 1), st.integers(0, 2**31))
def test_filters_agree_with_transformers(k: int, top_p: float, seed: int) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
    expected = logits
    for warper in (TemperatureLogitsWarper(0.7), TopKLogitsWarper(k), TopPLogitsWarper(top_p)):
        expected = warper(None, expected)
    ours = sampling_law(logits[:, None], one(0.7).expand(4), torch.tensor([k] * 4), one(top_p).expand(4))[:, 0]
    torch.testing.assert_close(ours, expected.softmax(-1), atol=1e-6, rtol=1e-5)


def test_a_greedy_row_keeps_its_soft_law_and_tiny_temperatures_do_not_overflow() -> None:
    logits = torch.tensor([[[2.0, 1.0, 0.0]]])
    torch.testing.assert_close(sampling_law(logits, one(0.0)), logits.softmax(-1))
    assert sampling_law(logits, one(1e-6))[0, 0].tolist() == [1.0, 0.0, 0.0]


def test_low_precision_logits_give_float32_laws() -> None:
    assert sampling_law(torch.zeros(1, 1, 4, dtype=torch.bfloat16), one(1.0)).dtype is torch.float32
