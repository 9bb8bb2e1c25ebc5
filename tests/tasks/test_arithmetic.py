"""The arithmetic generator, its grader, and the tokenizer of the embedded pair."""

import random
import re
from collections import Counter
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from diversed.errors import ConfigError, DataError
from diversed.settings import TaskSettings
from diversed.tasks import Example, Split, get_task
from diversed.tasks.arithmetic import MIXES, PRESETS, PROBLEMS, Problem, Style, answer, vocabulary

PAIR = resources.files("diversed") / "models" / "arithmetic"
TOM = Problem("Tom", "coins", 7, 12)
styles = st.sampled_from([style for preset in PRESETS.values() for style in (preset.target, preset.draft)])
texts = st.builds(
    lambda problem, style, seed: (problem.question(), style.solution(problem, random.Random(seed))),
    st.sampled_from(PROBLEMS),
    styles,
    st.integers(0, 2**32),
)


@pytest.fixture(scope="module", params=["target", "draft"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return AutoTokenizer.from_pretrained(str(PAIR / request.param))


def test_texts_are_as_documented() -> None:
    assert TOM.question() == "Tom has 7 coins and buys 12 more. How many coins?\n"
    first_words = Style((1, 0, 0), mistakes=0).solution(TOM, random.Random(0))
    assert first_words == "first Tom has 7 coins. then Tom buys 12 more. So the total is 7 + 12 = 84 now. #### 84"
    last_words = Style((0, 0, 1), mistakes=1).solution(TOM, random.Random(0))
    assert last_words == (
        "originally Tom owns 7 coins. afterwards Tom receives 12 additional. "
        "Hence this amount makes 7 + 12 = 19 finally. #### 19"
    )


def test_a_seed_gives_one_text() -> None:
    style = PRESETS["hard"].draft
    drawn = [style.solution(TOM, random.Random(seed)) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_style_makes_its_share_of_mistakes_and_of_each_synonym() -> None:
    rng, style = random.Random(0), PRESETS["hard"].draft
    solutions = [style.solution(TOM, rng) for _ in range(2000)]
    assert sum(answer(text) == "19" for text in solutions) / 2000 == pytest.approx(0.7, abs=0.03)
    openings = Counter(text.split()[0] for text in solutions)
    shares = [openings[word] / 2000 for word in ("first", "initially", "originally")]
    assert shares == pytest.approx([0.1, 0.2, 0.7], abs=0.03)


def test_splits_are_disjoint_seeded_and_carry_the_product() -> None:
    task, asked = get_task("arithmetic"), TaskSettings(train_size=3000, validation_size=500, test_size=2000)
    splits = {split: task.examples(asked, split, 0) for split in Split}
    assert [len(splits[split]) for split in Split] == [3000, 500, 2000]
    assert len({example.prompt for examples in splits.values() for example in examples}) == 5500
    assert splits[Split.TEST] == task.examples(asked, Split.TEST, 0) != task.examples(asked, Split.TEST, 1)
    by_prompt = {problem.question(): (index, problem) for index, problem in enumerate(PROBLEMS)}
    for example in splits[Split.VALIDATION]:
        index, problem = by_prompt[example.prompt]
        assert (example.id, example.reference) == (f"arithmetic-{index}", str(problem.a * problem.b))


def test_prompts_may_begin_the_solution_in_a_mix_of_synonyms() -> None:
    task, size = get_task("arithmetic"), 2000
    asked = TaskSettings(train_size=1, validation_size=2, test_size=size)
    plain = task.examples(asked, Split.TEST, 0)
    for mix, phrasing in MIXES.items():
        mixed = task.examples(asked.model_copy(update={"config": mix}), Split.TEST, 0)
        assert [(each.id, each.reference) for each in mixed] == [(each.id, each.reference) for each in plain]
        begun = [each.prompt.removeprefix(one.prompt) for each, one in zip(mixed, plain, strict=True)]
        assert all(re.fullmatch(r"\w+ \w+ \w+ \d+ \w+\. \w+ \w+ \w+ \d+ \w+\.", text) for text in begun)
        words = Counter(text.split()[0] for text in begun)
        shares = [words[word] / size for word in ("first", "initially", "originally")]
        assert shares == pytest.approx(phrasing, abs=0.04)  # 3.5 standard deviations at most


def test_settings_that_cannot_be_met_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task.config = 'x': arithmetic has target-mix and draft-mix, or none"):
        get_task("arithmetic").examples(TaskSettings(config="x"), Split.TEST, 0)
    with pytest.raises(DataError, match="the arithmetic task has 5808 rows, but 1000 test"):
        get_task("arithmetic").examples(TaskSettings(train_size=5000), Split.TRAIN, 0)
    with pytest.raises(ConfigError, match=r"x\.jsonl: arithmetic makes its own questions; drop --data"):
        get_task("arithmetic").examples(TaskSettings(data="x.jsonl"), Split.TEST, 0)


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("first Tom has 7 coins. So the total is 7 + 12 = 84 now. #### 84", 1),
        ("#### 84 #### 19", 1),
        ("#### 19", 0),
        ("#### 8", 0),
        ("#### 840", 0),
        ("7 + 12 = 84", 0),
        ("84 ####", 0),
        ("", 0),
    ],
)
def test_the_number_after_the_mark_counts(completion: str, score: float) -> None:
    task, example = get_task("arithmetic"), Example("arithmetic-0", TOM.question(), "84")
    assert task.metric(example, completion) == task.reward(example, completion) == score


def test_special_ids_and_vocabulary(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == ["<pad>", "<eos>", "<unk>", *vocabulary()]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) == (0, 1, None)
    prompt = ["Tom", "has", "7", "coins", "and", "buys", "1", "2", "more", ".", "How", "many", "coins", "?", "\n"]
    assert tokenizer.convert_ids_to_tokens(tokenizer(TOM.question()).input_ids) == prompt


@settings(max_examples=200, deadline=None)
@given(texts)
def test_text_survives_the_tokenizer_and_streams_by_appending(tokenizer: Any, text: tuple[str, str]) -> None:
    question, solution = text
    whole, completion = tokenizer(question + solution).input_ids, tokenizer(solution).input_ids
    assert tokenizer.decode(whole) == question + solution
    assert whole == tokenizer(question).input_ids + completion
    assert tokenizer.unk_token_id not in whole
    streamed = [tokenizer.decode(completion[:length]) for length in range(len(completion) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(streamed))
    assert streamed[-1] == solution


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(2, 65), max_size=40))
def test_any_tokens_stream_by_appending_and_encode_back(tokenizer: Any, ids: list[int]) -> None:
    streamed = [tokenizer.decode(ids[:length]) for length in range(len(ids) + 1)]
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(streamed))
    assert tokenizer(streamed[-1]).input_ids == ids


def test_unknown_words_are_unknown_and_spaces_are_free(tokenizer: Any) -> None:
    assert tokenizer.decode(tokenizer("Hello  Tom has1 2coins").input_ids) == "<unk> Tom has 12 coins"
