"""A ragged slot cache: rows of one batch at different lengths in one transformers cache.

Each row of a batch owns a preallocated slot. A forward writes its keys and values at each row's own positions, so rows
may accept different numbers of drafted tokens; rolling a row back is using a smaller start at the next forward: nothing
is cropped, copied or recomputed. What lies past a row's position is never visible (the mask ends there) and is
overwritten later, so right padding needs no care.

Shapes: B rows of a forward, N new tokens per row, L visible length, S slots, H heads, E head size.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import PreTrainedModel

from diversed.models import compiled_forward, context_length, with_fewer_operations, with_own_head

__all__ = ["Array", "SlotCache", "SlotModel"]

Array = NDArray[np.int64]

BUCKET = 64  # compiled forwards see a multiple of this many positions: fewer shapes
BAND = 40  # tokens of a block, at most: what is longer are prompts
AIMS = 16384  # kept for rows that begin at one position, as a single row does: this many over the number of layers


class Windows:
    """Views into a cache for rows that all begin at `first`. By layer: keys and values seen, and of these the new
    ones."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.of_layer: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [S, H, capacity, E]."""

    keys: Tensor
    values: Tensor

    def __init__(self, owner: "SlotCache", index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner, self.index = owner, index

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        shape = (self.owner.slots, key_states.shape[1], self.owner.capacity)
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        if owner.windows is not None:
            window = owner.windows.of_layer.get(self.index)
            if window is None:
                window = self._window(owner.windows.first, key_states.shape[2])
                owner.windows.of_layer[self.index] = window
            seen_keys, seen_values, new_keys, new_values = window
            new_keys.copy_(key_states)
            new_values.copy_(value_states)
            return seen_keys, seen_values
        keys, values = self.keys[owner.rows], self.values[owner.rows]
        keys.scatter_(2, owner.positions_B1N1.expand_as(key_states), key_states)
        values.scatter_(2, owner.positions_B1N1.expand_as(value_states), value_states)
        return keys[:, :, : owner.visible], values[:, :, : owner.visible]

    def _window(self, first: int, N: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        owner = self.owner
        seen = [values[owner.rows, :, : owner.visible] for values in (self.keys, self.values)]
        return seen[0], seen[1], seen[0].narrow(2, first, N), seen[1].narrow(2, first, N)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.visible, 0

    def get_seq_length(self) -> int:
        return 0  # positions are explicit; nothing may be derived from a common length

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.24


class SlotCache(Cache):
    """One model's slots. `reserve` sizes it, `point` aims the next forward, `move` carries a row to another slot."""

    def __init__(self, num_layers: int) -> None:
        self.slots = 0
        self.capacity = 0
        self.rows = slice(0, 0)
        self.positions_B1N1 = torch.zeros(0, 0, 0, 0, dtype=torch.long)
        self.visible = 0
        self.windows: Windows | None = None
        self.layouts = 0  # of the memory so far: windows into an earlier one are void
        self._slot_layers = [_SlotLayer(self, index) for index in range(num_layers)]
        super().__init__(layers=[*self._slot_layers])

    @torch.inference_mode()
    def reserve(self, slots: int, capacity: int) -> None:
        """Room for at least `slots` rows of `capacity` positions; what rows hold is kept, also when memory runs out.

        Growing copies, so the capacity at least doubles.
        """
        if slots <= self.slots and capacity <= self.capacity:
            return
        slots = max(slots, self.slots)
        capacity = self.capacity if capacity <= self.capacity else max(capacity, 2 * self.capacity)
        layers = [layer for layer in self._slot_layers if layer.is_initialized]
        grown = [(_grown(layer.keys, slots, capacity), _grown(layer.values, slots, capacity)) for layer in layers]
        for layer, (keys, values) in zip(layers, grown, strict=True):
            layer.keys, layer.values = keys, values
        self.slots, self.capacity = slots, capacity
        self.layouts += 1
        self.windows = None

    def point(self, rows: slice, positions_B1N1: Tensor, visible: int, windows: Windows | None = None) -> None:
        """The next forward serves `rows`, writes at these positions and sees the first `visible` ones.

        `windows` keeps each layer's views for this aim, if all rows begin at one position: making them anew takes as
        long as a small model's attention.
        """
        self.rows, self.positions_B1N1, self.visible, self.windows = rows, positions_B1N1, visible, windows

    @torch.inference_mode()
    def move(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` positions of a row to another slot."""
        for layer in self._slot_layers:
            if layer.is_initialized:
                layer.keys[destination, :, :length] = layer.keys[source, :, :length]
                layer.values[destination, :, :length] = layer.values[source, :, :length]


def _grown(old_SHCE: Tensor, slots: int, capacity: int) -> Tensor:
    new_SHCE = old_SHCE.new_zeros(slots, old_SHCE.shape[1], capacity, old_SHCE.shape[3])
    new_SHCE[: old_SHCE.shape[0], :, : old_SHCE.shape[2]] = old_SHCE
    return new_SHCE


class _Aim(NamedTuple):
    """Where the tokens of a forward stand, and what they see."""

    positions_B1N1: Tensor
    known_BN: Tensor  # positions as the model is told them
    mask_B1NL: Tensor
    visible: int
    windows: Windows | None  # None: rows begin at different positions, or a compiled model has them in its graph


class SlotModel:
    """A transformers causal LM over a slot cache. Starts and counts of rows are NumPy arrays: they belong to the loop,
    and no forward waits for the device to know them."""

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        words_K: Tensor | None = None,
        hidden: bool = False,
        compiled: bool = False,
    ) -> None:
        """`words_K`: the LM head is cut to these tokens; all others have logits of -inf. `hidden`: forwards also return
        the vectors that feed the LM head. `compiled`: forwards run through `torch.compile`."""
        if not compiled:
            model = with_fewer_operations(model)
        self.words_K = None if words_K is None else words_K.to(model.device)
        self._hidden_BND: Tensor | None = None
        if words_K is not None or hidden:
            model = with_own_head(model, self.words_K, self._keep_hidden if hidden else None)
        self.model: Callable[..., Any] = compiled_forward(model) if compiled else model
        self.vocab_size = vocab_size
        self.device, self.dtype = model.device, model.dtype
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers)
        self._context = context_length(type(model).__name__, model.config.get_text_config())
        self._bucket = BUCKET if compiled else 1
        self._band_11NC = torch.zeros(1, 1, 0, 0)
        self._aims: dict[tuple[int, int, int, int], _Aim] = {}  # by first row, number of rows, tokens and start
        self._aims_layout = 0
        self._most_aims = AIMS // len(self.cache.layers)
        self._keeps_windows = not compiled
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"  # the latter before 5.24

    def _keep_hidden(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._hidden_BND = inputs[0]  # the features' definition, whatever a model does around its head

    def forward(self, rows: slice, tokens_BN: Tensor, starts_B: Array, keep: int = 0) -> tuple[Tensor, Tensor | None]:
        """Feed `tokens_BN` to `rows` at positions `starts_B` and following; the caller is in inference mode.

        Returns logits [B, N, V] sliced to the shared vocabulary and, if this model keeps them, the vectors that feed
        the LM head, [B, N, D] float32. `keep` > 0 computes them for the last `keep` tokens only.
        """
        starts, N = starts_B.tolist(), tokens_BN.shape[1]
        first = starts[0]
        if self._aims_layout != self.cache.layouts or len(self._aims) >= self._most_aims:
            self._aims, self._aims_layout = {}, self.cache.layouts  # lets go of memory that was outgrown
        if N <= BAND and starts.count(first) == len(starts):
            key = rows.start, len(starts), N, first
            aim = self._aims.get(key)
            if aim is None:
                aim = self._aims[key] = self._aim(starts_B, N, first)
        else:
            aim = self._aim(starts_B, N, None)
        self.cache.point(rows, aim.positions_B1N1, aim.visible, aim.windows)
        output = self.model(
            input_ids=tokens_BN,
            attention_mask=aim.mask_B1NL,
            position_ids=aim.known_BN,
            use_cache=True,
            logits_to_keep=keep,
            **{self._cache_argument: self.cache},
        )
        logits_BNV, hidden_BND = output.logits, self._hidden_BND
        self._hidden_BND = None
        if self.words_K is not None:
            all_BNV = logits_BNV.new_full((*logits_BNV.shape[:2], self.vocab_size), -torch.inf)
            logits_BNV = all_BNV.index_copy_(-1, self.words_K, logits_BNV)
        if logits_BNV.shape[-1] != self.vocab_size:
            logits_BNV = logits_BNV[..., : self.vocab_size]
        return logits_BNV, None if hidden_BND is None else hidden_BND.float()

    def _aim(self, starts_B: Array, N: int, common: int | None) -> _Aim:
        """`common`: all rows' start, if there is one and a view of the band serves their mask.

        The mask is 0 up to each token's position and -inf after it, [B, 1, N, visible]. Additive: attention would turn
        a boolean mask into this anew in every layer. One band matrix holds all masks: its row n has C + n zeros, then
        -inf. Rows with a common start see a view of it; otherwise each token takes a window of its first row.
        """
        positions_BN = torch.from_numpy(starts_B[:, None] + np.arange(N)).to(self.device)
        visible = min(-(-(int(starts_B.max()) + N) // self._bucket) * self._bucket, self.cache.capacity)
        # Padding may stand past the last position that the model knows; nothing that counts ever does.
        known_BN = positions_BN if visible <= self._context else positions_BN.clamp_max(self._context - 1)
        zeros = self._band_11NC.shape[-1] // 2
        if zeros < self.cache.capacity:
            zeros = self.cache.capacity
            is_later_NC = torch.arange(2 * zeros) >= zeros + torch.arange(BAND)[:, None]
            self._band_11NC = torch.zeros(1, 1, BAND, 2 * zeros, dtype=self.dtype, device=self.device)
            self._band_11NC.masked_fill_(is_later_NC.to(self.device), -torch.inf)
        if common is not None:
            begin = zeros - 1 - common
            mask_B1NL = self._band_11NC[:, :, :N, begin : begin + visible].expand(len(starts_B), 1, N, visible)
        else:
            mask_B1NL = self._band_11NC[0, 0, 0].unfold(0, visible, 1)[zeros - 1 - positions_BN][:, None]
        windows = Windows(common) if common is not None and self._keeps_windows else None
        return _Aim(positions_BN[:, None, :, None], known_BN, mask_B1NL, visible, windows)

    def forward_from(
        self, rows: slice, tokens_BN: Tensor, starts_B: Array, first_B: Array, width: int
    ) -> tuple[Tensor, Tensor | None]:
        """`forward`, but only columns `first_B` to `first_B + width` of each row: [B, width, V] and [B, width, D]."""
        N = tokens_BN.shape[1]
        if width == N:
            return self.forward(rows, tokens_BN, starts_B)
        earliest = min(first_B.tolist())  # the LM head, which may dominate, skips what no row needs
        logits_BNV, hidden_BND = self.forward(rows, tokens_BN, starts_B, keep=N - earliest)
        if N - earliest == width:
            return logits_BNV, hidden_BND
        index_BW1 = torch.from_numpy(first_B[:, None] - earliest + np.arange(width)).to(self.device)[..., None]
        picked = [
            None if values is None else values.gather(1, index_BW1.expand(-1, -1, values.shape[-1]))
            for values in (logits_BNV, hidden_BND)
        ]
        return picked[0], picked[1]  # type: ignore[return-value]
