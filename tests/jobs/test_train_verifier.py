"""The job as a user runs it, with MLflow in the output folder."""

import pytest

from diversed.models import load_pair
from diversed.settings import PairSettings
from diversed.verifier import load_verifier
from jobs import train_verifier

SMALL = [
    "--task.train-size", "3", "--task.max-new-tokens", "20", "--train.prompts-per-update", "2", "--train.rollouts", "2",
    "--train.epochs", "2", "--pair.device", "cpu",
]  # fmt: skip


@pytest.fixture
def run(tmp_path, capfd):
    def start(*arguments):
        code = train_verifier.main([*SMALL, "--output", str(tmp_path / "out"), *arguments])
        return code, capfd.readouterr()

    return start


def runs_of(folder):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'out' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("diversed/arithmetic")
    return client, client.search_runs([experiment.experiment_id])


def test_trains_logs_and_is_not_repeated(run, tmp_path):
    code, printed = run()
    assert code == 0, printed.err
    lines = printed.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2", "verifier"]
    checkpoint = lines[-1].removeprefix("verifier: ")
    assert load_verifier(checkpoint, load_pair(PairSettings()))[1].task == "arithmetic"
    client, (tracked,) = runs_of(tmp_path)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.params["train.rollouts"] == "2"
    rows = client.get_metric_history(tracked.info.run_id, "update/reward")
    assert [row.step for row in rows] == [1, 2, 3, 4]
    assert [row.step for row in client.get_metric_history(tracked.info.run_id, "epoch/token_acceptance")] == [1, 2]
    assert "verifier/verifier.safetensors" in {
        file.path for file in client.list_artifacts(tracked.info.run_id, "verifier")
    }

    code, printed = run()
    assert code == 0, printed.err
    assert printed.out.splitlines()[-1] == lines[-1]
    _, (again,) = runs_of(tmp_path)
    assert (again.info.run_id, again.info.status) == (tracked.info.run_id, "FINISHED")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "nope"], "pair.name = 'nope'"),
        (["--task", "gsm8k", "--data", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--draft-length", "-3"], "decode.draft_length = '-3'"),
        (["--task.max-new-tokens", "5000"], "exceed the pair's context"),
        (["--tracking.uri", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
