"""Tiny real models in Hugging Face folders and GGUF files: random weights and a byte-level BPE tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diversed.settings import PairSettings

PAD, EOS, START = 0, 1, 2  # ids of the special tokens
CORPUS = ["hello hello world world naïve café 😀 one two three, and 1 2 3."] * 3
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "<start>{{ message.role }}: {{ message.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant:{% endif %}"
)


def train_tokenizer(pad: str = "<pad>") -> PreTrainedTokenizerFast:
    """Byte-level BPE of fewer than 320 ids; equal for equal `pad`."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[pad, "<eos>", "<start>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token=pad)


def make_model(tokenizer: PreTrainedTokenizerFast, **changes: object) -> LlamaForCausalLM:
    """A random Llama for the tokenizer, the same for the same arguments."""
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(shape | changes)))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer()


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    """With the token that transformers expects in GGUF files of this kind."""
    return train_tokenizer(pad="<|endoftext|>")


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Callable[..., str]:
    """folder(name, tokenizer=..., **config) makes a model folder and returns its path as a user would type it."""

    def make(name: str, tokenizer: PreTrainedTokenizerFast = tokenizer, **changes: object) -> str:
        make_model(tokenizer, **changes).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


@pytest.fixture
def settings(folder: Callable[..., str]) -> PairSettings:
    """A pair of two tiny folders: two layers of 32, one layer of 16."""
    target, draft = folder("target"), folder("draft", hidden_size=16, num_hidden_layers=1, max_position_embeddings=96)
    return PairSettings(name="tiny", target=target, draft=draft)


def write_gguf(path: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, template: str | None) -> None:
    """The model as llama.cpp writes it, in float32."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if index <= START else TokenType.NORMAL for index in range(len(tokens))])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(START)
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    if template is not None:
        writer.add_chat_template(template)
    names = {"embed_tokens": "token_embd", "norm": "output_norm"} | {
        f"layers.{index}.{theirs}": f"blk.{index}.{ours}"
        for index in range(config.num_hidden_layers)
        for theirs, ours in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
        }.items()
    }
    for theirs, ours in names.items():
        weight = model.model.get_parameter(f"{theirs}.weight").detach().float()
        if ours.endswith(("attn_q", "attn_k")):  # llama.cpp interleaves the two halves of rotary dimensions
            heads = config.num_attention_heads if ours.endswith("attn_q") else config.num_key_value_heads
            weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{ours}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def gguf_file(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Callable[..., tuple[Path, LlamaForCausalLM]]:
    """gguf_file(name, template=..., tokenizer=..., **config) writes a GGUF file; its path and the model in it."""

    def make(
        name: str,
        template: str | None = None,
        tokenizer: PreTrainedTokenizerFast = tokenizer,
        **changes: object,
    ) -> tuple[Path, LlamaForCausalLM]:
        model = make_model(tokenizer, **changes).eval()
        write_gguf(tmp_path / name, model, tokenizer, template)
        return tmp_path / name, model

    return make


@pytest.fixture(scope="session")
def template() -> str:
    """A chat template that knows no system role."""
    return TEMPLATE
