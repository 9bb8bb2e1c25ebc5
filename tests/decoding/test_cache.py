"""The slot cache's remembered windows: never into memory that was replaced, nor another row's."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from diversed.decoding.cache import SlotModel

LENGTH = 9  # tokens read before the ones that are compared
VOCAB = 16


@pytest.fixture
def model(tiny_pair: Callable[..., Any]) -> PreTrainedModel:
    target: PreTrainedModel = tiny_pair().target
    return target


@pytest.fixture
def texts() -> torch.Tensor:
    return torch.randint(0, VOCAB, (4, LENGTH + 3), generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def read(slots: SlotModel, row: int, texts: torch.Tensor) -> torch.Tensor:
    """Logits of a text's last tokens, read into `row` in two forwards."""
    ids = texts[row : row + 1]
    rows = slice(row, row + 1)
    slots.forward(rows, ids[:, :LENGTH], np.array([0]))
    return slots.forward(rows, ids[:, LENGTH:], np.array([LENGTH]))[0].clone()


@pytest.fixture
def expected(model: PreTrainedModel, texts: torch.Tensor) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(input_ids=texts[row : row + 1]).logits[:, LENGTH:] for row in range(len(texts))]


def test_rows_at_one_position_have_windows_of_their_own(
    model: PreTrainedModel, texts: torch.Tensor, expected: list[torch.Tensor]
) -> None:
    slots = SlotModel(model, VOCAB)
    slots.cache.reserve(4, 32)
    for row in (0, 1, 0, 2, 1):
        torch.testing.assert_close(read(slots, row, texts), expected[row], atol=1e-5, rtol=1e-5)
    with torch.inference_mode():  # what row 1 read did not touch row 0
        again = slots.forward(slice(0, 1), texts[:1, LENGTH:], np.array([LENGTH]))[0]
    torch.testing.assert_close(again, expected[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("slots_more", "capacity_more"), [(4, 32), (1, 200), (4, 200)])
def test_windows_into_outgrown_memory_are_forgotten(
    model: PreTrainedModel, texts: torch.Tensor, expected: list[torch.Tensor], slots_more: int, capacity_more: int
) -> None:
    slots = SlotModel(model, VOCAB)
    slots.cache.reserve(1, 32)
    read(slots, 0, texts)
    slots.cache.reserve(slots_more, capacity_more)
    with torch.inference_mode():
        other = texts[1:2].clone()
        slots.forward(slice(0, 1), other[:, :LENGTH], np.array([0]))
        found = slots.forward(slice(0, 1), other[:, LENGTH:], np.array([LENGTH]))[0]
        torch.testing.assert_close(found, expected[1], atol=1e-5, rtol=1e-5)
        slots.cache.move(0, slots.cache.slots - 1, LENGTH)  # reads the cache itself, not a window
        last = slice(slots.cache.slots - 1, slots.cache.slots)
        found = slots.forward(last, other[:, LENGTH:], np.array([LENGTH]))[0]
    torch.testing.assert_close(found, expected[1], atol=1e-5, rtol=1e-5)


def test_windows_are_bounded(model: PreTrainedModel, texts: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diversed.decoding.cache.AIMS", 8)  # four for each of two layers
    slots = SlotModel(model, VOCAB)
    slots.cache.reserve(1, 64)
    with torch.inference_mode():
        for start in range(20):
            slots.forward(slice(0, 1), texts[:1, :1], np.array([start]))
            assert len(slots._aims) <= 4


def test_outgrown_memory_is_let_go(model: PreTrainedModel, texts: torch.Tensor) -> None:
    slots = SlotModel(model, VOCAB)
    slots.cache.reserve(2, 32)
    read(slots, 0, texts)
    outgrown = weakref.ref(slots.cache.layers[0].keys)
    slots.cache.reserve(2, 200)
    with torch.inference_mode():  # rows at different positions, which have no windows
        slots.forward(slice(0, 2), texts[:2, :1], np.array([LENGTH, 0]))
    assert outgrown() is None
    assert not slots._aims
