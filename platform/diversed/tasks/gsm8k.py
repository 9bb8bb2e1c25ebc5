"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168), zero-shot, exact match of the number."""

import re
from decimal import Decimal

from diversed.errors import DataError
from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row

__all__ = ["Gsm8k", "final_number"]

PROMPT = "Question: {question}\n\nAnswer:"
MARK = "####"
NUMBER = re.compile(
    r"""
    (?: (?<![\w)]) -\$? | \$-? )?             # a minus is a sign unless it subtracts (16-3) or joins (route-66)
    (?: [0-9]{1,3} (?:,[0-9]{3})+ (?![0-9])   # 1,234
      | [0-9]+ | (?<![0-9]) (?=\.[0-9]) )     # 1234, or nothing before .5
    (?: \.[0-9]+ )?                           # but not the full stop of 1234.
    """,
    re.VERBOSE,
)


def final_number(text: str) -> Decimal | None:
    """The answer in `text`: the first number of the line after the first ``####``, else the last number, else None.

    The *first* mark: a model that goes on to pose itself another question must not be graded on that one.
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    line = text.partition(MARK)[2].partition("\n")[0]
    numbers = NUMBER.findall(line)[:1] or NUMBER.findall(text)[-1:]
    return Decimal(re.sub(r"[$,]", "", numbers[0])) if numbers else None


class Gsm8k(DataSetTask):
    """Columns ``question`` and ``answer``; the gold number stands after ``####`` in the answer."""

    name = "gsm8k"
    metric_name = "accuracy"
    columns = ("question", "answer")
    hub_id = "openai/gsm8k"
    hub_config = "main"

    def example(self, row: Row, settings: TaskSettings) -> Example:
        answer = row.columns["answer"]
        gold = final_number(answer)
        if MARK not in answer or gold is None:
            raise DataError(f"{row.where}: column 'answer' has no number after {MARK}; end it with `{MARK} NUMBER`")
        return Example(f"{self.name}-{row.key}", PROMPT.format(question=row.columns["question"]), str(gold))

    def metric(self, example: Example, completion: str) -> float:
        return float(final_number(completion) == Decimal(example.reference))
