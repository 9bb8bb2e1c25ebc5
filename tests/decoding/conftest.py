"""Tiny random pairs: the engine's exactness does not depend on what a model has learned."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from diversed.decoding import Generation, Request, Weigh, build_engine
from diversed.settings import DecodeSettings, Method

VOCAB = 16
CONTEXT = 256
PROMPT_LENGTHS = (5, 1, 11, 9, 3, 20, 2, 8)


def tiny_llama(seed: int, layers: int, hidden: int = 32, columns: int = VOCAB) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=columns,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def tiny_pair() -> Callable[..., Any]:
    """`tiny_pair(same=False, eos=())` -> what the engine needs of a Pair."""
    target, draft = tiny_llama(0, 2), tiny_llama(1, 1)

    def make(same: bool = False, eos: tuple[int, ...] = ()) -> Any:
        return SimpleNamespace(
            target=target,
            draft=target if same else draft,
            vocab_size=VOCAB,
            eos_ids=eos,
            context=CONTEXT,
            draft_context=CONTEXT,
            tokenizer=None,
            draft_words_K=None,
            compiled=False,
        )

    return make


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def run(
    pair: Any,
    prompts: list[list[int]],
    method: str,
    temperature: float = 1.0,
    batch: int = 8,
    draft_length: int = 5,
    new: int = 24,
    head: Weigh | None = None,
    collect: bool = False,
    **decode: Any,
) -> list[Generation]:
    """All prompts through a fresh engine; the seed of a prompt is its index."""
    settings = DecodeSettings(
        method=Method(method), temperature=temperature, batch_size=batch, draft_length=draft_length, **decode
    )
    engine = build_engine(pair, settings, head, collect)
    return engine.generate([Request.of(prompt, new, seed, settings) for seed, prompt in enumerate(prompts)])


@pytest.fixture(scope="session")
def generate() -> Callable[..., list[Generation]]:
    return run


@pytest.fixture(scope="session")
def smollm2_cache() -> Path:
    """The converted SmolLM2 weights; tests never download them."""
    folder = Path("~/.cache/diversed/smollm2").expanduser()
    if not (folder / "target").is_dir():
        pytest.skip("SmolLM2 is not in the cache: python -m jobs.fetch_smollm2")
    return folder
