"""The whole path in miniature: killed in its middle, taken up, to a served reply."""

import json
import subprocess

import pytest

from diversed.models import load_pair
from diversed.settings import PairSettings, Settings
from diversed.tracking import Registry
from diversed.verifier import load_verifier

PIPELINE = ["--search.trials", "1", "--search.concurrent", "1"]
MODEL = "diversed-arithmetic-arithmetic"


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, (out, err)
    assert err == "" or "Traceback" not in err
    return out


@pytest.mark.timeout(900)
def test_a_killed_pipeline_goes_on_at_its_stage_to_a_served_champion(start, mlflow_runs, tmp_path):
    with start("pipeline", *PIPELINE, stderr=subprocess.DEVNULL) as first:
        try:
            seen = []
            for line in first.stdout:
                seen.append(line)
                if line.startswith("[3/6] evaluate"):
                    break
        finally:
            first.kill()
    assert any(line.startswith("[2/6] search: ") for line in seen), seen

    out = finished(start("pipeline", *PIPELINE))
    lines = out.splitlines()
    (attempt,) = (path for path in tmp_path.glob("out/pipelines/*/*") if path.is_dir())
    assert f"[1/6] train: done before, see {attempt / 'train'}" in lines
    assert f"[2/6] search: done before, see {attempt / 'search'}" in lines
    assert [line.split()[0] for line in lines if line.startswith("[") and line.endswith(" ...")] == [
        "[3/6]",
        "[4/6]",
        "[5/6]",
        "[6/6]",
    ]
    state = json.loads((attempt / "state.json").read_text())
    assert state["finished"]
    places = {line.split("  ")[0]: line for line in lines}
    assert {
        "promotion",
        "Pareto figure",
        "MLflow",
        "Ray dashboard",
        "TensorBoard",
        "endpoint",
        "reply",
    } <= places.keys()
    assert (attempt / "evaluate" / "pareto.png").is_file()
    assert places["endpoint"].endswith("it ends with this process")
    assert state["stages"]["request"]["result"]["reply"]

    runs = mlflow_runs()
    assert {run.info.status for run in runs} == {"FINISHED"}
    (parent,) = (run for run in runs if run.data.tags.get("stage") == "pipeline")
    (search,) = (run for run in runs if run.data.tags.get("stage") == "search")
    below = {run.info.run_id: run.data.tags.get("mlflow.parentRunId") for run in runs}
    assert sum(above == parent.info.run_id for above in below.values()) == 4
    assert sum(above == search.info.run_id for above in below.values()) == 1

    settings = Settings(output=tmp_path / "out")
    registry = Registry.of(settings)
    champion = registry.alias_version(MODEL, "champion")
    assert champion is not None
    assert champion.tags["promotion.promoted"] == "true"
    assert state["stages"]["promote"]["result"]["champion"] == champion.uri
    head, card = load_verifier(registry.download(f"models:/{MODEL}@champion"), load_pair(PairSettings(device="cpu")))
    assert head.weight_D.abs().sum() > 0
    assert state["stages"]["search"]["result"]["chosen"]["changes"]["decode.draft_length"] == card.draft_length


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_feasible_candidate_nothing_is_promoted_and_that_is_said(start, tmp_path):
    out = finished(start("pipeline", *PIPELINE, "--evaluate.margin", "0.01"))
    lines = out.splitlines()
    assert any(line.startswith("no feasible candidate; the closest is ") for line in lines)
    assert "nothing is registered: no candidate passed the quality gate" in lines
    assert any(line.startswith("there is no champion: serving the unproven verifier ") for line in lines)
    assert any(line.startswith("reply ") for line in lines)
    assert Registry.of(Settings(output=tmp_path / "out")).alias_version(MODEL, "champion") is None
