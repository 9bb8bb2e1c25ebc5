"""Studies: what is refused before anything is trained, and a small one from its file to its page."""

from pathlib import Path

import pytest

from diversed.settings import load_settings
from jobs import study

Capture = pytest.CaptureFixture[str]
PLAN = """
about: What one should
  know first.
verifiers:
  seed0: {}
  K=2: {train.rollouts: 2}
evaluations:
  main: {evaluate.methods: [strict, "static:weight=0.5", "diversed:checkpoint=seed0", "diversed:checkpoint=K=2:cap=2"]}
  default: {verifier.checkpoint: seed0, evaluate.methods: [strict, diversed]}
  shorter: {evaluate.draft_lengths: [2], evaluate.methods: [strict, "diversed:checkpoint=K=2"]}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("[]", "must hold verifiers and evaluations"),
        ("verifiers: {}", "must hold verifiers and evaluations"),
        ("{verifiers: {a: 1}, evaluations: {}}", "verifiers: must map names to settings"),
        ("{verifiers: {a: {train.lamda: 1}}, evaluations: {}}", "train.lamda: no such setting"),
        ("{verifiers: {}, evaluations: {a: {evaluate.samples: 0}}}", "evaluate.samples = 0"),
        ("{verifiers: {}, evaluations: {a: {evaluate.methods: [best]}}}", "method 'best' is none of"),
    ],
)
def test_bad_files(tmp_path: Path, capsys: Capture, text: str, message: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert study.main([str(path), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "out").exists()


def test_bad_arguments(tmp_path: Path, capsys: Capture) -> None:
    assert study.main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: No such file" in capsys.readouterr().err
    assert study.main([]) == 0
    assert study.main(["--seed", "1"]) == 2


@pytest.mark.parametrize("name", ["arithmetic", "easy", "smollm2"])
def test_the_committed_studies_are_valid(repository: Path, name: str) -> None:
    plan = study.read_plan(repository / "jobs" / f"study_{name}.yaml")
    assert plan.about
    settings = load_settings([])
    for changes in [*plan.verifiers.values(), *plan.evaluations.values()]:
        settings.updated(changes)
    folders = {name: Path("/v") / str(i) for i, name in enumerate(plan.verifiers)}
    first = next(iter(folders))
    with_folder = study._with_folder(f"diversed:checkpoint={first}:cap=2", folders)
    assert with_folder == f"diversed:checkpoint={first}={folders[first]}:cap=2"
    named_as_checkpoint = settings.updated({"verifier.checkpoint": first})
    assert study._with_checkpoint(named_as_checkpoint, folders).verifier.checkpoint == "/v/0"
    assert study._with_checkpoint(settings, folders) is settings
    named = [m for each in plan.evaluations.values() for m in each["evaluate.methods"] if "checkpoint" in m]
    assert all("=/v/" in study._with_folder(method, folders) for method in named)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    small = {
        "--output": str(tmp_path / "out"), "--pair.device": "cpu", "--task.train-size": "8", "--train.epochs": "1",
        "--task.test-size": "12", "--evaluate.speed-prompts": "2", "--evaluate.speed-repeats": "1",
        "--evaluate.resamples": "100",
    }  # fmt: skip
    arguments = [str(path), *(word for item in small.items() for word in item)]
    assert study.main(arguments) == 0
    page = (tmp_path / "out" / "studies" / "plan.html").read_text()
    for label in (
        "What one should know first.",
        "main: arithmetic-arithmetic, T = 1, N = 7",
        "shorter: arithmetic",
        "default: arithmetic",
        "diversed (seed0)",
        "diversed cap=2 (K=2)",
        "static w=0.5",
    ):
        assert label in page
    capfd.readouterr()
    assert study.main(arguments) == 0  # all is there
    assert "samples, recorded" in capfd.readouterr().out
    assert (tmp_path / "out" / "studies" / "plan.html").read_text() == page
