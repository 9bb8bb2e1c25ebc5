"""Where greedy outputs part."""

from types import SimpleNamespace
from typing import Any

import torch

from diversed.evaluation.numerics import parting


class Table:
    """A target whose logits are those of the last token alone."""

    def __init__(self, logits_VV: torch.Tensor) -> None:
        self.logits_VV = logits_VV

    def __call__(self, input_ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.logits_VV[input_ids])


def test_the_gap_is_that_of_the_two_likeliest_tokens_where_outputs_part() -> None:
    logits_VV = torch.tensor([[0.0, 1.0, 3.0, 9.0], [2.0, 1.75, 0.0, 9.0], [0.0, 0.0, 5.0, 9.0], [1.0, 2.0, 3.0, 9.0]])
    pair: Any = SimpleNamespace(target=Table(logits_VV), device="cpu", vocab_size=3)  # the fourth column is padding
    assert parting(pair, [0], [2, 1, 0], [2, 1, 0]) is None
    found = parting(pair, [0], [2, 1, 0], [2, 1, 1])
    assert found is not None
    assert (found.at, found.top2_gap) == (2, 0.25)
    assert found.likeliest == torch.tensor([2.0, 1.75, 0.0]).softmax(-1).max()
    longer = parting(pair, [0], [2], [2, 1])  # one ended
    assert longer is not None
    assert (longer.at, longer.top2_gap) == (1, 5.0)
    first = parting(pair, [3], [1], [2])
    assert first is not None
    assert (first.at, first.top2_gap) == (0, 1.0)
