"""The whole path in miniature: killed in the middle of its search, taken up, to a served reply."""

import json
import subprocess
from pathlib import Path

import pytest

from diversed.models import load_pair
from diversed.settings import PairSettings, Settings
from diversed.tracking import Registry
from diversed.tuning.candidates import Candidate
from diversed.verifier import load_verifier

ONE_AT_A_TIME = ["--search.trials", "3", "--search.concurrent", "1"]
MODEL = "diversed-arithmetic-arithmetic"


def finished(process: subprocess.Popen[str]) -> list[str]:
    """Lines of stdout of a job that succeeds."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, (out, err)
    return out.splitlines()


def has_hparams(trial: Path) -> bool:
    """Whether the trial's TensorBoard events hold its hyperparameters."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trial))
    events.Reload()
    return any("hparams" in tag for tag in events.summary_metadata)


@pytest.mark.timeout(900)
def test_killed_in_its_search_it_is_taken_up_there_and_ends_with_a_served_champion(
    start, read_until, mlflow_runs, tmp_path
):
    with start("pipeline", *ONE_AT_A_TIME, stderr=subprocess.DEVNULL) as first:
        try:
            before = read_until(first, "trial-2/3")
        finally:
            first.kill()
    assert sum(line.startswith("trial-1/3") for line in before) == 1
    (attempt,) = (path for path in tmp_path.glob("out/pipelines/*/*") if path.is_dir())
    assert list(json.loads((attempt / "state.json").read_text())["stages"]) == ["train"]
    assert "RUNNING" in {run.info.status for run in mlflow_runs()}

    lines = finished(start("pipeline", *ONE_AT_A_TIME))
    assert f"[1/6] train: done before, see {attempt / 'train'}" in lines
    assert "the search is taken up where it was interrupted" in lines
    assert not any(line.startswith("trial-1/3") for line in lines)
    assert sum(line.startswith("trial-3/3") for line in lines) == 1
    state = json.loads((attempt / "state.json").read_text())
    assert state["finished"]
    results = {name: stage["result"] for name, stage in state["stages"].items()}
    assert list(results) == ["train", "search", "evaluate", "promote", "deploy", "request"]
    assert results["request"]["reply"]
    assert Path(results["evaluate"]["figure"]).is_file()
    places = {line.split("  ")[0]: line for line in lines}
    for place in ("promotion", "Pareto figure", "MLflow", "Ray dashboard", "TensorBoard", "endpoint", "prompt"):
        assert place in places
    assert places["endpoint"].endswith("it ends with this process")
    assert places["reply"].endswith(repr(results["request"]["reply"]))

    candidates = [Candidate.of(record) for record in json.loads((attempt / "search/candidates.json").read_text())]
    trained, *trials = candidates
    assert [trained.name, *sorted(trial.name for trial in trials)] == ["train", "trial-1", "trial-2", "trial-3"]
    assert len({tuple(candidate.changes.items()) for candidate in candidates}) == 4  # its point is not tried again
    assert all(has_hparams(trial.folder.parent.parent) for trial in trials)

    runs = mlflow_runs()
    stages = {run.data.tags["stage"]: run for run in runs if "stage" in run.data.tags}
    below = [run.data.tags.get("mlflow.parentRunId") for run in runs]
    assert stages.keys() == {"pipeline", "train", "search", "evaluate", "promote"}
    assert below.count(stages["pipeline"].info.run_id) == 4
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == stages["search"].info.run_id]
    assert len(runs) == len(stages) + len(children)
    # Of trials: 3 are finished; a 4th may have been born after the last snapshot, unknown to the resumed search.
    assert {run.info.status for run in stages.values()} == {"FINISHED"}
    done = [run for run in children if run.info.status == "FINISHED"]
    assert {run.info.status for run in children} <= {"FINISHED", "KILLED"}
    assert sorted(run.info.run_name for run in done) == ["trial-1", "trial-2", "trial-3"]
    assert all({"score", "token_acceptance", "train_reward"} <= run.data.metrics.keys() for run in done)
    assert all("train.lam" in run.data.params for run in done)

    registry = Registry.of(Settings(output=tmp_path / "out"))
    champion = registry.alias_version(MODEL, "champion")
    assert champion is not None
    assert champion.tags["promotion.promoted"] == "true"
    assert results["promote"]["champion"] == champion.uri
    chosen = results["search"]["chosen"]
    with registry.files(f"models:/{MODEL}@champion") as folder:
        _, card = load_verifier(folder, load_pair(PairSettings(device="cpu")))
    assert (card.lam, card.draft_length) == (chosen["changes"]["train.lam"], chosen["changes"]["decode.draft_length"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_feasible_candidate_nothing_is_promoted_and_that_is_said(start, tmp_path):
    lines = finished(start("pipeline", "--search.trials", "1", "--evaluate.margin", "0.01"))
    assert any(line.startswith("no feasible candidate; the closest is ") for line in lines)
    assert "nothing is registered: no candidate passed the quality gate" in lines
    assert any(line.startswith("there is no champion: serving the unproven verifier ") for line in lines)
    assert any(line.startswith("reply ") for line in lines)
    assert Registry.of(Settings(output=tmp_path / "out")).alias_version(MODEL, "champion") is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_again_it_meets_its_own_champion(start):
    """Training is seeded: the second attempt ends with the same verifier, which is not registered twice."""
    arguments = ["pipeline", "--search.trials", "1"]
    finished(start(*arguments))
    lines = finished(start(*arguments))
    assert any("the verifier is the champion already" in line for line in lines)
    assert any(line.startswith("endpoint ") and "-v1" in line for line in lines)
