"""The schema is the interface: every field can be set by flag, variable and YAML, and comes back from a record."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import annotated_types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from diversed.errors import ConfigError
from diversed.settings import (
    SHORTHANDS,
    DecodeSettings,
    Method,
    Settings,
    flatten,
    from_record,
    load_settings,
    named_settings,
)


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted names of all leaves of the schema."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields_of(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


FIELDS = dict(fields_of(Settings))


def bound(field: FieldInfo, kind: type, attribute: str) -> float | None:
    return next((getattr(item, attribute) for item in field.metadata if isinstance(item, kind)), None)


def other_value(name: str, field: FieldInfo, default: Any) -> Any:
    """A valid value of the field that differs from its default."""
    kind = field.annotation
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        if isinstance(item, type) and issubclass(item, StrEnum):
            return [*item][2:0:-1]
        if item is str:
            return ["Question:", "Answer: #"]
        values = {int: [7, 2], float: [0.625, 0.25], str: ["strict", "lossy:alpha=0.5/0.25"]}
        return values[get_args(item)[0]]
    if get_origin(kind) is dict:
        return {"alpha": 0.25, "fallback": "sample"}
    if type(None) in get_args(kind):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if kind is bool:
        return not default
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(member for member in kind if member != default)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if kind is Path:
        return Path("/somewhere/else")
    if kind is str:
        return f"another-{name}"
    if kind is int:
        lower = bound(field, annotated_types.Ge, "ge")
        return lower if lower is not None and lower != default else default + 1
    assert kind is float, f"{name}: teach this test to make a value of {kind}"
    lower = bound(field, annotated_types.Ge, "ge")
    lower = bound(field, annotated_types.Gt, "gt") if lower is None else lower
    assert lower is not None, f"{name} has no lower bound"
    return lower + 0.375


def test_local_sources_become_absolute_because_workers_run_elsewhere(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    given = ["--data", "../x.jsonl", "--pair.target", "model", "--pair.draft", "org/model"]
    settings = load_settings([*given, "--verifier-checkpoint", "models:/m@champion"])
    assert settings.task.data == str(tmp_path.parent / "x.jsonl")
    assert settings.pair.target == str(tmp_path / "model")
    assert settings.pair.draft == "org/model"
    assert settings.verifier.checkpoint == "models:/m@champion"


def value_of(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def flag(name: str, value: Any) -> list[str]:
    kebab = name.replace("_", "-")
    if isinstance(value, bool):
        head, dot, leaf = kebab.rpartition(".")
        return [f"--{kebab}" if value else f"--no-{head}{dot}{leaf}"]
    return [f"--{kebab}", as_text(value)]


def variable(name: str) -> str:
    return "DIVERSED_" + name.replace(".", "__").upper()


def nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


# Fields of the pair that may not stand without another: each is tested beside its fellow.
COMPANION = {
    "pair.target": "pair.draft",
    "pair.draft": "pair.target",
    "pair.draft_words": "pair.draft_word_counts",
}


@pytest.mark.parametrize("layer", ["flag", "variable", "yaml"])
@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_set(name: str, layer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    default = value_of(load_settings([]), name)
    wanted = other_value(name, FIELDS[name], default)
    values = {name: wanted} | ({COMPANION[name]: "fellow"} if name in COMPANION else {})
    arguments: list[str] = []
    if layer == "flag":
        arguments = [part for each, value in values.items() for part in flag(each, value)]
    elif layer == "variable":
        for each, value in values.items():
            monkeypatch.setenv(variable(each), json.dumps(value) if isinstance(value, list | dict) else str(value))
    else:
        record: dict[str, Any] = {}
        for each, value in values.items():
            group = record
            *parents, leaf = each.split(".")
            for parent in parents:
                group = group.setdefault(parent, {})
            group[leaf] = json.loads(json.dumps(value, default=str))  # paths and members of enums as text
        file = tmp_path / "settings.yaml"
        file.write_text(yaml.safe_dump(record))
        arguments = ["--config", str(file)]
    settings = load_settings(arguments)
    assert value_of(settings, name) == wanted != default
    base = load_settings(["--task", settings.task.name])  # a task brings its preset
    changed = {each for each in FIELDS if value_of(settings, each) != value_of(base, each)}
    assert changed - set(values) == set()  # nothing else moved


def test_precedence_flag_variable_yaml_preset_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def budget(*arguments: str) -> int:
        return load_settings(arguments).task.max_new_tokens

    assert Settings().task.max_new_tokens == 128  # the schema's default
    assert budget("--task", "gsm8k") == 512  # its preset
    file = tmp_path / "settings.yaml"
    file.write_text("task: {name: gsm8k, max_new_tokens: 7}\n")
    assert budget("--config", str(file)) == 7
    monkeypatch.setenv("DIVERSED_TASK__MAX_NEW_TOKENS", "8")
    assert budget("--config", str(file)) == 8
    assert budget("--config", str(file), "--task.max-new-tokens", "9") == 9
    assert load_settings(["--config", str(file)]).train.lam == 0.1  # the preset of the task that the file names


def test_the_task_named_in_a_variable_brings_its_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIVERSED_TASK__NAME", "cnndm")
    assert load_settings([]).train.lam == 0.5


def test_config_can_be_named_by_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("seed: 11\n")
    monkeypatch.setenv("DIVERSED_CONFIG", str(file))
    assert load_settings([]).seed == 11


def test_settings_made_in_code_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIVERSED_SEED", "5")
    assert Settings().seed == 0
    assert load_settings([]).seed == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-flag", "1"], r"--no-such-flag"),
        (["--decode.draft", "3"], r"--decode\.draft"),  # no guessing from a prefix
        (["stray"], r"stray"),
        (["--seed"], r"--seed"),
        (["--resume=maybe"], r"--resume"),
    ],
)
def test_unknown_flags_are_refused_in_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["DIVERSED_SEEDS", "DIVERSED_TRAIN__LR", "DIVERSED_TRAIN_LAM"])
def test_unknown_variables_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=rf"{name}\)?: no such setting"):
        load_settings([])


@pytest.mark.parametrize("text", ["seeds: 1", "train: {lr: 1}", "other: {}"])
def test_unknown_yaml_names_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="no such setting"):
        load_settings([f"--config={file}"])


@pytest.mark.parametrize(("text", "said"), [("- 1", "mapping"), ("a: [", "not YAML"), (None, "No such file")])
def test_a_bad_config_file_is_named(text: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(["--config", str(file)])
    assert str(file) in str(caught.value)


def test_config_without_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="--config"):
        load_settings(["--config"])


def test_a_missing_value_is_not_said_to_come_from_a_variable_that_is_not_set() -> None:
    with pytest.raises(ConfigError, match=r"^decode\.draft_length = None: "):
        from_record({"decode": {"draft_length": None}})


@pytest.mark.parametrize("layer", ["flag", "shorthand", "variable", "yaml", "record"])
def test_negative_draft_length_names_field_and_value(
    layer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = {"flag": ["--decode.draft-length", "-3"], "shorthand": ["--draft-length=-3"]}.get(layer, [])
    if layer == "variable":
        monkeypatch.setenv("DIVERSED_DECODE__DRAFT_LENGTH", "-3")
    if layer == "yaml":
        (tmp_path / "s.yaml").write_text("decode: {draft_length: -3}")
        arguments = ["--config", str(tmp_path / "s.yaml")]
    source = r" \(from DIVERSED_DECODE__DRAFT_LENGTH\)" if layer == "variable" else ""
    said = rf"^decode\.draft_length = '?-3'?{source}: .*greater than or equal to 1$"
    with pytest.raises(ConfigError, match=said) as caught:
        _ = from_record({"decode": {"draft_length": -3}}) if layer == "record" else load_settings(arguments)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"train.lam": math.inf},
        {"train.learning_rate": math.nan},
        {"decode.cap": math.nan},
        {"decode.cap": 0.5},
        {"decode.weight": 1.5},
        {"decode.top_p": 0.0},
        {"train.temperature": 0.0},
        {"evaluate.temperatures": [0.5, -0.1]},
        {"evaluate.methods": ["best"]},
        {"evaluate.methods": []},
        {"pair.target": "alone"},
        {"train.rollouts": 1, "train.prompts_per_update": 1},
        {"serve.port": 65536},
        {"decode.method": "best"},
    ],
    ids=str,
)
def test_values_out_of_bounds_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=re.escape(next(iter(changes)).rpartition(".")[0])):
        Settings().updated(changes)


def test_a_list_in_a_variable_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIVERSED_EVALUATE__TEMPERATURES", "0.9,0.5")
    with pytest.raises(ConfigError, match=r"\[0\.9,0\.5\]"):
        load_settings([])


@pytest.mark.parametrize("short", SHORTHANDS)
def test_shorthands_reach_their_field(short: str) -> None:
    name = SHORTHANDS[short].removeprefix("--").replace("-", "_")
    wanted = other_value(name, FIELDS[name], value_of(Settings(), name))
    for arguments in ([short, as_text(wanted)], [f"{short}={as_text(wanted)}"]):
        assert value_of(load_settings(arguments), name) == wanted


def test_every_field_is_described() -> None:
    assert [name for name, field in FIELDS.items() if not field.description] == []


def test_no_field_is_a_literal() -> None:
    """A Literal of ints cannot be set from a string: bounds instead."""
    assert [name for name, field in FIELDS.items() if "Literal" in str(field.annotation)] == []


@given(
    seed=st.integers(0, 2**62),
    draft_length=st.integers(1, 32),
    cap=st.one_of(st.just(math.inf), st.floats(1, 1e6)),
    method=st.sampled_from(Method),
    weights=st.lists(st.floats(0, 1), max_size=4),
    data=st.none() | st.text(st.characters(codec="ascii"), max_size=8),
)
def test_record_round_trips(
    seed: int, draft_length: int, cap: float, method: Method, weights: list[float], data: str | None
) -> None:
    settings = Settings(seed=seed).updated(
        {
            "decode.draft_length": draft_length,
            "decode.cap": cap,
            "decode.method": method.value,
            "evaluate.temperatures": weights,
            "task.data": data,
        }
    )
    assert from_record(settings.record()) == settings
    assert from_record(yaml.safe_load(yaml.safe_dump(settings.record()))) == settings  # a run.yaml


def test_named_values_stand_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve arguments: text, dotted, nested or short names."""
    monkeypatch.setenv("DIVERSED_SEED", "5")
    monkeypatch.setenv("DIVERSED_SERVE__PORT", "8001")
    settings = named_settings({"task": "gsm8k", "decode.draft_length": "7", "serve": {"port": "8002"}})
    assert (settings.task.name, settings.train.lam, settings.decode.draft_length) == ("gsm8k", 0.1, 7)
    assert (settings.seed, settings.serve.port) == (5, 8002)
    with pytest.raises(ConfigError, match="no such setting"):
        named_settings({"draft": 1})


def test_flatten_gives_mlflow_params() -> None:
    flat = flatten(Settings().record())
    assert set(flat) == set(FIELDS) - {"decode.parameters"}  # it is empty
    lossy = Settings().updated({"decode.method": "lossy", "decode.parameters": {"alpha": "0.5"}})
    assert flatten(lossy.record())["decode.parameters.alpha"] == 0.5
    assert flat["decode.draft_length"] == 5
    assert all(not isinstance(value, dict) for value in flat.values())


def test_settings_are_values() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 1  # type: ignore[misc]
    changed = settings.updated({"decode.draft_length": 7, "seed": 3})
    assert (changed.decode.draft_length, changed.seed, settings.decode, settings.seed) == (7, 3, DecodeSettings(), 0)


@pytest.mark.parametrize("flag", ["--output", "--pair.cache-dir"])
def test_a_home_of_nobody_is_one_line(flag: str) -> None:
    with pytest.raises(ConfigError, match="no such user's home; give an absolute path"):
        load_settings([flag, "~nobody-has-this-name/runs"])


def test_output_is_absolute_and_holds_the_default_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(["--output", "runs"])
    assert settings.output == tmp_path / "runs"
    assert settings.tracking_uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert load_settings(["--tracking.uri", "http://localhost:5000"]).tracking_uri == "http://localhost:5000"


def test_names_derive_from_pair_and_task() -> None:
    settings = load_settings(["--pair", "smollm2", "--task", "cnndm"])
    assert settings.label == "smollm2-cnndm"
    assert settings.registered_model == "diversed-smollm2-cnndm"
    assert settings.experiment == "diversed/cnndm"


def test_presets_are_valid_and_belong_to_tasks(repository: Path) -> None:
    presets = sorted((repository / "platform/diversed/presets").glob("*.yaml"))
    assert [file.stem for file in presets] == ["arithmetic", "cnndm", "gsm8k", "humaneval", "mbpp", "xsum"]
    for file in presets:
        settings = load_settings(["--task", file.stem])
        for name, value in flatten(yaml.safe_load(file.read_text())).items():
            assert value_of(settings, name) == value


def test_help_exits_0_without_torch_or_ray(repository: Path) -> None:
    code = """if True:
        import sys
        from diversed.settings import load_settings
        try:
            load_settings(["--help"], program="python -m jobs.example", description="An example.")
        except SystemExit as left:
            print("exit", left.code, "heavy", sorted({"torch", "ray", "mlflow", "transformers"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(repository / "platform"), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "exit 0 heavy []" in done.stdout
    assert "usage: python -m jobs.example [--config FILE.yaml] [--NAME VALUE ...]\n\nAn example.\n" in done.stdout
    assert (
        "{autoregressive,draft-only,strict,static,diversed,lossy,chow," in done.stdout
    )  # as typed, not Python's names
    assert "flag > variable" in done.stdout


def test_a_copy_per_task(tmp_path: Path) -> None:
    """Each task has its own preset; what the user set stays; data is a folder of files."""
    (tmp_path / "gsm8k.jsonl").write_text("")
    settings = load_settings(
        ["--task", "gsm8k", "--evaluate.tasks", "gsm8k,xsum", "--task.test-size", "7", "--data", str(tmp_path)]
    )
    gsm8k, xsum = settings.per_task()
    assert (gsm8k.task.name, gsm8k.task.max_new_tokens, gsm8k.train.lam) == ("gsm8k", 512, 0.1)
    assert (xsum.task.name, xsum.task.max_new_tokens, xsum.train.lam) == ("xsum", 128, 0.5)
    assert (gsm8k.task.test_size, xsum.task.test_size, xsum.evaluate.tasks) == (7, 7, [])
    assert (gsm8k.task.data, xsum.task.data) == (str(tmp_path / "gsm8k.jsonl"), None)
    one = load_settings(["--data", "x.jsonl"])
    assert one.per_task() == [one]
    with pytest.raises(ConfigError, match="one file cannot serve several tasks; give a folder"):
        load_settings(["--data", "x.jsonl", "--evaluate.tasks", "gsm8k,xsum"]).per_task()
