"""XSum's prompt, and its metric, which looks at 32 words."""

import json
from pathlib import Path

from diversed.settings import TaskSettings
from diversed.tasks import Example, Split, get_task


def test_only_the_first_32_words_count() -> None:
    task, example = get_task("xsum"), Example("1", "", "the cat sat on the mat")
    assert task.metric(example, "the cat sat on the mat") == 1
    padding = "so " * 26
    assert task.metric(example, f"{padding}the cat sat on the mat") > 0
    assert task.metric(example, f"{padding}{padding}the cat sat on the mat") == 0
    inside = task.metric(example, f"{padding}the cat sat on the mat")
    assert task.metric(example, f"{padding}the cat sat on the mat and much more that is not looked at") == inside


def test_the_document_is_cut_and_the_cue_is_not(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"id": 3, "document": "One  two\nthree four", "summary": "Four ."}))
    asked = TaskSettings(data=str(path), test_size=1, max_prompt_words=2)
    [example] = get_task("xsum").examples(asked, Split.TEST, 0)
    assert example.prompt == ("Write a concise summary of the following document:\n\nDocument: One  two\n\nSummary:")
    assert example.reference == "Four ."
