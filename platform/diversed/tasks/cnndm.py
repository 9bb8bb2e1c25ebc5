"""CNN/DailyMail summaries (See et al. 2017, arXiv:1704.04368), zero-shot, ROUGE-2."""

import re
from functools import cache
from itertools import islice
from typing import Any

from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row

__all__ = ["CnnDm", "first_words"]

PROMPT = "Summarize the following article:\n\nArticle: {article}\n\nSummary:"


def first_words(text: str, limit: int) -> str:
    """The first `limit` words of `text` with the white space between them as it was."""
    ends = [word.end() for word in islice(re.finditer(r"\S+", text), limit)]
    return text[: ends[-1]] if ends else ""


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # here: it brings nltk, two seconds for one task

    return RougeScorer(["rouge2"], use_stemmer=False)


class CnnDm(DataSetTask):
    """Columns ``article`` and ``highlights``; the article is cut to `task.max_prompt_words`, the cue after it never."""

    name = "cnndm"
    metric_name = "rouge2"
    columns = ("article", "highlights")
    hub_id = "abisee/cnn_dailymail"
    hub_config = "3.0.0"

    def example(self, row: Row, settings: TaskSettings) -> Example:
        article = first_words(row.columns["article"], settings.max_prompt_words)
        return Example(f"{self.name}-{row.key}", PROMPT.format(article=article), row.columns["highlights"])

    def metric(self, example: Example, completion: str) -> float:
        return float(_scorer().score(example.reference, completion)["rouge2"].fmeasure)
