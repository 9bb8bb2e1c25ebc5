"""`platform/docs/rules.md` lists every method with its defaults, and its task works as it stands there."""

import json
import re
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch

from diversed.errors import ConfigError
from diversed.evaluation.grid import grid
from diversed.settings import DecodeSettings, Method, TaskSettings, load_settings
from diversed.tasks import Split
from diversed.verification import RULES, Laws, Rule, emitted_law, rule_of, total_variation

PAGE = (Path(__file__).parents[2] / "platform" / "docs" / "rules.md").read_text()


def test_the_page_lists_every_method_and_default() -> None:
    rows = dict(re.findall(r"^\| (`[^|]*) \|.*\|([^|]*)\|$", PAGE, re.MULTILINE))
    listed = {name: defaults for names, defaults in rows.items() for name in re.findall(r"`([^`]+)`", names)}
    assert set(listed) == set(Method)
    for method, kind in RULES.items():
        own = [field for field in fields(kind) if field.name not in {each.name for each in fields(Rule)}]
        shown = [
            f"{field.name} {field.default}" if isinstance(field.default, StrEnum) else f"{field.name} {field.default:g}"
            for field in own
        ]
        assert listed[method].strip().split(", ") == [text.replace(" 0.", " .") for text in shown], method


def test_the_pages_task_works(tmp_path: Path) -> None:
    _, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)  # noqa: S102 - the project's own documentation
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "is ice cold", "answer": "yes"}))
    task = names["BoolQ"]()
    (first,) = task.examples(TaskSettings(data=str(path), test_size=1), Split.TEST, 0)
    assert first.prompt == "Question: is ice cold?\nAnswer:"
    assert (task.metric(first, " Yes, it is."), task.metric(first, " no")) == (1, 0)


def test_the_pages_rule_is_one_file_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written to a file, named on the command line; it is on the frontier, and its parameter is in its label."""
    source, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_rules.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    (methods,) = re.findall(r"--evaluate\.methods (\S+)", PAGE)
    variants = grid(load_settings(["--evaluate.methods", methods]), lambda _: torch.nn.Identity())
    assert [v.label for v in variants][1:] == [f"custom rule=my_rules.Lenient share={share}" for share in (0.3, 0.5)]
    p, q = torch.tensor([0.50, 0.30, 0.15, 0.05]), torch.tensor([0.20, 0.50, 0.10, 0.20])
    accept, out = emitted_law(rule_of(variants[2].decode), Laws(p, q, torch.tensor([0])))
    # Tokens 0, 1 pass (.3 >= .25), 2 has q < p, 3 is judged as strict does: .25.
    assert float(accept) == pytest.approx(0.85)
    assert float(accept) == pytest.approx(1 - 0.35 + float(total_variation(p, out)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "decode.parameters.rule = '': is no rule"),
        ({"rule": "nowhere.Rule"}, "No module named 'nowhere'; give MODULE.CLASS"),
        ({"rule": "math.Rule"}, "has no attribute 'Rule'"),
        ({"rule": "math.pi"}, "'math.pi': is no rule"),
        ({"rule": "diversed.verification.baselines.Lossy", "gamma": 1.0}, "it has alpha, beta, rule"),
    ],
)
def test_a_rule_that_is_none(parameters: dict[str, float | str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_of(DecodeSettings(method=Method.CUSTOM, parameters=parameters))
    assert message in str(caught.value)
