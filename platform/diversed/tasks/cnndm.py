"""CNN/DailyMail summaries (See et al. 2017, arXiv:1704.04368), zero-shot, ROUGE-2."""

from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row
from diversed.tasks.rouge import first_words, rouge2

__all__ = ["CnnDm"]

PROMPT = "Summarize the following article:\n\nArticle: {article}\n\nSummary:"


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
        return rouge2(example.reference, completion)
