"""XSum: one-sentence summaries of BBC articles (Narayan et al. 2018, arXiv:1808.08745), zero-shot, ROUGE-2."""

from diversed.settings import TaskSettings
from diversed.tasks.base import DataSetTask, Example, Row
from diversed.tasks.rouge import first_words, rouge2

__all__ = ["XSum"]

PROMPT = "Write a concise summary of the following document:\n\nDocument: {document}\n\nSummary:"
WORDS = 32  # of a completion count: references are one sentence


class XSum(DataSetTask):
    """Columns ``document`` and ``summary``; the document is cut to `task.max_prompt_words`, the cue after it never."""

    name = "xsum"
    metric_name = "rouge2"
    columns = ("document", "summary")
    hub_id = "EdinburghNLP/xsum"
    hub_config = None

    def example(self, row: Row, settings: TaskSettings) -> Example:
        document = first_words(row.columns["document"], settings.max_prompt_words)
        return Example(f"{self.name}-{row.key}", PROMPT.format(document=document), row.columns["summary"])

    def metric(self, example: Example, completion: str) -> float:
        return rouge2(example.reference, first_words(completion, WORDS))
