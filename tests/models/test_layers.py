"""Models whose cache the engine cannot take tokens back from are refused by the name of the layer."""

import pytest
from transformers import (
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    ReformerConfig,
    RwkvConfig,
    T5Config,
    ViTConfig,
    XLNetConfig,
)

from diversed.errors import PairError
from diversed.models.layers import check_layers, context_length

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (MistralConfig(**TINY, sliding_window=64), "mistral.*sliding_attention layers of 64 in a context of 128"),
        (Gemma2Config(**TINY, sliding_window=64), "gemma2.*sliding_attention"),
        (Gemma3TextConfig(**TINY, sliding_window=64), "gemma3_text.*sliding_attention"),
        (Gemma3Config(), "gemma3.*sliding_attention"),
        (Qwen2Config(**TINY, use_sliding_window=True, sliding_window=64, max_window_layers=2), "sliding_attention"),
        (Llama4TextConfig(), "chunked_attention"),
        (MambaConfig(), "mamba.*recurrent"),
        (RwkvConfig(), "rwkv.*recurrent"),
        (JambaConfig(), "jamba.*recurrent"),
        (
            Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"]),
            "lfm2.*(conv|linear_attention) layers",
        ),
        (MiniMaxConfig(), "minimax.*linear_attention"),
        (T5Config(), "t5.*encoder-decoder"),
        (ViTConfig(), "vit.*not a causal language model"),
        (BloomConfig(), "bloom.*no max_position_embeddings"),
        (XLNetConfig(), "xlnet.*no cache with explicit position ids"),
        (ReformerConfig(), "reformer.*no cache with explicit position ids"),
        (FalconConfig(alibi=True), "falcon.*no cache with explicit position ids"),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else "",
)
def test_refused(config, what):
    with pytest.raises(PairError, match=what) as refused:
        check_layers("org/model", config)
    assert str(refused.value).startswith("model org/model (")


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**TINY),
        GPT2Config(),
        GPTNeoXConfig(),
        OPTConfig(),
        FalconConfig(),
        Qwen3Config(**TINY),
        Qwen2Config(**TINY, use_sliding_window=False, sliding_window=64),  # a window that is switched off
        MistralConfig(**TINY, sliding_window=None),
        MistralConfig(**TINY, sliding_window=128),  # a window that never closes
    ],
    ids=lambda config: config.model_type,
)
def test_accepted(config):
    check_layers("org/model", config)


def test_context_is_what_one_set_of_rotary_frequencies_covers():
    """Beyond the original context LongRoPE makes a row's tokens depend on the longest row of its batch."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **factors}
    longrope = Phi3Config(**TINY, rope_parameters=rope, original_max_position_embeddings=64, pad_token_id=0)
    assert context_length("phi", longrope) == 64
    assert context_length("llama", LlamaConfig(**TINY)) == 128
