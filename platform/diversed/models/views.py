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

# Graphs of one forward function: of target and draft, for one row and several, on CUDA for each bucket of lengths.
GRAPHS = 64
COMPILED = "_diversed_compiled"  # attribute of a model: engines share its graphs


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
    view.__dict__.pop(COMPILED, None)  # it would run the other's head
    view._modules = dict(model._modules)
    view.set_output_embeddings(head)
    return view


def compiled_forward(model: PreTrainedModel) -> Callable[..., Any]:
    """`model` for calls by keyword, through `torch.compile` in the rounds: one graph for all lengths on a CPU; on CUDA
    one per shape, replayed as a CUDA graph. Compiling takes seconds to minutes, at the first calls of each kind.

    Prompts are read as they are: each would be another graph. So is the first call, which lays out the cache.
    """
    compiled = model.__dict__.get(COMPILED)
    if compiled is None:
        compiled = model.__dict__[COMPILED] = _compiled(model)

    def forward(**inputs: Any) -> Any:
        cache = inputs["cache" if "cache" in inputs else "past_key_values"]
        is_round = inputs["logits_to_keep"] == 0 and cache.layers[0].is_initialized
        return compiled(**inputs) if is_round else model(**inputs)

    return forward


def _compiled(model: PreTrainedModel) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    on_cuda = model.device.type == "cuda"

    def call(**inputs: Any) -> Any:
        return model(**inputs)

    # Checking at each call that no module was changed would cost a quarter of a small model's forward; here none ever
    # is. The compiler looks its graphs up by code object: a copy for each model keeps their graphs apart.
    call.__code__ = call.__code__.replace()
    unchanged = torch.compiler.skip_guard_on_all_nn_modules_unsafe
    options: dict[str, Any] = {"guard_filter_fn": unchanged, "triton.cudagraphs": on_cuda}
    compiled: Callable[..., Any] = torch.compile(call, dynamic=not on_cuda, options=options)
    return compiled
