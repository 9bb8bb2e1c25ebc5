"""The prompt and the ROUGE-2 of CNN/DailyMail."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed.settings import TaskSettings
from diversed.tasks import Example, Split, get_task
from diversed.tasks.rouge import first_words


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("the cat sat on the mat", 1.0),
        ("The CAT sat, on the mat!", 1.0),  # case and punctuation do not count
        ("the cat sat", 4 / 7),  # 2 of its 2 pairs, 2 of the reference's 5: 2 * 1 * .4 / 1.4
        ("the cats sat on the mat", 3 / 5),  # no stemming: "the cats" and "cats sat" match nothing
        ("a dog", 0.0),
        ("cat", 0.0),
        ("", 0.0),
    ],
)
def test_rouge2_is_the_f1_of_word_pairs(completion: str, expected: float) -> None:
    example = Example("1", "", "the cat sat on the mat")
    assert get_task("cnndm").metric(example, completion) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("limit", "article"), [(2, "One  two"), (4, "One  two\nthree four"), (9, "One  two\nthree four")]
)
def test_the_article_is_cut_by_words_and_the_cue_is_not(tmp_path: Path, limit: int, article: str) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"article": "One  two\nthree four", "highlights": "Four ."}))
    asked = TaskSettings(data=str(path), test_size=1, max_prompt_words=limit)
    [example] = get_task("cnndm").examples(asked, Split.TEST, 0)
    assert example.prompt == f"Summarize the following article:\n\nArticle: {article}\n\nSummary:"
    assert example.reference == "Four ."


@given(st.text(), st.integers(1, 20))
def test_first_words_is_a_prefix_of_that_many_words(text: str, limit: int) -> None:
    cut = first_words(text, limit)
    assert text.startswith(cut)
    assert cut.split() == text.split()[:limit]
