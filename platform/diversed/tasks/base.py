"""What a task is, and the one way in which data sets are read, shuffled and cut into splits."""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Protocol

from diversed.errors import DataError
from diversed.settings import TaskSettings

__all__ = ["DataSetTask", "Example", "Row", "Split", "Task", "cut", "read_jsonl"]


class Split(StrEnum):
    """The three uses of a task's examples; no example has two of them."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"


# Test rows are cut first: evaluating needs no more rows than it asks for, and no amount of training moves them.
ORDER = (Split.TEST, Split.VALIDATION, Split.TRAIN)


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt and what its completion is compared with.

    Attributes:
        id: Stable name: the same row of the same data has it whatever the seed and the sizes.
        prompt: Raw text, before any chat template.
        reference: The gold answer or summary.
    """

    id: str
    prompt: str
    reference: str


class Task(ABC):
    """A benchmark: where its examples come from and how a completion is scored."""

    name: ClassVar[str]
    metric_name: ClassVar[str]

    @abstractmethod
    def examples(self, settings: TaskSettings, split: Split, seed: int) -> list[Example]:
        """The split's examples. For one seed and one set of sizes the three splits are disjoint."""

    @abstractmethod
    def metric(self, example: Example, completion: str) -> float:
        """Score of one completion in [0, 1]; the headline number is 100 times the mean."""

    def reward(self, example: Example, completion: str) -> float:
        """What training maximises, in [0, 1]: the metric itself."""
        return self.metric(example, completion)

    def card(self) -> str:
        """The data set card: YAML front matter (licence, source, sizes, prompt, metric), then Markdown."""
        return (resources.files("diversed.tasks") / "cards" / f"{self.name}.md").read_text(encoding="utf-8")


def cut(
    total: int, settings: TaskSettings, split: Split, seed: int, source: str, pool: Sequence[Split] = ORDER
) -> list[int]:
    """Indices of `split` among `total` rows that the splits of `pool` share: shuffled by the seed, cut in pool order.

    Raises:
        DataError: There are too few rows for the split and those cut before it.
    """
    sizes = {part: int(getattr(settings, f"{part}_size")) for part in pool[: pool.index(split) + 1]}
    end = sum(sizes.values())
    if end > total:
        asked = " + ".join(f"{size} {part}" for part, size in sizes.items())
        flags = ", ".join(f"--task.{part}-size" for part in sizes)
        raise DataError(f"{source} has {total} rows, but {asked} = {end} are asked for; lower {flags}")
    return random.Random(seed).sample(range(total), total)[end - sizes[split] : end]


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a data set.

    Attributes:
        key: Its line in the file, or its index in the hub split.
        where: The same for people, for messages.
        columns: The text of the task's columns; of a list of texts, its lines.
    """

    key: str
    where: str
    columns: Mapping[str, str]


class Rows(Protocol):
    """Records that are read when they are asked for: a hub split may have 300,000 of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class DataSetTask(Task):
    """A task over a local .jsonl file or a hub data set with the same column names.

    A file is one pool that all three splits are cut from. On the hub, test prompts come from `task.test_split` and the
    others from `task.train_split`; where both name one split, it is one pool too.
    """

    columns: ClassVar[tuple[str, ...]]
    hub_id: ClassVar[str]
    hub_config: ClassVar[str | None]

    @abstractmethod
    def example(self, row: Row, settings: TaskSettings) -> Example:
        """The example that a row stands for."""

    def examples(self, settings: TaskSettings, split: Split, seed: int) -> list[Example]:
        pool: Sequence[Split] = ORDER
        rows: Rows
        if settings.data is not None and _is_file(settings.data):
            source = f"task.data = {settings.data}"
            rows = read_jsonl(Path(settings.data), self.columns)
        else:
            name = settings.data or self.hub_id
            config = settings.config or (self.hub_config if name == self.hub_id else None)
            hub_splits = {part: settings.test_split if part is Split.TEST else settings.train_split for part in ORDER}
            pool = [part for part in ORDER if hub_splits[part] == hub_splits[split]]
            source = f"{name}[{hub_splits[split]}]"
            rows = _HubRows(name, config, hub_splits[split], self.columns)
        indices = cut(len(rows), settings, split, seed, source, pool)
        return [self.example(rows[index], settings) for index in indices]


def _is_file(data: str) -> bool:
    """Whether `task.data` is a path; anything else is left to the hub's loader, which also takes folders."""
    path = Path(data).expanduser()
    return path.suffix in (".json", ".jsonl") or path.is_file()


def read_jsonl(path: Path, columns: Sequence[str]) -> list[Row]:
    """The `columns` of a JSON-lines file, text or lists of text. A byte-order mark, CRLF and blank lines do no harm.

    Raises:
        DataError: Missing file, or the first line that is not an object with these columns as text.
    """
    try:
        text = path.expanduser().read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(
            f"task.data = {path}: {error.strerror} (working directory {Path.cwd()}); give an existing file with --data"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"task.data = {path}: byte {error.start} is not UTF-8; re-encode the file") from error
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines(): JSON strings may hold U+2028
        if line.strip():
            where = f"{path} line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                reason = str(error).partition(": line 1 ")[0]  # the decoder counts lines within this one
                raise DataError(f"{where}: not JSON ({reason}); give one JSON object per line") from error
            if not isinstance(record, dict):
                raise DataError(f"{where}: found {type(record).__name__}; give one JSON object per line")
            rows.append(Row(str(number), where, _texts(record, columns, where)))
    return rows


class _HubRows:
    """A hub data set's split, or a folder that `datasets` can read."""

    def __init__(self, name: str, config: str | None, split: str, columns: Sequence[str]) -> None:
        import datasets  # here: it takes a second, and a local file needs none of it

        try:
            self._rows = datasets.load_dataset(name, config, split=split)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(
                f"task.data = {name} (config {config}, split {split}) cannot be loaded: {reason}; "
                "check the id, --task.config and the hub, or give a local .jsonl file with --data"
            ) from error
        self._name, self._split, self._columns = name, split, columns

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        where = f"{self._name}[{self._split}] row {index}"
        return Row(f"{self._split}-{index}", where, _texts(self._rows[index], self._columns, where))


def _texts(record: Mapping[str, Any], columns: Sequence[str], where: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for column in columns:
        if column not in record:
            raise DataError(f"{where}: no column {column!r}; it has {', '.join(record) or 'none'}")
        value = record[column]
        lines = [value] if isinstance(value, str) else value
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            found = type(value).__name__
            raise DataError(f"{where}: column {column!r} is {found}; make it a string, or a list of them")
        texts[column] = "\n".join(lines)
    return texts
