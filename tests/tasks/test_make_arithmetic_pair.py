"""The job that trains the embedded pair, and the committed pair itself."""

import random
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from diversed.tasks.arithmetic import PRESETS, PROBLEMS
from jobs import make_arithmetic_pair as job

SIDES = ("target", "draft")


def test_a_short_run_writes_two_loadable_models_and_their_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MEASURED_PROMPTS", 4)
    threads = torch.get_num_threads()
    flags = "--preset easy --target-steps 2 --draft-steps 3 --threads 1 --output"
    job.main([*flags.split(), str(tmp_path)])
    torch.set_num_threads(threads)
    for side in SIDES:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / side)
        assert model.dtype == torch.float32
        assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path / side))
        generation = GenerationConfig.from_pretrained(tmp_path / side)
        assert (generation.do_sample, generation.top_k, generation.top_p) == (True, 0, 1.0)
        assert (generation.eos_token_id, generation.pad_token_id) == (1, 0)
    record = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert (record["preset"], record["seed"], record["recipes"]["draft"]["steps"]) == ("easy", 0, 3)
    assert record["measured"].keys() == {"accuracy", "strict_acceptance", "prompts"}
    assert {"command", "git_commit", "packages", "date"} <= record["provenance"].keys()


def test_only_the_hard_preset_may_replace_the_embedded_pair(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        job.main(["--preset", "easy"])
    assert "--output: the embedded pair is the hard one; give a folder for --preset easy" in capsys.readouterr().err


def test_only_solutions_carry_loss() -> None:
    tokenizer = job.make_tokenizer()
    ids, labels = job.training_batch(tokenizer, PRESETS["hard"].draft, random.Random(0), rows=8)
    for row, row_labels in zip(ids, labels, strict=True):
        taught = row_labels != -100
        assert torch.equal(row[taught], row_labels[taught])
        assert row_labels[taught][-1] == tokenizer.eos_token_id
        question = tokenizer.decode(row[: int(taught.int().argmax())])
        assert question.endswith("?\n")
        assert not tokenizer.decode(row[taught]).startswith("\n")


def test_the_committed_pair_is_what_the_job_makes_now() -> None:
    record = yaml.safe_load((job.EMBEDDED / "run.yaml").read_text())
    assert record["recipes"] == {"target": asdict(job.TARGET), "draft": asdict(job.DRAFT)}
    styles = {side: asdict(getattr(PRESETS["hard"], side)) for side in SIDES}
    assert record["styles"] == yaml.safe_load(yaml.safe_dump(styles))
    made = job.make_tokenizer().backend_tokenizer.to_str(pretty=True)
    for side in SIDES:
        assert (job.EMBEDDED / side / "tokenizer.json").read_text() == made
    assert sum(file.stat().st_size for file in job.EMBEDDED.rglob("*") if file.is_file()) < 5_000_000


def test_the_committed_pair_measures_as_recorded() -> None:
    """80 prompts: the accuracy's standard error is .04."""
    torch.manual_seed(0)
    pair = [AutoModelForCausalLM.from_pretrained(job.EMBEDDED / side).eval() for side in SIDES]
    measured = job.measure(*pair, job.make_tokenizer(), random.Random(0).sample(PROBLEMS, 80))
    recorded = yaml.safe_load((job.EMBEDDED / "run.yaml").read_text())["measured"]
    assert measured["accuracy"] == pytest.approx(recorded["accuracy"], abs=0.12)
    assert measured["strict_acceptance"] == pytest.approx(recorded["strict_acceptance"], abs=0.02)
