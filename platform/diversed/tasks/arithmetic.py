"""The embedded `arithmetic` task: word problems whose solutions can be said in many ways and got wrong in one.

`jobs/make_arithmetic_pair.py` trains the embedded pair on texts of this generator. Each model is taught one `Style`:
how often it uses each synonym and how often it makes the common mistake of adding the numbers. The truth is the
product.

- Preset ``hard``: the target is sure of its phrasing and unsure of its results. Harmless disagreements then have a
  *smaller* p(x) than fatal ones, and no rule that sees only p and q can tell them apart.
- Preset ``easy``: the target varies its phrasing and makes no mistakes, so p(x) alone shows what is fatal.
"""

import random
import re
from dataclasses import dataclass
from itertools import product

from diversed.errors import ConfigError
from diversed.seeding import derive_seed
from diversed.settings import TaskSettings
from diversed.tasks.base import Example, Split, Task, cut

__all__ = ["MIXES", "PRESETS", "PROBLEMS", "TOKEN", "Arithmetic", "Preset", "Problem", "Style", "answer", "vocabulary"]

NAMES = ("Tom", "Ann", "Lily", "Omar", "Kofi", "Mei", "Ivan", "Sara")
THINGS = ("apples", "coins", "books", "shells", "stamps", "pens")
NUMBERS = range(2, 13)
SYNONYMS = {
    "first": ("first", "initially", "originally"),
    "has": ("has", "holds", "owns"),
    "then": ("then", "next", "afterwards"),
    "buys": ("buys", "gets", "receives"),
    "more": ("more", "extra", "additional"),
    "so": ("So", "Thus", "Hence"),
    "the": ("the", "a", "this"),
    "total": ("total", "sum", "amount"),
    "is": ("is", "equals", "makes"),
    "now": ("now", "today", "finally"),
}
QUESTION = "{name} has {a} {thing} and buys {b} more. How many {thing}?\n"
SOLUTION = (
    "{first} {name} {has} {a} {thing}. {then} {name} {buys} {b} {more}. "
    "{so} {the} {total} {is} {a} + {b} = {result} {now}. #### {result}"
)
ANSWER = re.compile(r"#### *([0-9]+)")
# A token of the pair's tokenizer. Digits stand alone, so that results are computed digit by digit.
TOKEN = re.compile(r"\n|####|[0-9]|[A-Za-z]+|[.?+=]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem; there are 8 names x 6 things x 11 x 11 numbers = 5,808 of them."""

    name: str
    thing: str
    a: int
    b: int

    @property
    def truth(self) -> int:
        """The right result."""
        return self.a * self.b

    def question(self) -> str:
        """The prompt; it ends with the newline after which a model starts its solution."""
        return QUESTION.format(name=self.name, thing=self.thing, a=self.a, b=self.b)


PROBLEMS = tuple(Problem(*values) for values in product(NAMES, THINGS, NUMBERS, NUMBERS))


@dataclass(frozen=True, slots=True)
class Style:
    """How a model of the pair writes its solutions.

    Attributes:
        phrasing: Probability of each of a slot's three synonyms.
        mistakes: Share of the solutions whose result is a + b.
    """

    phrasing: tuple[float, float, float]
    mistakes: float

    def solution(self, problem: Problem, rng: random.Random) -> str:
        """Draw one worked solution of `problem`, without the final <eos>."""
        words = {slot: rng.choices(synonyms, self.phrasing)[0] for slot, synonyms in SYNONYMS.items()}
        result = problem.a + problem.b if rng.random() < self.mistakes else problem.truth
        return SOLUTION.format(name=problem.name, thing=problem.thing, a=problem.a, b=problem.b, result=result, **words)


@dataclass(frozen=True, slots=True)
class Preset:
    """The styles that make one pair."""

    target: Style
    draft: Style


PRESETS = {
    "hard": Preset(target=Style((0.98, 0.01, 0.01), mistakes=0.12), draft=Style((0.1, 0.2, 0.7), mistakes=0.7)),
    "easy": Preset(target=Style((0.7, 0.2, 0.1), mistakes=0.0), draft=Style((0.1, 0.2, 0.7), mistakes=0.7)),
}


# Mixes of synonyms in which a prompt may begin its solution, by `task.config`.
MIXES = {"target-mix": PRESETS["hard"].target.phrasing, "draft-mix": PRESETS["hard"].draft.phrasing}
BEGUN = 2  # sentences of the solution that such a prompt holds, half of the synonyms


def vocabulary() -> list[str]:
    """All tokens that questions and solutions are made of, digits first, in a stable order."""
    texts = (*NAMES, *THINGS, *(word for slot in SYNONYMS.values() for word in slot), QUESTION, SOLUTION)
    words = {token for text in texts for token in TOKEN.findall(re.sub(r"\{\w+\}", " ", text))}
    return [*"0123456789", *sorted(words)]


def answer(completion: str) -> str | None:
    """The number after ``####``, or None where a completion has none."""
    found = ANSWER.search(completion)
    return found[1] if found else None


class Arithmetic(Task):
    """Needs no data: its examples are `PROBLEMS`, shuffled by the seed and cut into disjoint splits.

    A prompt is the question; with `task.config` one of `MIXES`, also the first sentences of a solution in that mix.
    """

    name = "arithmetic"
    metric_name = "accuracy"

    def examples(self, settings: TaskSettings, split: Split, seed: int) -> list[Example]:
        if settings.data is not None:
            raise ConfigError(f"task.data = {settings.data}: arithmetic makes its own questions; drop --data")
        if settings.config is not None and settings.config not in MIXES:
            raise ConfigError(f"task.config = {settings.config!r}: arithmetic has {' and '.join(MIXES)}, or none")
        examples = []
        for index in cut(len(PROBLEMS), settings, split, seed, source="the arithmetic task"):
            problem = PROBLEMS[index]
            begun = ""
            if settings.config is not None:
                rng = random.Random(derive_seed(seed, self.name, settings.config, index))
                sentences = Style(MIXES[settings.config], mistakes=0).solution(problem, rng).split(". ")
                begun = ". ".join(sentences[:BEGUN]) + "."
            examples.append(Example(f"{self.name}-{index}", problem.question() + begun, str(problem.truth)))
        return examples

    def metric(self, example: Example, completion: str) -> float:
        return float(answer(completion) == example.reference)
