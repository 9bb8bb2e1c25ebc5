import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from diversed.artifacts import replace_folder, write_run_record
from diversed.errors import CheckpointError
from diversed.settings import Settings
from diversed.verifier import Head, VerifierCard, import_two_row, load_verifier, save_verifier

IDENTITY = {
    "name": "some", "target": "org/target", "draft": "org/draft", "target_fingerprint": "t" * 8,
    "draft_fingerprint": "d" * 8, "target_dim": 3, "draft_dim": 2, "vocab_size": 11,
}  # fmt: skip


def pair_of(**changes):
    identity = IDENTITY | changes
    attributes = {name: identity[name] for name in ("name", "target_dim", "draft_dim")}
    return SimpleNamespace(identity=identity, device=torch.device("cpu"), **attributes)


@pytest.fixture
def head():
    torch.manual_seed(0)
    head = Head(2, 3, 0.3)
    torch.nn.init.normal_(head.weight_D)
    return head


@pytest.fixture
def card():
    return VerifierCard.of(Settings(seed=4, train={"lam": 0.3}, decode={"draft_length": 7}), pair_of())


@pytest.fixture
def folder(tmp_path, head, card):
    save_verifier(tmp_path / "verifier", head, card)
    return tmp_path / "verifier"


def test_round_trip_is_exact(folder, head, card):
    loaded, loaded_card = load_verifier(folder, pair_of())
    assert loaded_card == card
    assert torch.equal(loaded.weight_D, head.weight_D)
    assert torch.equal(loaded.bias, head.bias)
    assert load_verifier(str(folder), pair_of())[1] == card


def test_config_says_what_the_head_belongs_to(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["pair"] == IDENTITY
    assert (config["task"], config["lam"], config["initial_weight"], config["draft_length"]) == (
        "arithmetic",
        0.3,
        0.5,
        7,
    )
    assert {"git_commit", "seed", "temperature", "format", "format_version"} <= config.keys()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "verifier.safetensors"]


def test_stands_beside_the_run_record(tmp_path, head, card):
    with replace_folder(tmp_path / "v") as new:
        save_verifier(new, head, card)
        write_run_record(new, Settings())
    names = sorted(path.name for path in (tmp_path / "v").iterdir())
    assert names == ["command.txt", "config.json", "run.yaml", "verifier.safetensors"]
    load_verifier(tmp_path / "v", pair_of())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_dim": 5}, "target_dim is 3, the pair's 5"),
        ({"draft_dim": 9}, "draft_dim is 2, the pair's 9"),
        ({"vocab_size": 12}, "vocab_size is 11, the pair's 12"),
        ({"target_fingerprint": "x"}, "target_fingerprint is 'tttttttt', the pair's 'x'"),
        ({"draft_fingerprint": "x", "draft": "org/d2"}, "draft is 'org/draft', the pair's 'org/d2'"),
    ],
)
def test_another_pair_is_refused_by_the_name_of_the_mismatch(folder, changes, message):
    with pytest.raises(CheckpointError) as refusal:
        load_verifier(folder, pair_of(name="other", **changes))
    text = str(refusal.value)
    assert message in text
    assert f"verifier.checkpoint = {str(folder)!r}: made for pair 'some', not for pair 'other'" in text
    assert "--pair" in text
    assert "\n" not in text


def test_the_same_models_under_other_names_are_the_same_pair(folder):
    load_verifier(folder, pair_of(name="label", target="elsewhere/target", draft="elsewhere/draft"))


def edit(**changes):
    """Change fields of config.json; None takes a field out."""

    def apply(folder):
        values = json.loads((folder / "config.json").read_text()) | changes
        kept = {name: value for name, value in values.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return apply


def config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def weights(**tensors):
    return lambda folder: safetensors.torch.save_file(tensors, folder / "verifier.safetensors")


def cut(name, keep):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "no such folder"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: (folder / "verifier.safetensors").unlink(), "verifier.safetensors: No such file"),
        (cut("config.json", -20), "config.json is damaged"),
        (config('{"model_type": "llama"}'), "is not a verifier's"),
        (config("[]"), "is not a verifier's"),
        (edit(task=None), "lacks field 'task'"),
        (edit(extra=1), "unknown field 'extra'"),
        (edit(draft_length="five"), "draft_length = 'five'"),
        (edit(format_version=2), "format_version is 2, this version reads 1"),
        (cut("verifier.safetensors", -3), "verifier.safetensors is damaged"),
        (cut("verifier.safetensors", 0), "verifier.safetensors is damaged"),
        (weights(weight=torch.zeros(4), bias=torch.zeros(())), "instead of {'weight': (5,), 'bias': ()}"),
        (weights(w=torch.zeros(5), bias=torch.zeros(())), "instead of {'weight': (5,), 'bias': ()}"),
        (weights(weight=torch.full((5,), math.nan), bias=torch.zeros(())), "NaN or infinite"),
        (weights(weight=torch.zeros(5), bias=torch.tensor(math.inf)), "NaN or infinite"),
    ],
)
def test_damage_is_one_line(folder, damage, message):
    damage(folder)
    with pytest.raises(CheckpointError) as refusal:
        load_verifier(folder, pair_of())
    assert message in str(refusal.value)
    assert str(refusal.value).startswith("verifier.checkpoint = ")


def test_no_commit_is_null(tmp_path, head, card):
    save_verifier(tmp_path / "v", head, replace(card, git_commit=None))
    assert load_verifier(tmp_path / "v", pair_of())[1].git_commit is None


@pytest.fixture(params=["safetensors", "pt"])
def two_row(request, tmp_path):
    torch.manual_seed(1)
    linear = torch.nn.Linear(5, 2)
    path = tmp_path / f"ensemble.{request.param}"
    if request.param == "safetensors":
        safetensors.torch.save_file(linear.state_dict(), path)
    else:
        torch.save(linear.state_dict(), path)
    return linear, path


def test_two_row_form_is_imported_exactly(two_row):
    linear, path = two_row
    features_BD = torch.randn(200, 5)
    w_B = import_two_row(path, draft_dim=2, target_dim=3)(features_BD)
    exact_B = linear.double()(features_BD.double()).softmax(-1)[:, 1]  # row 0 draft, row 1 target
    assert torch.allclose(w_B.double(), exact_B, atol=2e-7, rtol=0)  # float32 rounding


def test_two_row_form_of_other_dimensions_is_refused(two_row):
    with pytest.raises(CheckpointError, match=r"instead of a \(2, 6\) weight and a \(2,\) bias"):
        import_two_row(two_row[1], draft_dim=3, target_dim=3)


class Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_a_torch_file_runs_no_code(tmp_path, capsys):
    torch.save({"weight": torch.zeros(2, 5), "bias": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="not a torch file of plain tensors"):
        import_two_row(tmp_path / "evil.pt", 2, 3)
    assert "ran" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"not a file of torch", None])
def test_unreadable_two_row_files(tmp_path, content):
    path = tmp_path / "v.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError):
        import_two_row(path, 2, 3)
    torch.save([torch.zeros(2, 5)], path)
    with pytest.raises(CheckpointError, match="not a flat mapping"):
        import_two_row(path, 2, 3)
