"""A search as a job of its own, killed with -9 in its middle and started again (in the pipeline: test_pipeline.py)."""

import json
import subprocess
from pathlib import Path

import pytest

from diversed.models import load_pair
from diversed.settings import PairSettings
from diversed.tuning.candidates import Candidate, select
from diversed.verifier import load_verifier

SEARCH = ["--search.trials", "3", "--search.concurrent", "1"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_search_is_taken_up_with_its_finished_trials(start, read_until, mlflow_runs, tmp_path):
    with start("tune_verifier", *SEARCH, stderr=subprocess.DEVNULL) as first:
        try:
            # Trial 1 has ended before trial 2 starts; its report, some seconds later, is newer than the last snapshot.
            before = read_until(first, "trial-2/3")
        finally:
            first.kill()
    assert sum(line.startswith("trial-1/3") for line in before) == 1
    (attempt,) = (path for path in tmp_path.glob("out/searches/*/*") if path.is_dir())
    assert not json.loads((attempt / "state.json").read_text())["finished"]
    assert "RUNNING" in {run.info.status for run in mlflow_runs()}

    second = start("tune_verifier", *SEARCH)
    out, err = second.communicate(timeout=400)
    assert second.returncode == 0, err
    lines = out.splitlines()
    assert "the search is taken up where it was interrupted" in lines
    assert not any(line.startswith("trial-1/3") for line in lines)
    assert sum(line.startswith("trial-3/3") for line in lines) == 1
    assert any(line.startswith("promote it: python -m jobs.promote --verifier-checkpoint ") for line in lines)

    candidates = [Candidate.of(record) for record in json.loads((attempt / "candidates.json").read_text())]
    assert sorted(candidate.name for candidate in candidates) == ["trial-1", "trial-2", "trial-3"]
    assert len({tuple(candidate.changes.items()) for candidate in candidates}) == 3
    best = select(candidates).best
    assert best is not None
    _, card = load_verifier(best.folder, load_pair(PairSettings(device="cpu")))
    assert card.draft_length == best.changes["decode.draft_length"]
    assert card.lam == best.changes["train.lam"]

    runs = mlflow_runs()
    (parent,) = (run for run in runs if run.data.tags.get("stage") == "search")
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len(runs) == len(children) + 1
    assert parent.info.status == "FINISHED"
    statuses = [run.info.status for run in children]
    assert statuses.count("FINISHED") == 3
    # A trial that was born after the last snapshot is not known to the resumed search, which starts it anew.
    assert set(statuses) <= {"FINISHED", "KILLED"}
    finished = [run for run in children if run.info.status == "FINISHED"]
    assert {run.info.run_name for run in finished} == {"trial-1", "trial-2", "trial-3"}
    assert all({"score", "token_acceptance", "train_reward"} <= run.data.metrics.keys() for run in finished)
    assert all("train.lam" in run.data.params for run in finished)
    assert all(has_hparams(candidate.folder) for candidate in candidates)


def has_hparams(verifier: Path) -> bool:
    """Whether the trial's TensorBoard events, beside its checkpoints, hold its hyperparameters."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(verifier.parent.parent))
    events.Reload()
    return any("hparams" in tag for tag in events.summary_metadata)
