"""Training with the real engine on the embedded pair."""

from functools import partial

import pytest
import torch

from diversed.cluster import engine_for
from diversed.decoding import build_engine
from diversed.models import load_pair
from diversed.settings import PairSettings, Settings
from diversed.tasks import Split, get_task
from diversed.training import Trainer
from diversed.training.rollouts import batch_of, requests_for, results_of, rollout_decode
from diversed.verification import Kind
from diversed.verifier import Head

TIMES = ("seconds_rollouts", "seconds_learner")


@pytest.fixture(scope="module")
def arithmetic():
    pair = load_pair(PairSettings())
    return pair, get_task("arithmetic"), partial(build_engine, pair)


@pytest.fixture
def small(tmp_path):
    return Settings(
        output=tmp_path,
        seed=1,
        task={"train_size": 7, "max_new_tokens": 60},
        train={
            "prompts_per_update": 4, "rollouts": 2, "epochs": 3, "learning_rate": 0.05, "warmup": 0, "lam": 0.3,
            "batch_size": 5,
        },
    )  # fmt: skip


def test_the_collected_features_are_those_the_engine_weighed_with(arithmetic, small):
    pair, task, engines = arithmetic
    torch.manual_seed(0)
    head = Head(pair.draft_dim, pair.target_dim)
    torch.nn.init.normal_(head.weight_D, std=0.1)
    examples = task.examples(small.task, Split.TRAIN, small.seed)
    generations = engines(rollout_decode(small), head, True).generate(requests_for(examples, small, pair, 1))
    batch = batch_of(generations, results_of(generations, examples, small, pair, task), 2)
    assert float(batch.w_N.std()) > 0.05  # a head that does something
    assert torch.allclose(head(batch.features_ND), batch.w_N, atol=1e-5)
    for generation in generations:
        bonus_T = generation.kind_T == Kind.BONUS
        assert bool((generation.w_T[bonus_T] == 1).all())
        assert generation.features_TD.shape == (len(generation.tokens), pair.draft_dim + pair.target_dim)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(arithmetic, small, tmp_path):
    pair, task, engines = arithmetic
    whole = Trainer(small, pair, task, engines)
    expected = list(whole.epochs(tmp_path / "whole"))
    first = Trainer(small, pair, task, engines).epochs(tmp_path / "broken")
    before = [next(first)]
    first.close()
    found = before + list(Trainer(small, pair, task, engines).epochs(tmp_path / "broken"))
    assert [{k: v for k, v in report.items() if k not in TIMES} for report in found] == [
        {k: v for k, v in report.items() if k not in TIMES} for report in expected
    ]
    for name in ("verifier.safetensors", "optimizer.safetensors"):
        files = [tmp_path / run / "epoch-003" / name for run in ("whole", "broken")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.usefixtures("ray_session")
def test_in_actors_the_engine_sees_each_update_too(arithmetic, small, tmp_path):
    pair, task, engines = arithmetic
    short = small.updated({"train.epochs": 2, "task.train_size": 4, "train.prompts_per_update": 2})
    here = Trainer(short, pair, task, engines)
    there = Trainer(short, pair, task, partial(engine_for, PairSettings(placement="actors"), pair))
    reports = [list(trainer.epochs(tmp_path / name)) for name, trainer in (("here", here), ("there", there))]
    for mine, theirs in zip(*reports, strict=True):
        for name in ("reward", "token_acceptance", "block_efficiency", "output_tokens"):
            assert mine[name] == theirs[name]
        assert mine["mean_weight"] == pytest.approx(theirs["mean_weight"], abs=1e-5)
    assert torch.allclose(here.head.weight_D, there.head.weight_D, atol=1e-4)
