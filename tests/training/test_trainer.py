"""The loop and its checkpoints, on laws that are tables; `test_training.py` has the real engine and models."""

import io
import json
import shutil

import pytest
import torch
import yaml
from rich.console import Console

from diversed.errors import CheckpointError, DataError, DiversedError
from diversed.settings import from_record
from diversed.training.trainer import Trainer, latest_checkpoint, learning_rate
from diversed.verifier import load_verifier

WHOLE = ["command.txt", "config.json", "optimizer.safetensors", "run.yaml", "trainer.json", "verifier.safetensors"]
TIMES = ("seconds_rollouts", "seconds_learner")


def untimed(report):
    return {name: value for name, value in report.items() if name not in TIMES}


@pytest.fixture
def trainer_of(pair, task, engines):
    def make(settings, **more):
        return Trainer(settings, pair, task, engines, **more)

    return make


@pytest.fixture
def whole(settings, trainer_of, tmp_path):
    """An uninterrupted run: trainer, reports, folder."""
    trainer = trainer_of(settings)
    return trainer, list(trainer.epochs(tmp_path / "whole")), tmp_path / "whole"


# -- the loop -----------------------------------------------------------------------------------------------------


def test_rate_warms_up_and_ends_at_zero():
    rates = [learning_rate(update, 12, 0.4, warmup=4) for update in range(13)]
    assert rates[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert rates[8] == pytest.approx(0.2)
    assert rates[12] == pytest.approx(0)
    assert sorted(rates[4:], reverse=True) == rates[4:]
    assert learning_rate(0, 12, 0.4, warmup=0) == 0.4
    assert [learning_rate(update, 2, 0.4, warmup=4) for update in range(2)] == pytest.approx([0.1, 0.2])


def test_every_prompt_once_an_epoch_in_another_order_each(whole, engines):
    (engine,) = engines.made
    assert [len(call) for call in engine.calls] == [12, 12, 6] * 3  # 4 + 4 + 2 prompts, 3 rollouts each
    seeds = [request.seed for call in engine.calls for request in call]
    assert len(set(seeds)) == len(seeds) == 90
    prompts = [[request.prompt_ids for call in engine.calls[i : i + 3] for request in call] for i in (0, 3, 6)]
    assert sorted(prompts[0]) == sorted(prompts[1]) == sorted(prompts[2])
    assert prompts[0] != prompts[1] != prompts[2]
    assert engine.closed == 1


def test_the_last_smaller_batch_counts_as_an_update(whole, settings):
    trainer, reports, _ = whole
    assert [report["update"] for report in reports] == [3, 6, 9]
    assert [report["epoch"] for report in reports] == [1, 2, 3]
    rates = [row["learning_rate"] for row in trainer.updates]
    assert rates == pytest.approx([learning_rate(update, 9, 0.05, settings.train.warmup) for update in (6, 7, 8)])


def test_the_engine_weighs_with_the_head_that_is_trained(whole, engines):
    trainer, reports, _ = whole
    assert engines.made[0].head is trainer.head
    weights = [report["mean_weight"] for report in reports]
    assert weights[0] != weights[1] != weights[2]


def test_training_raises_the_objective(settings, trainer_of, tmp_path):
    longer = settings.updated({"train.epochs": 8, "train.lam": 1.0, "task.train_size": 40})
    reports = list(trainer_of(longer).epochs(tmp_path / "long"))
    assert reports[-1]["expected_acceptance"] > reports[0]["expected_acceptance"] + 0.1
    assert reports[-1]["mean_weight"] < reports[0]["mean_weight"] - 0.1


def test_several_passes_are_several_steps(settings, trainer_of, tmp_path):
    once, twice = (trainer_of(settings.updated({"train.passes": passes, "train.epochs": 1})) for passes in (1, 3))
    for name, trainer in (("once", once), ("twice", twice)):
        list(trainer.epochs(tmp_path / name))
    steps = [int(trainer.optimizer.state[trainer.head.bias]["step"]) for trainer in (once, twice)]
    assert steps == [3, 9]
    assert once.update == twice.update == 3


def test_reports_are_plain_numbers(whole):
    trainer, reports, _ = whole
    for row in [*reports, *trainer.updates]:
        assert all(type(value) in (int, float) for value in row.values())
    assert {
        "reward",
        "token_acceptance",
        "block_efficiency",
        "mean_weight",
        "expected_acceptance",
        "longest_repeat",
    } <= reports[0].keys()
    assert {"loss", "gradient_norm", "learning_rate", "reward"} <= trainer.updates[0].keys()


def test_a_line_per_epoch_in_a_log_and_nothing_without_a_console(settings, trainer_of, tmp_path, capsys):
    with (tmp_path / "log").open("w") as log:
        list(trainer_of(settings, console=Console(file=log, width=200)).epochs(tmp_path / "run"))
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    list(trainer_of(settings).epochs(tmp_path / "other"))
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(settings, trainer_of, tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    list(trainer_of(settings.updated({"train.epochs": 1}), console=console).epochs(tmp_path / "run"))
    assert "30/30" in screen.getvalue()
    assert "rollouts" in screen.getvalue()


def test_a_prompt_without_room_for_its_answer_is_refused_before_anything_runs(settings, trainer_of, engines):
    with pytest.raises(DataError, match=r"training prompt train-2: 6 tokens \+ task.max_new_tokens = 35 exceed .* 40"):
        trainer_of(settings.updated({"task.max_new_tokens": 35}))
    assert engines.made == []


def test_divergence_is_an_error_and_leaves_no_checkpoint(settings, trainer_of, tmp_path, engines):
    trainer = trainer_of(settings)
    with torch.no_grad():
        trainer.head.bias.fill_(float("nan"))
    engine_head = trainer.head

    class Calm:  # lets the rollouts go on, so that the learner meets the NaN
        def __call__(self, features):
            return torch.full(features.shape[:-1], 0.5)

    trainer.engines = lambda decode, _head, collect: engines(decode, Calm(), collect)
    with pytest.raises(DiversedError, match=r"diverged at update 1: .* lower train.learning_rate = 0.05"):
        list(trainer.epochs(tmp_path / "run"))
    with pytest.raises(CheckpointError, match="no epoch was finished"):
        latest_checkpoint(tmp_path / "run")
    assert engine_head is trainer.head
    assert engines.made[0].closed == 1


# -- checkpoints --------------------------------------------------------------------------------------------------


def test_each_epoch_is_a_whole_verifier_folder(whole, settings, pair):
    trainer, reports, folder = whole
    assert sorted(path.name for path in folder.iterdir()) == ["epoch-001", "epoch-002", "epoch-003", "latest.json"]
    for epoch, report in enumerate(reports, start=1):
        checkpoint = folder / f"epoch-{epoch:03d}"
        assert sorted(path.name for path in checkpoint.iterdir()) == WHOLE
        assert json.loads((checkpoint / "trainer.json").read_text())["report"] == report
        assert from_record(yaml.safe_load((checkpoint / "run.yaml").read_text())["settings"]) == settings
    assert latest_checkpoint(folder) == folder / "epoch-003"
    head, card = load_verifier(folder / "epoch-003", pair)
    assert torch.equal(head.weight_D, trainer.head.weight_D)
    assert (card.lam, card.task, card.pair) == (0.3, "arithmetic", pair.identity)


@pytest.mark.parametrize("stop_after", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole, settings, trainer_of, tmp_path, stop_after, engines):
    trainer, reports, folder = whole
    broken = tmp_path / "broken"
    first = trainer_of(settings).epochs(broken)
    before = [next(first) for _ in range(stop_after)]
    first.close()  # as an exception of the caller does; a kill leaves the same files
    second = trainer_of(settings)
    after = list(second.epochs(broken))
    assert [untimed(report) for report in before + after] == [untimed(report) for report in reports]
    assert [untimed(row) for row in second.updates] == [untimed(row) for row in trainer.updates]
    for name in ("verifier.safetensors", "optimizer.safetensors", "config.json"):
        assert (broken / "epoch-003" / name).read_bytes() == (folder / "epoch-003" / name).read_bytes()
    assert [engine.closed for engine in engines.made] == [1, 1, 1]


def test_a_run_killed_in_the_middle_of_an_epoch_repeats_that_epoch(whole, settings, trainer_of, tmp_path, engines):
    _, reports, _ = whole
    trainer = trainer_of(settings)
    run = trainer.epochs(tmp_path / "run")
    next(run)
    engine = engines.made[-1]
    generate, calls = engine.generate, []

    def stops(requests, progress=None):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(requests, progress)

    engine.generate = stops
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert latest_checkpoint(tmp_path / "run") == tmp_path / "run" / "epoch-001"
    assert engine.closed == 1
    after = list(trainer_of(settings).epochs(tmp_path / "run"))
    assert [untimed(report) for report in after] == [untimed(report) for report in reports[1:]]


def test_a_finished_run_is_not_repeated_but_known(whole, settings, trainer_of, engines):
    trainer, reports, folder = whole
    again = trainer_of(settings)
    assert list(again.epochs(folder)) == []
    assert len(engines.made) == 1
    assert again.report == reports[-1]
    assert again.updates == trainer.updates
    assert torch.equal(again.head.weight_D, trainer.head.weight_D)


def test_no_resume_starts_over_to_the_same_end(whole, settings, trainer_of):
    _, reports, folder = whole
    again = list(trainer_of(settings.updated({"resume": False})).epochs(folder))
    assert [untimed(report) for report in again] == [untimed(report) for report in reports]


def test_a_folder_of_other_settings_is_refused_by_name(whole, settings, trainer_of):
    _, _, folder = whole
    changed = trainer_of(settings.updated({"train.lam": 0.5}))
    with pytest.raises(
        CheckpointError, match=r"has train.lam = 0.3, this one 0.5; give another folder, or --no-resume"
    ):
        list(changed.epochs(folder))


def test_the_key_names_what_the_trajectory_depends_on(settings, trainer_of, tmp_path):
    key = trainer_of(settings).key
    same = {"output": str(tmp_path), "resume": False, "serve.port": 1, "evaluate.margin": 0.5, "decode.temperature": 0}
    assert trainer_of(settings.updated(same)).key == key
    identity = trainer_of(settings).pair.identity
    identity.update(target="elsewhere/t", name="other label")
    assert trainer_of(settings).key == key
    identity["target_fingerprint"] = "x"
    assert trainer_of(settings).key != key
    identity["target_fingerprint"] = "t" * 8
    for name, value in {"seed": 9, "train.lam": 0.9, "decode.draft_length": 2, "verifier.initial_weight": 0.2}.items():
        assert trainer_of(settings.updated({name: value})).key != key


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "latest.json").write_text("{"),
        lambda folder: shutil.rmtree(folder / "epoch-003"),
        lambda folder: (folder / "epoch-003" / "trainer.json").write_text("[]"),
        lambda folder: (folder / "epoch-003" / "optimizer.safetensors").write_bytes(b"x"),
        lambda folder: (folder / "epoch-003" / "verifier.safetensors").write_bytes(b""),
    ],
)
def test_a_damaged_folder_is_one_line(whole, settings, trainer_of, damage):
    _, _, folder = whole
    damage(folder)
    with pytest.raises(CheckpointError) as refusal:
        list(trainer_of(settings).epochs(folder))
    assert "\n" not in str(refusal.value)
