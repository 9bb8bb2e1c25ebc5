"""HumanEval: function bodies after their signature and docstring (Chen et al. 2021, arXiv:2107.03374)."""

from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row
from diversed.tasks.mbpp import code_of
from diversed.tasks.sandbox import passes

__all__ = ["HumanEval"]


class HumanEval(DataSetTask):
    """Columns ``prompt``, ``test`` and ``entry_point``; the completion continues the prompt's code, in the sandbox.

    A completion that is a fenced block stands for itself: chat models repeat the signature.
    """

    name = "humaneval"
    metric_name = "pass@1"
    columns = ("prompt", "test", "entry_point")
    hub_id = "openai/openai_humaneval"
    hub_config = None

    def example(self, row: Row, settings: TaskSettings) -> Example:
        tests = f"{row.columns['test']}\ncheck({row.columns['entry_point']})"
        return Example(f"{self.name}-{row.key}", row.columns["prompt"], tests)

    def metric(self, example: Example, completion: str) -> float:
        before = "" if "```" in completion else example.prompt
        return float(passes(code_of(completion, before), example.reference))
