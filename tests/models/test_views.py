"""The view with fewer operations gives the very bits of its model, and leaves the model as it was."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from diversed.models import with_fewer_operations, with_own_head

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DEEPSEEK = {
    "q_lora_rank": None,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def model_of(config: type[PreTrainedConfig], dtype: torch.dtype = torch.float32, **changes: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**(SHAPE | changes))).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.normal_()  # as made, they are all ones
    return model.to(dtype)


def kinds(model: PreTrainedModel) -> set[str]:
    return {type(module).__name__ for module in model.modules()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (LlamaConfig, {}),
        (LlamaConfig, {"rope_parameters": LLAMA3}),
        (LlamaConfig, {"rope_parameters": DYNAMIC}),
        (LlamaConfig, {"head_dim": 22}),
        (LlamaConfig, {"attention_bias": True}),
        (MistralConfig, {"sliding_window": None}),
        (Qwen2Config, {}),
        (Qwen3Config, {"head_dim": 8}),
        (Olmo2Config, {}),
        (GemmaConfig, {"head_dim": 8}),
        (GPTNeoXConfig, {}),
        (DeepseekV2Config, DEEPSEEK),  # one complex tensor
    ],
)
def test_the_same_bits(config: type[PreTrainedConfig], changes: dict[str, object], dtype: torch.dtype) -> None:
    model = model_of(config, dtype, **changes)
    view = with_fewer_operations(model)
    generator = torch.Generator().manual_seed(1)
    for rows, tokens, start in ((1, 1, 127), (1, 6, 61), (3, 7, 0), (2, 33, 5)):
        ids = torch.randint(0, 64, (rows, tokens), generator=generator)
        positions = (start + torch.arange(tokens)).expand(rows, -1)
        with torch.no_grad():
            wanted, found = (each(input_ids=ids, position_ids=positions).logits for each in (model, view))
        assert torch.equal(wanted, found)


@pytest.mark.parametrize(
    ("config", "changes", "replaced"),
    [
        (LlamaConfig, {}, {"_Linear", "_Norm", "_RotaryTable"}),
        (Qwen3Config, {"head_dim": 8}, {"_Linear", "_Norm", "_RotaryTable"}),
        (GPTNeoXConfig, {}, {"_Linear", "_RotaryTable"}),  # its norms are torch's own
        (GemmaConfig, {"head_dim": 8}, {"_Linear", "_RotaryTable"}),  # its norms multiply by 1 + weight
        (LlamaConfig, {"rope_parameters": DYNAMIC}, {"_Linear", "_Norm"}),  # its frequencies depend on the longest row
        (LlamaConfig, {"max_position_embeddings": 2**24}, {"_Linear", "_Norm"}),  # a table of gigabytes
    ],
)
def test_what_is_replaced(config: type[PreTrainedConfig], changes: dict[str, object], replaced: set[str]) -> None:
    model = model_of(config, **changes)
    before = kinds(model)
    view = with_fewer_operations(model)
    assert kinds(view) - before == replaced
    assert kinds(model) == before
    weights = {weight.data_ptr() for weight in model.parameters()}
    assert {weight.data_ptr() for weight in view.parameters()} <= weights


def test_a_view_is_of_the_model_as_it_is_now() -> None:
    model = model_of(LlamaConfig)
    ids = torch.tensor([[3, 4, 5]])
    with_fewer_operations(model)
    model.to(torch.bfloat16).resize_token_embeddings(80)
    model.model.layers[0].mlp.up_proj = torch.nn.Linear(32, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(with_fewer_operations(model)(input_ids=ids).logits, model(input_ids=ids).logits)


def test_what_is_watched_stays() -> None:
    model = model_of(LlamaConfig)
    seen: list[object] = []
    inner = model.model.layers[1].mlp
    inner.up_proj.register_forward_hook(lambda module, *_: seen.append(module))
    inner.register_forward_pre_hook(lambda module, *_: seen.append(module))
    model.model.layers[0].mlp.up_proj.forward = lambda hidden: hidden.repeat(1, 1, 2)
    ids = torch.tensor([[3]])
    with torch.no_grad():
        assert torch.equal(with_fewer_operations(model)(input_ids=ids).logits, model(input_ids=ids).logits)
    assert seen == [inner, inner.up_proj] * 2


def test_weights_that_lie_elsewhere_are_left_alone() -> None:
    with torch.device("meta"):
        model = model_of(LlamaConfig)
    assert with_fewer_operations(model) is model


def test_views_with_heads_of_their_own_stay_apart() -> None:
    model = model_of(LlamaConfig)
    view = with_fewer_operations(model)
    cut = with_own_head(view, torch.tensor([5, 2]), None)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        wanted = model(input_ids=ids).logits[..., [5, 2]]
        torch.testing.assert_close(cut(input_ids=ids).logits, wanted)
        assert view(input_ids=ids).logits.shape == (1, 3, 64)
