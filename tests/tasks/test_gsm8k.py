"""The grader of GSM8K: what counts as the answer."""

import json
from pathlib import Path

import pytest

from diversed.errors import DataError
from diversed.settings import TaskSettings
from diversed.tasks import Example, Split, get_task

RIGHT = [
    ("18", "#### 18"),
    ("18", "####18"),
    ("18", "9 * 2 = <<9*2=18>>18\n#### $18."),
    ("18", "#### $18.00 per day"),
    ("18", "#### The answer is 18 dollars, not 20"),
    ("18", "so 18.\n#### 18\n\nQuestion: And 3 + 4?\n\nAnswer: 7\n#### 7"),
    ("18", "The answer is 18."),
    ("18", "16 - 3 - 4 = 9, and 9 * 2 = 18"),
    ("18", "It is **18**."),
    ("18", "I cannot mark it with ####\nbut it is 18"),
    ("13", "16-3=13"),
    ("3", "the rest is 16-3"),
    ("66", "take route-66"),
    ("1234567", "#### 1,234,567"),
    ("70000", "He made $70,000."),
    ("1234.5", "#### $1,234.50"),
    ("2.5", "2.5 hours"),
    ("0.5", "#### .5"),
    ("-5", "#### -5"),
    ("-5", "The balance is -$5."),
    ("-5", "The balance is $-5"),
    ("-5", "a change of \N{MINUS SIGN}5 degrees"),
    ("40", "#### 40%"),
    ("3", "choose from 1, 2, 3"),
    ("18", "#### 0018"),
    ("18", "#### 18 eggs. I checked it twice."),
    ("18", "Answer: 18\n"),
    ("-18", "it lost $18, so -18"),
    ("1000000", "#### $1,000,000.00"),
    ("0.05", "#### .05 of it"),
]
WRONG = [
    ("18", ""),
    ("18", "####"),
    ("18", "eighteen"),
    ("18", "#### 81"),
    ("18", "#### 180"),
    ("18", "#### 18.5"),
    ("18", "#### -18"),
    ("18", "#### 1,800"),
    ("18", "18 at first, then 20"),
    ("18", "#### 7\n#### 18"),
    ("1234", "#### 1, 234"),
    ("18", "The answers are 18 and 19"),
    ("18", "no answer"),
]


@pytest.mark.parametrize(("gold", "completion"), RIGHT)
def test_right(gold: str, completion: str) -> None:
    assert get_task("gsm8k").metric(Example("1", "", gold), completion) == 1.0


@pytest.mark.parametrize(("gold", "completion"), WRONG)
def test_wrong(gold: str, completion: str) -> None:
    assert get_task("gsm8k").metric(Example("1", "", gold), completion) == 0.0


def write(path: Path, answer: str) -> TaskSettings:
    path.write_text(json.dumps({"question": "How many?", "answer": answer}))
    return TaskSettings(data=str(path), test_size=1)


def test_prompt_and_gold(tmp_path: Path) -> None:
    asked = write(tmp_path / "one.jsonl", "1,200 + 34 = 1,234\n#### 1,234")
    [example] = get_task("gsm8k").examples(asked, Split.TEST, 0)
    assert example == Example("gsm8k-1", "Question: How many?\n\nAnswer:", "1234")


@pytest.mark.parametrize("answer", ["It is 5", "####", ""])
def test_an_answer_without_gold_is_refused_with_its_line(tmp_path: Path, answer: str) -> None:
    asked = write(tmp_path / "one.jsonl", answer)
    with pytest.raises(DataError, match=r"one\.jsonl line 1: column 'answer' has no number after ####; end it with"):
        get_task("gsm8k").examples(asked, Split.TEST, 0)
