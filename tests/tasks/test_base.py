"""The loader, the splits and the registry."""

import json
from pathlib import Path

import pytest
import yaml

from diversed.errors import ConfigError, DataError
from diversed.settings import TaskSettings
from diversed.tasks import TASKS, Split, get_task
from diversed.tasks.base import read_jsonl


def settings(
    data: Path | str | None, train: int = 3, validation: int = 2, test: int = 2, **more: object
) -> TaskSettings:
    sizes = {"train_size": train, "validation_size": validation, "test_size": test}
    return TaskSettings.model_validate({"data": None if data is None else str(data), **sizes, **more})


@pytest.fixture
def gsm8k_file(tmp_path: Path) -> Path:
    rows = [{"question": f"What is {n}?", "answer": f"It is\n#### {n}", "extra": n} for n in range(10)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_registry_knows_its_tasks_and_refuses_others() -> None:
    assert list(TASKS) == ["arithmetic", "cnndm", "gsm8k", "humaneval", "mbpp", "xsum"]
    assert [get_task(name).name for name in TASKS] == list(TASKS)
    with pytest.raises(
        ConfigError, match=r"task\.name = 'gsm9k': no such task; choose one of arithmetic, cnndm, gsm8k,"
    ):
        get_task("gsm9k")


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_card_whose_front_matter_names_it_and_its_metric(name: str) -> None:
    _, front_matter, body = get_task(name).card().split("---\n", 2)
    card = yaml.safe_load(front_matter)
    assert card["name"] == name
    assert card["metric"].startswith(get_task(name).metric_name)
    assert {"licence", "source", "split", "size", "prompt", "version"} <= card.keys()
    assert body.lstrip().startswith("# ")


@pytest.mark.parametrize("seed", [0, 1])
def test_splits_of_a_file_are_disjoint_shuffled_and_stable(gsm8k_file: Path, seed: int) -> None:
    task, asked = get_task("gsm8k"), settings(gsm8k_file, train=5)
    splits = {split: task.examples(asked, split, seed) for split in Split}
    assert {split: len(examples) for split, examples in splits.items()} == {"train": 5, "validation": 2, "test": 2}
    ids = [example.id for examples in splits.values() for example in examples]
    assert len(set(ids)) == 9
    assert splits == {split: task.examples(asked, split, seed) for split in Split}
    assert splits[Split.TRAIN] != task.examples(asked, Split.TRAIN, seed + 1)


def test_an_example_keeps_its_id_under_another_seed(gsm8k_file: Path) -> None:
    task, asked = get_task("gsm8k"), settings(gsm8k_file, test=10)
    first, second = ({e.id: e for e in task.examples(asked, Split.TEST, seed)} for seed in (0, 1))
    assert first == second
    assert first["gsm8k-1"].reference == "0"


def test_test_rows_do_not_depend_on_the_other_sizes(gsm8k_file: Path) -> None:
    task = get_task("gsm8k")
    assert task.examples(settings(gsm8k_file, train=1), Split.TEST, 0) == task.examples(
        settings(gsm8k_file, train=999), Split.TEST, 0
    )


def test_too_few_rows_say_what_there_is_what_was_asked_and_what_to_lower(gsm8k_file: Path) -> None:
    with pytest.raises(DataError) as caught:
        get_task("gsm8k").examples(settings(gsm8k_file, train=7), Split.TRAIN, 0)
    assert str(caught.value) == (
        f"task.data = {gsm8k_file} has 10 rows, but 2 test + 2 validation + 7 train = 11 are asked for; "
        "lower --task.test-size, --task.validation-size, --task.train-size"
    )


def test_byte_order_mark_crlf_blank_lines_and_line_separators_survive(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes('\ufeff{"question": "a\u2028b"}\r\n\r\n   \n{"question": "c"}'.encode())
    rows = read_jsonl(path, ["question"])
    assert [(row.key, row.columns["question"]) for row in rows] == [("1", "a\u2028b"), ("4", "c")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"question": "a"}\n{"question": ',
            "{path} line 2: not JSON (Expecting value); give one JSON object per line",
        ),
        (b'["a"]\n', "{path} line 1: found list; give one JSON object per line"),
        (b'\n{"text": "a", "id": 1}\n', "{path} line 2: no column 'question'; it has text, id"),
        (b"{}\n", "{path} line 1: no column 'question'; it has none"),
        (b'{"question": "a"}\n{"question": 7}\n', "{path} line 2: column 'question' is int; make it a string"),
        (b'{"question": null}\n', "{path} line 1: column 'question' is NoneType; make it a string"),
        (b'{"question": "\xff"}\n', "task.data = {path}: byte 14 is not UTF-8; re-encode the file"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_jsonl(path, ["question"])
    assert str(caught.value).startswith(message.format(path=path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.json", "some/folder/absent.jsonl"])
def test_a_missing_file_names_path_working_directory_and_flag(name: str) -> None:
    with pytest.raises(DataError) as caught:
        get_task("gsm8k").examples(settings(name), Split.TEST, 0)
    assert str(caught.value) == (
        f"task.data = {Path(name).absolute()}: No such file or directory (working directory {Path.cwd()}); "
        "give an existing file with --data"
    )


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(DataError, match="has 0 rows, but 2 test = 2 are asked for"):
        get_task("gsm8k").examples(settings(path), Split.TEST, 0)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The hub, replaced by 20 rows per split; returns the list of the calls made."""
    import datasets

    calls: list[tuple[object, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> datasets.Dataset:
        calls.append((name, config, split))
        rows = {"question": [f"{split} {n}" for n in range(20)], "answer": [f"#### {n}" for n in range(20)]}
        return datasets.Dataset.from_dict(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def test_hub_prompts_come_from_the_hub_splits(hub: list[tuple[object, ...]]) -> None:
    splits = {split: get_task("gsm8k").examples(settings(None, train=18), split, 0) for split in Split}
    assert set(hub) == {("openai/gsm8k", "main", "train"), ("openai/gsm8k", "main", "test")}
    assert all(example.id.startswith("gsm8k-test-") for example in splits[Split.TEST])
    training = [example.id for split in (Split.TRAIN, Split.VALIDATION) for example in splits[split]]
    assert len(set(training)) == 20
    assert all(id_.startswith("gsm8k-train-") for id_ in training)


def test_one_hub_split_for_both_is_cut_disjointly(hub: list[tuple[object, ...]]) -> None:
    asked = settings("someone/mirror", train=16, config="socratic", test_split="train")
    ids = [example.id for split in Split for example in get_task("gsm8k").examples(asked, split, 0)]
    assert len(set(ids)) == 20
    assert set(hub) == {("someone/mirror", "socratic", "train")}
    with pytest.raises(DataError, match=r"someone/mirror\[train\] has 20 rows, but 2 test \+ 2 validation \+ 17 train"):
        get_task("gsm8k").examples(asked.model_copy(update={"train_size": 17}), Split.TRAIN, 0)


@pytest.mark.parametrize("error", [ConnectionError, FileNotFoundError, ValueError, RuntimeError])
def test_an_unreachable_hub_asks_for_a_local_file(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise error("offline\nand much more")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        get_task("cnndm").examples(settings(None), Split.TEST, 0)
    assert str(caught.value) == (
        "task.data = abisee/cnn_dailymail (config 3.0.0, split test) cannot be loaded: offline; "
        "check the id, --task.config and the hub, or give a local .jsonl file with --data"
    )


@pytest.mark.parametrize(
    ("name", "file", "sizes"),
    [
        ("gsm8k", "gsm8k_train", (700, 100, 200)),
        ("gsm8k", "gsm8k", (80, 40, 80)),
        ("cnndm", "cnndm", (80, 40, 60)),
        ("xsum", "xsum", (80, 40, 80)),
    ],
)
def test_real_extracts_load_and_their_references_score_one(
    shared: Path, name: str, file: str, sizes: tuple[int, int, int]
) -> None:
    task, asked = get_task(name), settings(shared / "data" / f"{file}.jsonl", *sizes)
    examples = [example for split in Split for example in task.examples(asked, split, 0)]
    assert len({example.id for example in examples}) == sum(sizes)
    some = [example for example in examples if len(example.reference.split()) < 32][:80]  # XSum looks at 32 words
    assert all(task.metric(example, f"#### {example.reference}") == 1 for example in some)
    assert all(task.reward(example, "") == 0 for example in some)
