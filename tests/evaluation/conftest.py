"""Hand-made generations and results, and a tiny random pair that can be evaluated."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from diversed.decoding import Generation, Request, build_engine
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import Settings, TaskSettings
from diversed.tasks import Example, Split, Task
from diversed.verification import Kind

VOCAB = 32
torch.set_num_threads(1)  # the models here are too small for more; waiting for threads on a busy machine costs seconds


def _tiny_llama(seed: int, layers: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, pad_token_id=0,
        bos_token_id=None, eos_token_id=1, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.generation_config = GenerationConfig(eos_token_id=[1], pad_token_id=0, do_sample=False)
    return model


@pytest.fixture(scope="session")
def pair() -> Any:
    """What evaluation needs of a Pair: random weights, and tokens that are written as letters."""
    return SimpleNamespace(
        name="tiny",
        target=_tiny_llama(0, 3),
        draft=_tiny_llama(1, 1),
        vocab_size=VOCAB,
        eos_ids=(1,),
        pad_id=0,
        context=256,
        draft_context=256,
        tokenizer=None,
        draft_words_K=None,
        compiled=False,
        device=torch.device("cpu"),
        dtype=torch.float32,
        target_dim=32,
        draft_dim=32,
        identity={"name": "tiny", "target_fingerprint": "a", "draft_fingerprint": "b"},
        encode=lambda prompt, _chat_template: [2 + ord(letter) % 30 for letter in prompt],
        decode=lambda ids, _stop=(): "".join(chr(ord("a") + i) for i in ids if i > 1),
    )


class Vowels(Task):
    """A task for random models: does the text have more than two vowels?"""

    name = "vowels"
    metric_name = "accuracy"

    def examples(self, settings: TaskSettings, split: Split, seed: int) -> list[Example]:
        return [Example(f"{split}-{i}", f"prompt {i}", "aeiou") for i in range(settings.test_size)]

    def metric(self, example: Example, completion: str) -> float:
        return float(sum(letter in example.reference for letter in completion) > 2)


@pytest.fixture
def task() -> Task:
    return Vowels()


@pytest.fixture
def settings() -> Settings:
    return Settings(
        output="unused",
        pair={"name": "tiny"},
        task={"test_size": 12, "max_new_tokens": 16},
        decode={"draft_length": 3, "batch_size": 4},
        evaluate={
            "methods": ["autoregressive", "strict", "static:weight=0.5/0.2", "diversed"],
            "speed_prompts": 3,
            "speed_repeats": 2,
            "resamples": 200,
        },
    )


@pytest.fixture
def engines(pair: Any) -> Callable[..., Any]:
    return lambda decode, head: build_engine(pair, decode, head)


@pytest.fixture
def make_generation() -> Callable[..., Generation]:
    """A generation from lists; judged tokens are those of kind A (accepted) and R (replaced), B is a bonus token."""

    def make(
        kinds: str,
        accepted: list[int],
        drafted: list[int],
        p: list[float],
        q: list[float],
        w: list[float],
        tv: list[float] | None = None,
        tokens: list[int] | None = None,
        finish_reason: str = "stop",
        temperature: float = 1.0,
    ) -> Generation:
        letters = {"A": Kind.ACCEPTED, "R": Kind.REPLACEMENT, "B": Kind.BONUS}
        return Generation(
            request=Request((5,), 64, 0, temperature),
            tokens=tokens or list(range(2, 2 + len(kinds))),
            finish_reason=finish_reason,
            kind_T=torch.tensor([int(letters[kind]) for kind in kinds]),
            p_T=torch.tensor(p),
            q_T=torch.tensor(q),
            tv_T=torch.tensor(tv or [0.0] * len(kinds)),
            w_T=torch.tensor(w),
            accepted_R=torch.tensor(accepted),
            drafted_R=torch.tensor(drafted),
        )

    return make


@pytest.fixture(scope="session")
def make_result() -> Callable[..., ExampleResult]:
    """A result of which only what matters is given."""

    def make(example_id: str, **changes: Any) -> ExampleResult:
        values: dict[str, Any] = {
            "id": example_id, "sample": 0, "label": "strict", "quality": 1.0, "tokens": 10, "rounds": 4, "drafted": 12,
            "accepted": 6, "verified": 8, "accepted_histogram": [1, 1, 1, 1], "finish_reason": "stop", "tv_sum": 2.0,
            "w_sum": 8.0,
            "p_sum": 5.0, "rare": 0, "output_tv_sum": 0.0, "output_kl_sum": 0.0, "overshoot_sum": 0.0,
            "gap_sum": 0.0, "smallest_gap": 0.0, "empty": False,
            "longest_repeat": 0, "distinct_bigrams": 9, "text": "words",
        }  # fmt: skip
        return ExampleResult(**{**values, **changes})

    return make
