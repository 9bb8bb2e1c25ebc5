"""Which models the engine can run.

It takes tokens back by shortening a row of its cache, so every layer must keep the keys and values of all positions.
"""

import inspect
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs

from diversed.errors import PairError

__all__ = ["check_layers", "context_length"]

FULL = "full_attention"
NEEDED = "the engine needs full attention in every layer; give another model"


def check_layers(name: str, config: PreTrainedConfig) -> None:
    """PairError, naming the layer type, if the model is no decoder or a layer forgets (sliding or chunked windows,
    recurrent states, shared caches). Windows that are no shorter than the context never close: they are allowed."""
    if config.is_encoder_decoder:
        raise PairError(f"model {name} ({config.model_type}): an encoder-decoder; give a decoder-only model")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise PairError(f"model {name} ({config.model_type}): not a causal language model; give another model")
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if getattr(architecture, "_is_stateful", False):
        raise PairError(f"model {name} ({config.model_type}): recurrent layers; {NEEDED}")
    text_config = config.get_text_config(decoder=True)
    context = context_length(name, text_config)
    layer_types, _ = get_layer_types_and_kwargs(text_config)
    windows = {
        "sliding_attention": getattr(text_config, "sliding_window", None),
        "chunked_attention": getattr(text_config, "attention_chunk_size", None),
    }
    for layer_type in dict.fromkeys(layer_types):
        window = windows.get(layer_type)
        if layer_type == FULL or (window is not None and window >= context):
            continue
        size = f" of {window} in a context of {context}" if window is not None else ""
        raise PairError(f"model {name} ({config.model_type}): {layer_type} layers{size}; {NEEDED}")
    takes = inspect.signature(architecture.forward).parameters
    if (
        "position_ids" not in takes
        or not {"cache", "past_key_values"} & takes.keys()
        or getattr(config, "alibi", False)
    ):
        raise PairError(f"model {name} ({config.model_type}): no cache with explicit position ids; give another model")


def context_length(name: str, text_config: PreTrainedConfig) -> int:
    """Positions that the model has with one set of rotary frequencies.

    LongRoPE changes its frequencies for all rows of a batch once one row is longer than the original context, so that a
    row's tokens would depend on its neighbours: the original context is the bound there.
    """
    context = getattr(text_config, "max_position_embeddings", None)
    if context is None:
        raise PairError(f"model {name} ({text_config.model_type}): no max_position_embeddings; give another model")
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        context = min(context, rope.get("original_max_position_embeddings", context))
    return int(context)
