import math

import pytest
import torch

from diversed.settings import Method
from diversed.tasks import Split
from diversed.training.rollouts import CURVES, Pool, batch_of, requests_for, results_of, rollout_decode
from diversed.verification import Kind
from diversed.verifier import Head


@pytest.fixture
def rolled(settings, task, pair, engines):
    """Examples, requests, generations and results of one update under an untrained head."""
    examples = task.examples(settings.task, Split.TRAIN, 0)[:4]
    requests = requests_for(examples, settings, pair, epoch=1)
    generations = engines(rollout_decode(settings), Head(2, 3), True).generate(requests)
    return examples, requests, generations, results_of(generations, examples, settings, pair, task)


def test_rollouts_are_diversed_at_the_training_temperature_and_uncapped(settings):
    changed = settings.updated(
        {"decode.temperature": 0, "decode.cap": 4, "decode.method": "strict", "train.temperature": 0.7}
    )
    decode = rollout_decode(changed)
    assert (decode.method, decode.temperature, decode.cap, decode.batch_size) == (Method.DIVERSED, 0.7, math.inf, 64)
    assert decode.draft_length == settings.decode.draft_length


def test_requests_come_prompt_by_prompt_with_seeds_of_their_own(settings, task, pair, rolled):
    examples, requests, _, _ = rolled
    assert [request.prompt_ids for request in requests[:3]] == [tuple(pair.encode(examples[0].prompt))] * 3
    assert len({request.seed for request in requests}) == 12
    assert {request.max_new_tokens for request in requests} == {12}
    alone = requests_for(examples[2:3], settings, pair, epoch=1)
    assert alone == requests[6:9]  # a seed depends on the example, not on its place in the batch
    other_epoch = requests_for(examples, settings, pair, epoch=2)
    assert not {request.seed for request in other_epoch} & {request.seed for request in requests}


def test_only_judged_positions_reach_the_learner(rolled):
    _, _, generations, results = rolled
    batch = batch_of(generations, results, rollouts=3)
    start = 0
    for generation in generations:
        judged_T = generation.kind_T != Kind.BONUS
        rows = slice(start, start + int(judged_T.sum()))
        start = rows.stop
        assert torch.equal(batch.features_ND[rows], generation.features_TD[judged_T])
        assert torch.equal(batch.p_N[rows], generation.p_T[judged_T])
        assert torch.equal(batch.q_N[rows], generation.q_T[judged_T])
        assert torch.equal(batch.tv_N[rows], generation.tv_T[judged_T])
        assert torch.equal(batch.w_N[rows], generation.w_T[judged_T])
        assert float(batch.share_N[rows].sum()) == pytest.approx(1 / len(generations))
    assert start == len(batch.p_N) < sum(len(generation.tokens) for generation in generations)
    assert bool((batch.q_N > 0).all())


def test_rewards_are_compared_within_their_prompt(rolled):
    _, _, generations, results = rolled
    batch = batch_of(generations, results, rollouts=3)
    lengths = [int(generation.mask_T.sum()) for generation in generations]
    advantage_S = torch.stack([part[0] for part in batch.advantage_N.split(lengths)])
    reward_PK = torch.tensor([result.quality for result in results]).view(4, 3)
    centred_PK = reward_PK - reward_PK.mean(1, keepdim=True)
    assert torch.allclose(advantage_S.view(4, 3), centred_PK / centred_PK.std(), atol=1e-4)


def test_rewards_are_the_task_s_of_the_decoded_text(rolled, task, pair):
    examples, _, generations, results = rolled
    for i, (generation, result) in enumerate(zip(generations, results, strict=True)):
        assert result.id == examples[i // 3].id
        assert result.quality == task.reward(examples[i // 3], pair.decode(generation.tokens))


def test_curves_are_pooled_over_all_rollouts(rolled):
    _, _, generations, results = rolled
    batch = batch_of(generations, results, rollouts=3)
    whole, halves = Pool(), Pool()
    whole.add(results, batch)
    for rows in (slice(0, 6), slice(6, 12)):
        halves.add(results[rows], batch_of(generations[rows], results[rows], rollouts=3))
    metrics = whole.metrics()
    assert metrics == pytest.approx(halves.metrics(), rel=1e-6)
    judged = torch.cat([generation.mask_T for generation in generations])
    tokens = sum(len(generation.tokens) for generation in generations)
    rounds = sum(generation.rounds for generation in generations)
    assert metrics["block_efficiency"] == tokens / rounds
    assert metrics["token_acceptance"] == sum(g.accepted for g in generations) / float(judged.sum())
    assert metrics["mean_weight"] == pytest.approx(0.5)
    assert metrics["expected_acceptance"] == pytest.approx(1 - 0.5 * float(batch.tv_N.mean()), rel=1e-5)
    assert metrics["truncated"] == sum(g.finish_reason == "length" for g in generations) / 12
    assert metrics["empty"] == sum(len(g.tokens) == 1 and g.finish_reason == "stop" for g in generations) / 12
    assert metrics.keys() == {*CURVES, "expected_acceptance"}


def test_a_number_without_a_denominator_is_left_out():
    assert Pool().metrics() == {}
