"""The learner's loss against autograd over whole vocabularies, against its written formula, and by what it does."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diversed.training.learner import Batch, advantages, losses
from diversed.verifier import Head

SEEDS = st.integers(0, 2**31)


def laws(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1)


def batch(
    generator: torch.Generator, lengths: list[int], rollouts: int, dims: int = 5, **changes: torch.Tensor
) -> Batch:
    """Sequences of the given numbers of judged positions, with random but consistent p(x), q(x), TV."""
    N = sum(lengths)
    p_NV, q_NV = laws(generator, N, 7), laws(generator, N, 7)
    x_N1 = torch.randint(7, (N, 1), generator=generator)
    columns = {
        "features_ND": torch.randn(N, dims, generator=generator),
        "p_N": p_NV.gather(1, x_N1)[:, 0].float(),
        "q_N": q_NV.gather(1, x_N1)[:, 0].float(),
        "tv_N": (0.5 * (p_NV - q_NV).abs().sum(-1)).float(),
        "w_N": torch.rand(N, generator=generator),
        "lengths_S": torch.tensor(lengths),
        "reward_PK": torch.rand(len(lengths) // rollouts, rollouts, generator=generator),
    }
    return Batch.of(**{**columns, **changes})


def random_head(generator: torch.Generator, dims: int = 5) -> Head:
    head = Head(2, dims - 2)
    with torch.no_grad():
        head.weight_D.copy_(torch.randn(dims, generator=generator))
        head.bias.copy_(torch.randn((), generator=generator))
    return head


# -- the two identities of method.md 4 ----------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, a=st.floats(-6, 6), vocabulary=st.integers(2, 40))
def test_gradient_identities_hold_over_the_whole_vocabulary(seed, a, vocabulary):
    generator = torch.Generator().manual_seed(seed)
    p_V, q_V = laws(generator, vocabulary), laws(generator, vocabulary)
    logit = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    w = torch.sigmoid(logit)
    v_V = w * p_V + (1 - w) * q_V
    slope = (w * (1 - w)).item()
    tv = float(0.5 * (p_V - q_V).abs().sum())
    for x in range(vocabulary):
        (score,) = torch.autograd.grad(v_V[x].log(), logit, retain_graph=True)
        assert float(score) == pytest.approx(slope * ((p_V[x] - q_V[x]) / v_V[x]).item(), rel=1e-9, abs=1e-12)
    acceptance = 1 - 0.5 * (q_V - v_V).abs().sum()
    assert acceptance.item() == pytest.approx(1 - w.item() * tv, abs=1e-12)
    (gradient,) = torch.autograd.grad(acceptance, logit)
    assert float(gradient) == pytest.approx(-slope * tv, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, lam=st.floats(0, 2))
def test_loss_from_records_is_the_loss_over_the_whole_vocabulary(seed, lam):
    generator = torch.Generator().manual_seed(seed)
    lengths, N, V = [3, 1, 0, 4], 8, 9
    p_NV, q_NV = laws(generator, N, V), laws(generator, N, V)
    x_N1 = torch.randint(V, (N, 1), generator=generator)
    features_ND = torch.randn(N, 5, generator=generator)
    reward_PK = torch.rand(2, 2, generator=generator)
    head = random_head(generator)
    records = {
        "p_N": p_NV.gather(1, x_N1)[:, 0].float(),
        "q_N": q_NV.gather(1, x_N1)[:, 0].float(),
        "tv_N": (0.5 * (p_NV - q_NV).abs().sum(-1)).float(),
        "w_N": torch.zeros(N),
    }
    found = losses(head, Batch.of(features_ND, **records, lengths_S=torch.tensor(lengths), reward_PK=reward_PK), lam)
    found_gradient = torch.autograd.grad(found.total, [head.weight_D, head.bias])

    w_N1 = head(features_ND).double()[:, None]
    v_NV = w_N1 * p_NV + (1 - w_N1) * q_NV
    log_v_N = v_NV.gather(1, x_N1)[:, 0].log()
    near_N = 1 - 0.5 * (v_NV - q_NV).abs().sum(-1)
    expected, start = torch.zeros((), dtype=torch.float64), 0
    for length, advantage in zip(lengths, advantages(reward_PK).flatten().tolist(), strict=True):
        rows = slice(start, start + length)
        start += length
        if length:
            expected = expected - advantage * log_v_N[rows].mean() / 4 - lam * near_N[rows].mean() / 4
    gradient = torch.autograd.grad(expected, [head.weight_D, head.bias])
    assert found.total.item() == pytest.approx(expected.item(), abs=1e-5)
    for mine, theirs in zip(found_gradient, gradient, strict=True):
        assert torch.allclose(mine, theirs.float(), atol=1e-5)


# -- the written formula ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, lam=st.floats(0, 2), lengths=st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_on_policy_gradient_is_the_formula(seed, lam, lengths):
    generator = torch.Generator().manual_seed(seed)
    head = random_head(generator)
    b = batch(generator, lengths, rollouts=2)
    head.zero_grad()
    losses(head, b, lam).total.backward()
    w_N = head(b.features_ND).detach()
    slope_N = w_N * (1 - w_N)
    v_N = w_N * b.p_N + (1 - w_N) * b.q_N
    by_logit_N = b.share_N * slope_N * (-b.advantage_N * (b.p_N - b.q_N) / v_N + lam * b.tv_N)
    assert torch.allclose(head.weight_D.grad, by_logit_N @ b.features_ND, atol=1e-5)
    assert torch.allclose(head.bias.grad, by_logit_N.sum(), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, lam=st.floats(0, 2), clip=st.floats(0.05, 0.5))
def test_the_first_of_several_passes_has_the_on_policy_gradient(seed, lam, clip):
    generator = torch.Generator().manual_seed(seed)
    head = random_head(generator)
    b = batch(generator, [3, 0, 5, 2], rollouts=2)
    b = Batch(**{name: getattr(b, name) for name in b.__slots__} | {"w_N": head(b.features_ND).detach()})
    plain = torch.autograd.grad(losses(head, b, lam).total, list(head.parameters()))
    clipped = torch.autograd.grad(losses(head, b, lam, clip).total, list(head.parameters()))
    for one, other in zip(plain, clipped, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("advantage", "w", "moves"),
    [
        (1.0, 0.95, False),  # ratio far above 1 and the token was good: far enough
        (1.0, 0.05, True),
        (-1.0, 0.95, True),
        (-1.0, 0.05, False),
    ],
)
def test_clipping_stops_what_has_gone_far_enough(advantage, w, moves):
    head = Head(1, 1, w)
    one = torch.ones(1)
    b = Batch(torch.zeros(1, 2), 0.9 * one, 0.1 * one, 0.8 * one, 0.5 * one, advantage * one, one)
    (gradient,) = torch.autograd.grad(losses(head, b, lam=0.0, clip_ratio=0.2).total, [head.bias])
    assert bool(gradient != 0) == moves


# -- advantages ---------------------------------------------------------------------------------------------------


def test_advantages_by_hand():
    found_PK = advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    std = (0.5 / 3) ** 0.5  # of (.5, -.5, 0, 0)
    assert found_PK.flatten().tolist() == pytest.approx([0.5 / std, -0.5 / std, 0, 0], rel=1e-5)


@given(rewards=st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_advantages_are_centred_by_prompt_and_scaled_by_batch(rewards):
    found_PK = advantages(torch.tensor(rewards, dtype=torch.float64).view(3, 4))
    assert found_PK.isfinite().all()
    assert torch.allclose(found_PK.mean(1), torch.zeros(3), atol=1e-5)
    spread = max(max(rewards[i : i + 4]) - min(rewards[i : i + 4]) for i in (0, 4, 8))
    if spread > 0.01:
        assert float(found_PK.std()) == pytest.approx(1, abs=1e-3)


def test_single_rollouts_are_compared_with_the_batch():
    found_PK = advantages(torch.tensor([[1.0], [0.0], [0.5], [0.5]]))
    std = (0.5 / 3) ** 0.5  # of (.5, -.5, 0, 0)
    assert found_PK.flatten().tolist() == pytest.approx([0.5 / std, -0.5 / std, 0, 0], rel=1e-5)
    assert advantages(torch.tensor([[0.7]])).tolist() == [[0.0]]  # the last prompt of an epoch


@pytest.mark.parametrize("reward", [0.0, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing_and_are_no_nan(reward):
    assert torch.equal(advantages(torch.full((5, 3), reward)), torch.zeros(5, 3))
    generator = torch.Generator().manual_seed(0)
    head = random_head(generator)
    b = batch(generator, [2, 3, 1], rollouts=3, reward_PK=torch.full((1, 3), reward))
    losses(head, b, lam=0.0).total.backward()
    assert torch.equal(head.weight_D.grad, torch.zeros(5))


# -- ragged lengths -----------------------------------------------------------------------------------------------


def test_each_sequence_counts_the_same_whatever_its_length():
    b = batch(torch.Generator().manual_seed(0), [1, 10, 0, 3], rollouts=2)
    assert [float(part.sum()) for part in b.share_N.split([1, 10, 0, 3])] == pytest.approx([0.25, 0.25, 0, 0.25])


def test_no_judged_position_at_all_is_a_loss_of_zero():
    head = Head(2, 3)
    b = batch(torch.Generator().manual_seed(0), [0, 0], rollouts=2)
    found = losses(head, b, lam=0.5)
    found.total.backward()
    assert found.total.item() == 0
    assert torch.equal(head.weight_D.grad, torch.zeros(5))


def test_a_token_that_underflowed_gives_no_nan():
    head = Head(1, 1)
    one = torch.ones(2)
    b = Batch(torch.zeros(2, 2), 0 * one, 0 * one, one, 0.5 * one, torch.tensor([1.0, -1.0]), 0.5 * one)
    for clip in (None, 0.2):
        found = losses(head, b, 0.1, clip)
        found.total.backward()
        assert found.total.isfinite()
        assert head.bias.grad.isfinite()


# -- what it does -------------------------------------------------------------------------------------------------


def train(lam: float, seed: int, updates: int = 200, reward_of_target: bool = False) -> tuple[Head, torch.Tensor]:
    """Fixed synthetic positions, fresh draws from v each update; the trained head and all features.

    With `reward_of_target` a rollout is rewarded for tokens that the target prefers at positions of even index, which
    the first feature tells apart; else rewards are noise.
    """
    generator = torch.Generator().manual_seed(seed)
    T, V, P, K = 6, 8, 4, 4
    p_TV, q_TV = laws(generator, T, V), laws(generator, T, V)
    features_TD = torch.randn(T, 5, generator=generator)
    features_TD[:, 0] = torch.tensor([1.0, -1.0]).repeat(T // 2)
    tv_T = (0.5 * (p_TV - q_TV).abs().sum(-1)).float()
    head = Head(2, 3)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.05)
    S = P * K
    for _ in range(updates):
        w_T = head(features_TD).detach()
        v_TV = w_T[:, None] * p_TV + (1 - w_T[:, None]) * q_TV
        x_ST = torch.stack([torch.multinomial(v_TV, 1, generator=generator)[:, 0] for _ in range(S)])
        p_ST, q_ST = (law_TV.gather(1, x_ST.T).T.float() for law_TV in (p_TV, q_TV))
        prefers_ST = (p_ST > q_ST)[:, ::2].float()
        reward_S = prefers_ST.mean(1) if reward_of_target else torch.rand(S, generator=generator)
        b = Batch.of(
            features_TD.repeat(S, 1), p_ST.flatten(), q_ST.flatten(), tv_T.repeat(S), w_T.repeat(S),
            torch.full((S,), T), reward_S.view(P, K),
        )  # fmt: skip
        optimizer.zero_grad()
        losses(head, b, lam).total.backward()
        optimizer.step()
    return head, features_TD


@pytest.mark.parametrize("seed", [0, 1])
def test_a_larger_lambda_gives_a_lower_weight_on_the_target(seed):
    weights = []
    for lam in (0.0, 0.3, 1.0, 3.0):
        head, features_TD = train(lam, seed)
        weights.append(head(features_TD).mean().item())
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] < 0.3


def test_it_learns_where_the_target_matters():
    head, features_TD = train(0.3, seed=3, updates=400, reward_of_target=True)
    w_T = head(features_TD).detach()
    assert float(w_T[::2].min()) > 0.7  # where the target's tokens are rewarded
    assert float(w_T[1::2].max()) < 0.3  # where only acceptance is
