"""Pairs of real tiny models in folders and GGUF files: what is accepted, what is refused and in which words."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedTokenizerFast

from diversed.errors import PairError, RequestError
from diversed.models import BUILT_IN, load_pair, set_threads
from diversed.models.pair import _usable_device
from diversed.settings import PairSettings


def _load_all(settings):
    pair = load_pair(settings)
    return pair.target, pair.draft


def refusal(settings):
    """The one line with which `load_pair`, or the loading of both models, refuses."""
    with pytest.raises(PairError) as refused:
        _load_all(settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def with_vocabulary(tokenizer, change):
    """The same tokenizer with `change(vocabulary)` for its ordinary tokens' ids."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"] = change(state["model"]["vocab"])
    backend = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


def swapped(vocabulary):
    return vocabulary | {"hello": vocabulary["Ġworld"], "Ġworld": vocabulary["hello"]}


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_pair_of_folders(settings, tokenizer):
    pair = load_pair(settings)
    assert (pair.name, pair.vocab_size, pair.eos_ids, pair.pad_id) == ("tiny", len(tokenizer), (1,), 0)
    assert (pair.target_dim, pair.draft_dim, pair.context, pair.draft_context) == (32, 16, 128, 96)
    assert pair.device == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert pair.decode(pair.encode("hello café 😀")) == "hello café 😀"
    assert pair.decode([*pair.encode("one  two ."), 1, 0]) == "one  two ."  # special tokens skipped, spaces kept


def test_weights_load_at_the_first_use(settings):
    pair = load_pair(settings)
    assert not {"target", "draft"} & vars(pair).keys()
    assert pair.draft.config.num_hidden_layers == 1
    assert "target" not in vars(pair)
    assert pair.draft is pair.draft


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_are_for_inference(settings, dtype):
    pair = load_pair(settings.model_copy(update={"dtype": PairSettings(dtype=dtype).dtype}))
    for model in (pair.target, pair.draft):
        assert not model.training
        assert {(weight.dtype, weight.requires_grad) for weight in model.parameters()} == {
            (getattr(torch, dtype), False)
        }


def test_threads():
    before = torch.get_num_threads()
    try:
        set_threads(2)
        assert torch.get_num_threads() == 2
    finally:
        set_threads(before)


class TestEndOfText:
    def test_union_of_generation_config_and_tokenizer(self, settings, tokenizer):
        other = tokenizer.convert_tokens_to_ids("<start>")
        for given, expected in ((other, (1, 2)), ([other, 7], (1, 2, 7)), (None, (1,))):
            GenerationConfig(eos_token_id=given).save_pretrained(settings.target)
            assert load_pair(settings).eos_ids == expected

    def test_without_a_generation_config_the_config_counts(self, settings):
        Path(settings.target, "generation_config.json").unlink()
        edit_json(Path(settings.target, "config.json"), eos_token_id=[2, 5])
        assert load_pair(settings).eos_ids == (1, 2, 5)

    def test_sampling_filters_are_not_inherited(self, settings):
        """A checkpoint's top_k would change the law of every method that goes through `generate`."""
        GenerationConfig(
            do_sample=True, top_k=7, top_p=0.5, temperature=0.3, repetition_penalty=1.2, eos_token_id=1
        ).save_pretrained(settings.target)
        kept = load_pair(settings).target.generation_config.to_diff_dict()
        kept.pop("transformers_version")
        assert kept == {"eos_token_id": [1], "pad_token_id": 0}


class TestVocabulary:
    @pytest.mark.parametrize("padded", ["target", "draft", "both"])
    def test_case_06_padded_columns_are_no_tokens(self, folder, tokenizer, padded):
        """Case 6: logits of V and V+128 columns belong to one tokenizer."""
        size = len(tokenizer)
        columns = {role: size + 128 * (padded in (role, "both")) for role in ("target", "draft")}
        paths = {role: folder(role, vocab_size=width) for role, width in columns.items()}
        pair = load_pair(PairSettings(name="padded", **paths))
        assert pair.vocab_size == size
        ids = torch.tensor([pair.encode("hello world")], device=pair.device)
        for role, width in columns.items():
            assert getattr(pair, role)(ids).logits.shape[-1] == width

    def test_case_06_equal_size_other_ids(self, folder, tokenizer):
        """Case 6: the same number of tokens is not the same vocabulary."""
        other = with_vocabulary(tokenizer, swapped)
        assert len(other) == len(tokenizer)
        message = refusal(PairSettings(name="p", target=folder("a"), draft=folder("b", other)))
        one, two = tokenizer.convert_tokens_to_ids(["Ġworld", "hello"])
        example = re.search(r"'(\S+)' has id (\d+) and (\d+)", message)
        assert {example[1]} < {"hello", "Ġworld"}
        assert {int(example[2]), int(example[3])} == {one, two}
        assert message.endswith("give two models with one tokenizer")

    def test_case_06_more_tokens(self, folder, tokenizer):
        more = with_vocabulary(tokenizer, lambda vocabulary: vocabulary | {"zebra": len(vocabulary)})
        message = refusal(PairSettings(name="p", target=folder("a"), draft=folder("b", more)))
        size = len(tokenizer)
        assert f"of {size} and {size + 1} tokens: 'zebra' has id none and {size}" in message

    def test_special_tokens_must_agree(self, folder, tokenizer):
        other = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer, eos_token="<start>", pad_token="<pad>"
        )
        message = refusal(PairSettings(name="p", target=folder("a"), draft=folder("b", other)))
        assert "differ in eos_token_id: 1 and 2" in message

    def test_fewer_logits_than_tokens(self, folder, tokenizer):
        size = len(tokenizer)
        message = refusal(PairSettings(name="p", target=folder("a"), draft=folder("b", vocab_size=size - 1)))
        assert f"{size - 1} logits for a tokenizer of {size} ids" in message


class TestNames:
    def test_the_embedded_pair_is_the_default(self):
        pair = load_pair(PairSettings())
        assert (pair.identity["target"], pair.identity["draft"]) == ("arithmetic/target", "arithmetic/draft")
        assert (pair.target_dim, pair.draft_dim) == (96, 48)
        assert (pair.target.config.num_hidden_layers, pair.draft.config.num_hidden_layers) == (8, 1)

    def test_unknown(self):
        message = refusal(PairSettings(name="nosuch"))
        assert "'nosuch'" in message
        assert all(name in message for name in (*BUILT_IN, "--pair.target", "--pair.draft"))

    @pytest.mark.parametrize("name", [*BUILT_IN, "a/b", ""])
    def test_a_pair_of_ones_own_needs_a_label_of_its_own(self, settings, name):
        assert "give --pair a label of its own" in refusal(settings.model_copy(update={"name": name}))

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("/nosuch/folder", "no such folder"),
            ("nosuch.gguf", "no such .gguf file"),
            ("org/nosuch-model", "neither a local folder nor to be had from the hub"),
            ("nosuch-model", "neither a local folder nor to be had from the hub"),
        ],
    )
    def test_missing_model(self, settings, target, words):
        message = refusal(settings.model_copy(update={"target": target}))
        assert words in message
        assert target in message

    def test_folder_without_a_model(self, settings, tmp_path):
        (tmp_path / "empty").mkdir()
        message = refusal(settings.model_copy(update={"draft": str(tmp_path / "empty")}))
        assert message.startswith("pair.draft = ")
        assert "no config.json" in message

    def test_smollm2_before_it_is_fetched(self, tmp_path):
        message = refusal(PairSettings(name="smollm2", cache_dir=tmp_path, draft_layers=24))
        assert "python -m jobs.fetch_smollm2 --pair.draft-layers 24" in message

    def test_smollm2_with_a_draft_that_is_not_there(self, tmp_path, folder):
        shutil.copytree(folder("any"), tmp_path / "smollm2" / "target")
        message = refusal(PairSettings(name="smollm2", cache_dir=tmp_path, draft_layers=3))
        assert "draft-3" in message
        assert "--pair.draft-layers 3" in message

    def test_a_hub_id_in_the_hub_cache(self, settings, tmp_path, monkeypatch):
        """As `huggingface_hub` lays its cache out; offline, so nothing else can answer."""
        for role in ("target", "draft"):
            repository = tmp_path / "hub" / f"models--org--{role}"
            shutil.copytree(getattr(settings, role), repository / "snapshots" / ("0123456789" * 4))
            (repository / "refs").mkdir()
            (repository / "refs" / "main").write_text("0123456789" * 4)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        hub = load_pair(settings.model_copy(update={"target": "org/target", "draft": "org/draft"}))
        local = load_pair(settings)
        assert hub.target.config.hidden_size == 32
        assert (hub.identity["target"], hub.identity["draft"]) == ("org/target", "org/draft")
        assert hub.identity["target_fingerprint"] == local.identity["target_fingerprint"]


class TestFiles:
    def test_other_architectures_are_refused_before_anything_loads(self, settings):
        edit_json(Path(settings.draft, "config.json"), model_type="mamba", architectures=["MambaForCausalLM"])
        assert "mamba): recurrent layers" in refusal(settings)

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("config.json", b"{"),
            ("config.json", b'{"model_type": "nosuch"}'),
            ("tokenizer.json", b"{}"),
            ("model.safetensors", b"\xff" * 100),
        ],
    )
    def test_damaged(self, settings, file, content):
        Path(settings.target, file).write_bytes(content)
        message = refusal(settings)
        assert message.startswith(f"model {settings.target}: cannot be read: ")

    def test_weights_of_another_form(self, settings):
        edit_json(Path(settings.target, "config.json"), intermediate_size=128)
        assert "cannot be read" in refusal(settings)

    def test_lacking_weights_are_not_drawn_at_random(self, settings):
        edit_json(Path(settings.target, "config.json"), num_hidden_layers=3)
        assert "its files lack weights, e.g. model.layers.2.input_layernorm.weight" in refusal(settings)

    def test_no_safetensors(self, settings):
        Path(settings.target, "model.safetensors").unlink()
        assert "no model*.safetensors in" in refusal(settings)


class TestDevice:
    @pytest.mark.parametrize("device", ["cuda:99", "nosuch"])
    def test_not_to_be_had(self, settings, device):
        message = refusal(settings.model_copy(update={"device": device}))
        assert message.startswith(f"pair.device = {device!r}")

    def test_dtype_that_the_device_cannot_compute_in(self):
        """Every real dtype of the settings works on this CPU, so one that none computes attention in stands for it."""
        with pytest.raises(PairError, match=r"pair.dtype = 'int8': device cpu cannot compute in it; give float32"):
            _usable_device("cpu", torch.int8)


class TestIdentity:
    def test_names_dimensions_and_files(self, settings, tokenizer):
        identity = load_pair(settings).identity
        fields = "name target draft target_fingerprint draft_fingerprint target_dim draft_dim vocab_size"
        assert set(identity) == set(fields.split())
        assert (identity["name"], identity["target"]) == ("tiny", settings.target)
        assert (identity["target_dim"], identity["draft_dim"], identity["vocab_size"]) == (32, 16, len(tokenizer))
        assert identity["target_fingerprint"] != identity["draft_fingerprint"]

    def test_fingerprint_is_of_the_content(self, settings, tmp_path):
        before = load_pair(settings).identity
        shutil.copytree(settings.target, tmp_path / "elsewhere")
        elsewhere = settings.model_copy(update={"target": str(tmp_path / "elsewhere")})
        assert load_pair(elsewhere).identity["target_fingerprint"] == before["target_fingerprint"]
        weights = tmp_path / "elsewhere" / "model.safetensors"
        content = weights.read_bytes()
        for change in (content[:-1] + bytes([content[-1] ^ 1]), content.replace(b"model.norm", b"model.form")):
            weights.write_bytes(change)
            assert load_pair(elsewhere).identity["target_fingerprint"] != before["target_fingerprint"]
        weights.write_bytes(content)
        edit_json(tmp_path / "elsewhere" / "config.json", rms_norm_eps=1e-5)
        assert load_pair(elsewhere).identity["target_fingerprint"] != before["target_fingerprint"]
        assert load_pair(elsewhere).identity["draft_fingerprint"] == before["draft_fingerprint"]


class TestChat:
    def test_no_template(self, settings):
        pair = load_pair(settings)
        assert not pair.has_chat_template
        with pytest.raises(PairError, match=r"no chat template; drop --task\.chat-template"):
            pair.encode("hello", chat_template=True)
        messages = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
        assert pair.encode_chat(messages) == pair.encode("one\ntwo")

    def test_template(self, settings, template):
        Path(settings.target, "chat_template.jinja").write_text(template)
        pair = load_pair(settings)
        assert pair.has_chat_template
        ids = pair.encode("hello", chat_template=True)
        assert ids == pair.encode("<start>user: hello<eos><start>assistant:")
        assert (ids.count(1), ids.count(2)) == (1, 2)  # special tokens, not their letters
        assert pair.encode_chat([{"role": "user", "content": "hello"}]) == ids

    def test_template_that_refuses(self, settings, template):
        Path(settings.target, "chat_template.jinja").write_text(template)
        with pytest.raises(RequestError, match="no system role"):
            load_pair(settings).encode_chat([{"role": "system", "content": "x"}])


class TestGguf:
    def test_the_same_model_as_from_its_folder(self, gguf_file, folder, tokenizer, template):
        path, model = gguf_file("tiny.gguf", template)
        pair = load_pair(PairSettings(name="mixed", target=str(path), draft=folder("draft", num_hidden_layers=1)))
        assert (pair.vocab_size, pair.eos_ids, pair.pad_id, pair.context) == (len(tokenizer), (1,), 0, 128)
        assert pair.has_chat_template
        ids = torch.tensor([pair.encode("hello world, 1 2 3")])
        with torch.no_grad():
            torch.testing.assert_close(pair.target.cpu()(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-6)
        assert not pair.target.training
        assert pair.target.dtype == torch.float32

    def test_a_token_that_only_transformers_knows(self, gguf_file, tokenizer):
        """It gives tokenizers of this kind <|endoftext|> even where the model has no such id."""
        path, _ = gguf_file("tiny.gguf")
        pair = load_pair(PairSettings(name="gguf", target=str(path), draft=str(path)))
        assert pair.tokenizer.get_vocab()["<|endoftext|>"] == pair.vocab_size == len(tokenizer)
        with pytest.raises(RequestError, match=r"prompt: pair gguf has no token '<\|endoftext\|>'"):
            pair.encode("one <|endoftext|> two")

    def test_fingerprint(self, gguf_file, tmp_path):
        path, _ = gguf_file("tiny.gguf")
        settings = PairSettings(name="gguf", target=str(path), draft=str(path))
        before = load_pair(settings).identity["target_fingerprint"]
        (tmp_path / "other").mkdir()
        copy = shutil.copy(path, tmp_path / "other" / "renamed.gguf")
        assert load_pair(settings.model_copy(update={"target": copy})).identity["target_fingerprint"] == before
        Path(copy).write_bytes(path.read_bytes() + b"\0")
        assert load_pair(settings.model_copy(update={"target": copy})).identity["target_fingerprint"] != before

    def test_damaged(self, tmp_path):
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
        assert "cannot be read" in refusal(
            PairSettings(name="bad", target=str(tmp_path / "bad.gguf"), draft=str(tmp_path / "bad.gguf"))
        )
