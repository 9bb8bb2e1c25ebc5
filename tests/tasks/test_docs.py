"""`platform/docs/rules.md` lists every method with its defaults, and its task works as it stands there."""

import json
import re
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from diversed.settings import Method, TaskSettings
from diversed.tasks import Split
from diversed.verification import RULES, Rule

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
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(example, names)  # noqa: S102 - the project's own documentation
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"question": "is ice cold", "answer": "yes"}))
    task = names["BoolQ"]()
    (first,) = task.examples(TaskSettings(data=str(path), test_size=1), Split.TEST, 0)
    assert first.prompt == "Question: is ice cold?\nAnswer:"
    assert (task.metric(first, " Yes, it is."), task.metric(first, " no")) == (1, 0)
