"""Views of a model that share its weights: one with a head of its own, one that is compiled.

Shapes: K kept words.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

__all__ = ["compiled_forward", "with_own_head"]

# Kinds of calls: one row or several, one token or several, whole or last logits, and buckets of lengths on CUDA.
SHAPES = 64


def with_own_head(
    model: PreTrainedModel, words_K: Tensor | None, watch: Callable[[nn.Module, tuple[Tensor, ...]], None] | None
) -> PreTrainedModel:
    """`model` with an LM head of its own, of whose inputs `watch` is told; everything else is shared.

    With `words_K` the head has these rows only, and logits are [B, N, K].
    """
    full: Any = model.get_output_embeddings()
    head = copy.copy(full)
    head._parameters = dict(full._parameters)
    head._forward_pre_hooks = OrderedDict()
    if words_K is not None:
        for name, parameter in full._parameters.items():
            if parameter is not None:
                head._parameters[name] = nn.Parameter(parameter.detach()[words_K], requires_grad=False)
        head.out_features = len(words_K)
    if watch is not None:
        head.register_forward_pre_hook(watch)
    view = copy.copy(model)
    view._modules = dict(model._modules)
    view.set_output_embeddings(head)
    return view


def compiled_forward(model: PreTrainedModel) -> Callable[..., Any]:
    """`model.forward` through `torch.compile`: one graph for all lengths on a CPU; on CUDA one per shape, replayed as a
    CUDA graph. The first call of each kind takes seconds to minutes."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, SHAPES)
    if model.device.type == "cuda":
        return torch.compile(model.forward, dynamic=False, mode="reduce-overhead")
    return torch.compile(model.forward, dynamic=True)
