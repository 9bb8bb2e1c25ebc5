"""What a user gets for input that cannot be used: one line that names it and exit code 2, before anything starts."""

import dataclasses
import importlib

import pytest

from diversed.models import load_pair
from diversed.settings import PairSettings, Settings
from diversed.verifier import Head, VerifierCard, save_verifier

ROW = '{"question": "1 + 1?", "answer": "#### 2"}\n'


@pytest.fixture
def refused(tiny, tmp_path, capsys):
    """Runs commands in this process; the stderr line of each."""

    def run(*commands: tuple[str, ...]) -> list[str]:
        lines = []
        for job, *arguments in commands:
            capsys.readouterr()
            code = importlib.import_module(f"jobs.{job}").main([*tiny, "--output", str(tmp_path / "out"), *arguments])
            err = capsys.readouterr().err
            assert (code, err.count("\n")) == (2, 1), err
            assert err.startswith("error: ")
            lines.append(err.removeprefix("error: ").rstrip("\n"))
        return lines

    return run


def test_a_process_ends_with_2_and_one_line(start):
    process = start("pipeline", "--pair", "nope")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 2, (out, err)
    assert err.startswith("error: pair.name = 'nope': not a built-in pair (arithmetic, smollm2)")
    assert err.count("\n") == 1


def test_unknown_pair_task_and_negative_draft_length(refused, tmp_path):
    pair, task, length = refused(
        ("pipeline", "--pair", "nope"), ("pipeline", "--task", "nope"), ("pipeline", "--draft-length", "-1")
    )
    assert pair.startswith("pair.name = 'nope': not a built-in pair (arithmetic, smollm2)")
    assert task.startswith("task.name = 'nope': no such task; choose one of arithmetic, cnndm, gsm8k")
    assert length.startswith("decode.draft_length = '-1': ")
    assert not (tmp_path / "out" / "pipelines").exists()


def test_missing_and_malformed_data_files(refused, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text(ROW * 2 + "{not json}\n" + ROW)
    missing, malformed = (
        ("pipeline", "--task", "gsm8k", "--data", str(tmp_path / name)) for name in ("missing.jsonl", "broken.jsonl")
    )
    first, second = refused(missing, malformed)
    assert first.startswith(f"task.data = {tmp_path / 'missing.jsonl'}: No such file or directory")
    assert str(broken) in second
    assert "line 3" in second


def test_a_tracking_server_that_does_not_answer(refused):
    uri = "http://127.0.0.1:9"  # the discard port: refused at once
    lines = refused(*((job, "--tracking.uri", uri) for job in ("pipeline", "tune_verifier", "train_verifier")))
    assert all(line.startswith(f"tracking.uri = '{uri}': ") for line in lines)


def test_a_checkpoint_of_another_pair_or_none(refused, tmp_path):
    pair = load_pair(PairSettings(device="cpu"))
    card = VerifierCard.of(Settings(), pair)
    other = dataclasses.replace(card, pair={**card.pair, "name": "another", "target_fingerprint": "0" * 32})
    save_verifier(tmp_path / "verifier", Head(pair.draft_dim, pair.target_dim), other)
    foreign = ("--verifier-checkpoint", str(tmp_path / "verifier"))
    evaluated, promoted, missing, none, pipeline = refused(
        ("evaluate", *foreign),
        ("promote", *foreign),
        ("promote", "--verifier-checkpoint", str(tmp_path / "nowhere")),
        ("promote",),
        ("pipeline", *foreign),
    )
    for line in (evaluated, promoted):
        assert "made for pair 'another', not for pair 'arithmetic': target_fingerprint is '000000" in line
    assert "nowhere': no such folder" in missing
    assert none.startswith("verifier.checkpoint is not given")
    assert pipeline.endswith("use jobs.evaluate, jobs.promote and jobs.deploy")


def test_an_unknown_space(refused):
    (line,) = refused(("tune_verifier", "--search.space", "defualt"))
    assert line == "search.space = 'defualt': no such module in tune_spaces/; there are: default"
