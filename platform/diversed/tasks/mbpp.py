"""MBPP: basic Python problems (Austin et al. 2021, arXiv:2108.07732), zero-shot, the problem's own asserts."""

import re

from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row
from diversed.tasks.sandbox import is_python, passes

__all__ = ["Mbpp", "code_of"]

PROMPT = (
    "Write a Python function to solve the following problem:\n\n{text}\n\n"
    "Your solution should pass these tests:\n{tests}"
)
FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


def code_of(completion: str, before: str = "") -> str:
    """The program in a completion: its first fenced block, else all of it, up to where it stops being Python.

    `before` is code that the completion continues.
    """
    fenced = FENCE.search(completion)
    lines = (before + (fenced[1] if fenced else completion)).replace("\r\n", "\n").split("\n")
    for end in range(len(lines), 0, -1):
        program = "\n".join(lines[:end])
        if is_python(program):
            return program
    return ""


class Mbpp(DataSetTask):
    """Columns ``text``, ``test_list`` and ``test_setup_code``; a completion scores 1 if its code passes the asserts.

    It is run in the sandbox.
    """

    name = "mbpp"
    metric_name = "pass@1"
    columns = ("text", "test_list", "test_setup_code")
    hub_id = "google-research-datasets/mbpp"
    hub_config = "full"

    def example(self, row: Row, settings: TaskSettings) -> Example:
        tests = row.columns["test_list"]
        prompt = PROMPT.format(text=row.columns["text"], tests=tests)
        return Example(f"{self.name}-{row.key}", prompt, f"{row.columns['test_setup_code']}\n{tests}")

    def metric(self, example: Example, completion: str) -> float:
        return float(passes(code_of(completion), example.reference))
