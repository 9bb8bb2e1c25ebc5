"""Tiny random pairs: the engine's exactness does not depend on what a model has learned."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 32


def tiny_llama(seed: int, layers: int, hidden: int = 32, vocab: int = VOCAB, scale: float = 1.0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.lm_head.weight.mul_(scale)
    return model


@pytest.fixture(scope="session")
def make_pair() -> Callable[..., Any]:
    """`make_pair(same=False, eos=())` -> what the engine needs of a Pair."""
    target = tiny_llama(0, 3)
    draft = tiny_llama(1, 1)

    def make(same: bool = False, eos: tuple[int, ...] = ()) -> Any:
        return SimpleNamespace(
            target=target, draft=target if same else draft, vocab_size=VOCAB, eos_ids=eos, context=512,
            draft_dim=32, target_dim=32,
        )  # fmt: skip

    return make
