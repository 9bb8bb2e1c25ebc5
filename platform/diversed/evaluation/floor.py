"""The floor under a generation's time: the forwards of its models alone, on the same inputs and caches.

What an engine takes beyond the floor is its own: sampling, judging, masks, bookkeeping. A loop that cost nothing would
have floor / measured = 1.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from diversed.decoding import Engine
from diversed.decoding.cache import SlotModel

__all__ = ["Floor"]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call."""

    function: Callable[..., object]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Floor:
    """Records the forwards of an engine's generations, and runs them again.

    It stands between an engine's `SlotModel`s and what they call: `cache.point`, which aims a forward, and `model`.
    """

    def __init__(self, engine: Engine) -> None:
        roles: tuple[Any, ...] = (engine.drafter, engine.target)
        self._slots: list[SlotModel] = [role.slots for role in roles if role is not None]
        self._calls: list[_Call] = []
        self.forwards = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What the engine calls within the block replaces what was recorded before."""
        self._calls, self.forwards = [], 0
        kept = [(slots, slots.model, slots.cache.point) for slots in self._slots]
        for slots, model, point in kept:
            self._replace(slots, _Model(model, self._forward), self._noted(point))
        try:
            yield
        finally:
            for slots, model, point in kept:
                self._replace(slots, model, point)

    @torch.inference_mode()
    def replay(self) -> None:
        """The recorded calls in their order, nothing between them."""
        for call in self._calls:
            call.function(*call.arguments, **call.options)

    @staticmethod
    def _replace(slots: Any, model: Any, point: Any) -> None:
        slots.model, slots.cache.point = model, point

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # No copies: a compiled model would need other graphs. The loop never writes into what a forward got.
            self._calls.append(_Call(function, arguments, options))
            return function(*arguments, **options)

        return call

    def _forward(self, model: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.forwards += 1
        return self._noted(model)(*arguments, **options)


class _Model:
    """A model that is seen being called, and is otherwise itself."""

    def __init__(self, model: Any, forward: Callable[..., Any]) -> None:
        self._model, self._seen = model, forward

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._seen(self._model, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
