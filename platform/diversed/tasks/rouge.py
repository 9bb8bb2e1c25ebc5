"""ROUGE-2 and the cutting of articles, which the summary tasks share."""

import re
from functools import cache
from itertools import islice
from typing import Any

__all__ = ["first_words", "rouge2"]


def first_words(text: str, limit: int) -> str:
    """The first `limit` words of `text` with the white space between them as it was."""
    ends = [word.end() for word in islice(re.finditer(r"\S+", text), limit)]
    return text[: ends[-1]] if ends else ""


def rouge2(reference: str, completion: str) -> float:
    """F1 of word pairs, no stemming, in [0, 1]."""
    return float(_scorer().score(reference, completion)["rouge2"].fmeasure)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # here: it brings nltk, two seconds for one task

    return RougeScorer(["rouge2"], use_stemmer=False)
