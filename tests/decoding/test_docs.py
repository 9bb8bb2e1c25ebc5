"""The examples of `platform/docs/engine.md` are run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from diversed.verification import Laws

PAGE = Path(__file__).parents[2] / "platform" / "docs" / "engine.md"


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_a_rule_and_a_drafter_take_under_30_lines_and_work(blocks: list[str]) -> None:
    rule, with_rule, drafter, with_drafter = blocks
    assert max(len(rule.splitlines()), len(drafter.splitlines())) < 30
    names: dict[str, Any] = {"__name__": "example"}
    for block in (rule, with_rule):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the project's own documentation
    assert len(names["generation"].tokens) > 0
    lossy_tokens = names["generation"].tokens

    p, q = torch.tensor([0.50, 0.30, 0.15, 0.05]), torch.tensor([0.20, 0.50, 0.10, 0.20])
    every = Laws(p, q, torch.arange(4))
    for alpha, accepted in ((0.3, 0.8), (0.5, 0.9)):  # golden rows of the method
        example = names["Lossy"](names["Method"].STRICT, 1.0, alpha=alpha)
        assert float((q * example.accept(every)).sum()) == pytest.approx(accepted)

    for block in (drafter, with_drafter):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102
    assert names["generation"].drafted > 0
    assert names["generation"].tokens != lossy_tokens
