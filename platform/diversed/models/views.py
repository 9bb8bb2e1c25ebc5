"""Views of a model that share its weights: one with a head of its own, one of fewer operations, one that is compiled.

Shapes: B rows, N tokens, K kept words, C context, D and O widths, E head size.
"""

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.modeling_utils import PreTrainedModel

__all__ = ["compiled_forward", "with_fewer_operations", "with_own_head"]

# Graphs of one forward function: of target and draft, for one row and several, on CUDA for each bucket of lengths.
GRAPHS = 64
COMPILED = "_diversed_compiled"  # attribute of a model: engines share its graphs
TABLE = 2**25  # numbers in a table of rotary embeddings, at most


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


def with_fewer_operations(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with rotary embeddings looked up, and linear layers and RMS norms called directly.

    A small model's forward is mostly the calling of small operations. The weights are shared. What would not give the
    same bits stays as it is, and so does what has hooks or a `forward` of its own, with all below it. Hooks and parts
    that the model is given later are not seen. Positions end at its context.
    """
    if any(weight.is_meta for weight in model.parameters()):  # they lie elsewhere until a forward fetches them
        return model
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 0
    head = model.get_output_embeddings()  # may be watched, or cut

    def shorter(module: nn.Module) -> nn.Module | None:
        if module is head or _is_watched(module):
            return module
        return _linear_like(module) or _norm_like(module) or _table_of(module, context, model)

    with torch.no_grad():
        view: PreTrainedModel = _replaced(model, shorter)
    return view


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of it is more than its class's `forward`."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in module.__dict__


def _replaced(module: Any, replacement: Callable[[nn.Module], nn.Module | None]) -> Any:
    """`replacement` of a module; where that is None a copy with replaced parts, or the module if no part has one."""
    other = replacement(module)
    if other is not None:
        return other
    parts = {name: part and _replaced(part, replacement) for name, part in module._modules.items()}
    if all(parts[name] is part for name, part in module._modules.items()):
        return module
    view = copy.copy(module)
    view._modules = parts
    view.__dict__.update(parts)  # found there at once: torch looks for registered parts last
    return view


# What follows is called without the machinery of hooks, and holds its weights where they are found at once.


class _Linear(nn.Linear):
    """`nn.Linear`, [B, N, D] -> [B, N, O]."""

    matrix_OD: Tensor
    offset_O: Tensor | None

    def __call__(self, input_BND: Tensor) -> Tensor:
        return linear(input_BND, self.matrix_OD, self.offset_O)


def _linear_like(module: nn.Module) -> _Linear | None:
    if type(module) is not nn.Linear or not {"weight", "bias"} <= module._parameters.keys():
        return None
    view = copy.copy(module)
    view.__class__ = _Linear
    view.__dict__.update(matrix_OD=module._parameters["weight"], offset_O=module._parameters["bias"])
    return view  # type: ignore[return-value]


class _Norm(nn.Module):
    """RMS normalisation as one call of torch, [B, N, D]."""

    weight_D: Tensor

    def __init__(self, weight_D: Tensor, epsilon: float) -> None:
        super().__init__()
        self.__dict__["weight_D"] = weight_D
        self.shape, self.epsilon = weight_D.shape, epsilon

    def __call__(self, hidden_BND: Tensor) -> Tensor:
        return torch.rms_norm(hidden_BND, self.shape, self.weight_D, self.epsilon)


def _norm_like(module: nn.Module) -> _Norm | None:
    """What computes the same as `module`, if that is an RMS norm with a weight."""
    weight_D = module._parameters.get("weight")
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight_D is None or not isinstance(epsilon, float):
        return None
    if len(inspect.signature(module.forward).parameters) != 1:  # gated, say
        return None
    norm = _Norm(weight_D, epsilon)
    generator = torch.Generator().manual_seed(0)
    probe_BND = torch.randn(3, 7, weight_D.numel(), generator=generator).to(weight_D)
    probe_BND *= probe_BND.new_tensor([0.01, 1, 100])[:, None, None]
    return norm if torch.equal(norm(probe_BND), module(probe_BND)) else None


class _RotaryTable(nn.Module):
    """The rotary embeddings of all positions, [C, E] each."""

    cos_CE: Tensor
    sin_CE: Tensor

    def __init__(self, cos_CE: Tensor, sin_CE: Tensor) -> None:
        super().__init__()
        self.__dict__.update(cos_CE=cos_CE, sin_CE=sin_CE)

    def __call__(self, _x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos_CE[position_ids], self.sin_CE[position_ids]


def _table_of(module: Any, context: int, model: PreTrainedModel) -> _RotaryTable | None:
    """The table of `module`, if that is a rotary embedding that depends on nothing but the position."""
    is_rotary = type(module).__name__.endswith("RotaryEmbedding") and hasattr(module, "inv_freq")
    if not is_rotary or getattr(module, "rope_type", "dynamic") in {"dynamic", "longrope"}:
        return None
    if list(inspect.signature(module.forward).parameters) != ["x", "position_ids"]:
        return None
    if not 0 < 4 * context * module.inv_freq.numel() <= TABLE:
        return None
    one = torch.zeros(1, dtype=model.dtype, device=model.device)
    try:
        tables = module(one, torch.arange(context, device=model.device)[None])
    except (IndexError, RuntimeError, TypeError):  # of positions with several axes
        return None
    is_pair = isinstance(tables, tuple) and len(tables) == 2  # some give one complex tensor
    if not is_pair or any(table.ndim != 3 or table.shape[:2] != (1, context) for table in tables):
        return None
    return _RotaryTable(tables[0][0], tables[1][0])


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
