"""Code tasks: what is taken for the program, and what it scores."""

import json
import sys
from pathlib import Path

import pytest

from diversed.errors import DataError
from diversed.settings import TaskSettings
from diversed.tasks import Example, Split, get_task
from diversed.tasks.mbpp import code_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of Linux namespaces")

RIGHT = "def add(a, b):\n    return a + b"
TESTS = "\nassert add(1, 2) == 3"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        (RIGHT, RIGHT),
        (f"Here it is:\n```python\n{RIGHT}\n```\nIt adds.", f"{RIGHT}\n"),
        (f"```\n{RIGHT}\n", f"{RIGHT}\n"),  # the budget ran out before the fence was closed
        (f"{RIGHT}\n\nThis function adds its arguments.", f"{RIGHT}\n"),
        (RIGHT.replace("\n", "\r\n"), RIGHT),
        (f"{RIGHT}\n\ndef sub(a, b):\n    return a -", f"{RIGHT}\n"),
        ("I cannot do that.", ""),
        ("", ""),
        ("x = '\0'", ""),
    ],
)
def test_the_program_in_a_completion(completion: str, code: str) -> None:
    assert code_of(completion) == code


def test_mbpp_reads_lists_of_tests(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    record = {"text": "Add.", "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "test_setup_code": ""}
    path.write_text(json.dumps(record))
    task = get_task("mbpp")
    [example] = task.examples(TaskSettings(data=str(path), test_size=1), Split.TEST, 0)
    assert example.prompt == (
        "Write a Python function to solve the following problem:\n\nAdd.\n\nYour solution should pass these tests:\n"
        "assert add(1, 2) == 3\nassert add(0, 0) == 0"
    )
    assert task.metric(example, f"\n{RIGHT}") == 1
    assert task.metric(example, "\ndef add(a, b):\n    return 3") == 0
    path.write_text(json.dumps(record | {"test_list": [1]}))
    with pytest.raises(DataError, match=r"line 1: column 'test_list' is list; make it a string, or a list of them"):
        task.examples(TaskSettings(data=str(path), test_size=1), Split.TEST, 0)


def test_humaneval_continues_the_prompt() -> None:
    task = get_task("humaneval")
    prompt = 'def add(a, b):\n    """The sum."""\n'
    example = Example("1", prompt, "def check(candidate):\n    assert candidate(1, 2) == 3\n\ncheck(add)")
    assert task.metric(example, "    return a + b\n\n\nprint(add(1, 2)") == 1
    assert task.metric(example, f"```python\n{RIGHT}\n```") == 1
    assert task.metric(example, "    return a - b\n") == 0
    assert task.metric(example, "") == 0


def test_two_hundred_reference_solutions_score_1(shared: Path) -> None:
    """All of the extract; a row that cannot would be named here with its reason."""
    path = shared / "data" / "mbpp.jsonl"
    codes = {str(n): json.loads(line)["code"] for n, line in enumerate(path.read_text().split("\n"), 1) if line.strip()}
    task = get_task("mbpp")
    sizes = {"test_size": 200, "validation_size": 2, "train_size": 1}
    examples = task.examples(TaskSettings(data=str(path), **sizes), Split.TEST, 0)
    failed = [example.id for example in examples if task.metric(example, codes[example.id.split("-")[1]]) != 1]
    assert not failed, " ".join(failed)
    assert all(task.metric(example, "") == 0 for example in examples[:20])
