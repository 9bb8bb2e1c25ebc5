"""`platform/docs/evaluate.md`: its metric works, its methods can be parsed, the files that it lists are written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diversed.evaluation import metrics
from diversed.evaluation.grid import grid
from diversed.evaluation.intervals import Bootstrap
from diversed.evaluation.metrics import ExampleResult, summarise
from diversed.settings import Settings
from diversed.verifier import Head

PAGE = (Path(__file__).parents[2] / "platform" / "docs" / "evaluate.md").read_text()


def test_the_pages_metric_works(make_result: Callable[..., ExampleResult], monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)  # noqa: S102 - the project's own documentation
    results = [make_result(name, text="abcdef", tokens=3) for name in "ab"]
    assert summarise(results, Bootstrap(100)).metrics["characters_per_token"].value == 2.0


def test_the_pages_methods_can_be_run(settings: Settings) -> None:
    (command,) = re.findall(r"--evaluate\.methods (\S+)", PAGE)
    table, _, _ = PAGE.partition("## What an evaluation leaves")
    entries = re.findall(r"^\| `([^`]*)` \|", table, re.MULTILINE)
    assert len(entries) == 4
    for methods in (command.split(","), entries):
        assert len(grid(settings.updated({"evaluate.methods": methods}), lambda _: Head(32, 32))) >= len(methods)
