"""The one settings schema: flags, environment, YAML, Serve arguments, MLflow params and `run.yaml` all come from it.

Precedence: flag > environment (`DIVERSED_TRAIN__LEARNING_RATE`) > `--config FILE.yaml` > the task's preset
(`diversed/presets/<task>.yaml`) > default.
"""

import argparse
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from diversed.errors import ConfigError

__all__ = [
    "BenchmarkSettings",
    "DType",
    "DecodeSettings",
    "DrafterKind",
    "EvaluateSettings",
    "Features",
    "Method",
    "PairSettings",
    "Placement",
    "SearchSettings",
    "ServeSettings",
    "Settings",
    "Suite",
    "TaskSettings",
    "TraceSettings",
    "TrackingSettings",
    "TrainSettings",
    "VerifierSettings",
    "dotted",
    "flatten",
    "load_settings",
    "named_settings",
]


class Method(StrEnum):
    """How a drafted token is judged. The one list of methods; rules live in `diversed.verification`."""

    AUTOREGRESSIVE = "autoregressive"
    DRAFT_ONLY = "draft-only"
    STRICT = "strict"
    STATIC = "static"
    DIVERSED = "diversed"
    LOSSY = "lossy"
    CHOW = "chow"
    DIFF = "diff"
    OPT = "opt"
    TOKEN_V1 = "token-v1"  # noqa: S105
    TOKEN_V2 = "token-v2"  # noqa: S105
    TOKEN_V3 = "token-v3"  # noqa: S105
    TYPICAL = "typical"
    CACTUS = "cactus"
    FUZZY = "fuzzy"
    TRT_LLM = "trt-llm"
    MENTORED = "mentored"
    TRUNCATED = "truncated"
    CUSTOM = "custom"

    @property
    def drafts(self) -> bool:
        """Whether there is anything to verify."""
        return self not in (Method.AUTOREGRESSIVE, Method.TRUNCATED)


class Placement(StrEnum):
    """Where the two models run."""

    IN_PROCESS = "in-process"
    ACTORS = "actors"


class DrafterKind(StrEnum):
    """Who proposes tokens."""

    MODEL = "model"
    PROMPT_LOOKUP = "prompt-lookup"


class Features(StrEnum):
    """Whose hidden states the verifier reads."""

    BOTH = "both"
    DRAFT = "draft"
    TARGET = "target"


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Suite(StrEnum):
    """What `jobs/benchmark.py` can measure."""

    ENGINE = "engine"
    BATCH = "batch"
    LEARNER = "learner"
    STARTUP = "startup"
    NUMERICS = "numerics"

    __repr__ = StrEnum.__str__  # in a list, as it is typed


class Group(BaseModel):
    """A block of settings: unknown names are refused, instances are values."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def _absolute(value: str) -> str:
    """A local path as every process sees it (workers run in folders of their own); hub ids and URIs as they are."""
    path = Path(os.path.expanduser(value))  # noqa: PTH111 - Path.expanduser raises at a user that does not exist
    is_local = path.exists() or path.suffix in (".json", ".jsonl", ".gguf") or value.startswith((".", "~"))
    return os.path.abspath(path) if is_local else value  # noqa: PTH100 - absolute() keeps "..", resolve() leaves links


def _folder(value: Path) -> Path:
    """Absolute: a Ray job's working directory is thrown away."""
    try:
        return value.expanduser().absolute()
    except RuntimeError as error:
        raise ValueError("no such user's home; give an absolute path") from error


def _number(value: Any) -> Any:
    """Text that is a number as the number: flags and variables hold text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


Source = Annotated[str, AfterValidator(_absolute)]
Folder = Annotated[Path, AfterValidator(_folder)]


class PairSettings(Group):
    """A target and a draft that share one vocabulary."""

    name: str = Field(
        "arithmetic", description="built-in pair (arithmetic, smollm2), or a label for --pair.target/--pair.draft"
    )
    target: Source | None = Field(None, description="target model: hub id, local folder or .gguf file")
    draft: Source | None = Field(None, description="draft model: hub id, local folder or .gguf file")
    dtype: DType = Field(DType.FLOAT32, description="weights and activations; probabilities are always float32")
    device: str = Field("auto", description="auto (CUDA if there is one), cpu, cuda or cuda:N")
    compiled: bool = Field(
        False, description="run both models through torch.compile (CUDA graphs on CUDA): slow to start, then faster"
    )
    threads: int = Field(1, ge=1, description="CPU threads of a process that runs models")
    placement: Placement = Field(
        Placement.IN_PROCESS, description="both models in this process, or each in a Ray actor"
    )
    cache_dir: Folder = Field(Path("~/.cache/diversed"), description="where converted weights are kept")
    draft_words: int = Field(
        0, ge=0, description="the draft's LM head keeps this many most frequent words (q is 0 elsewhere); 0 keeps all"
    )
    draft_word_counts: Source | None = Field(
        None, description="text or .jsonl file whose words are counted for pair.draft_words"
    )
    draft_layers: int = Field(
        26, ge=1, description="smollm2 only: how many of the target's layers its untrained draft keeps"
    )

    @model_validator(mode="after")
    def _both_or_neither(self) -> "PairSettings":
        if (self.target is None) != (self.draft is None):
            raise ValueError("give both pair.target and pair.draft, or neither")
        return self

    @model_validator(mode="after")
    def _words_need_counts(self) -> "PairSettings":
        if self.draft_words and self.draft_word_counts is None:
            raise ValueError("pair.draft_words needs a file to count words in; give --pair.draft-word-counts")
        return self


class TaskSettings(Group):
    """Prompts, reward and metric; the names and sizes of the splits."""

    name: str = Field("arithmetic", description="arithmetic, cnndm, gsm8k, humaneval, mbpp or xsum")
    data: Source | None = Field(None, description="a local .jsonl file or a hub data set id; arithmetic needs none")
    config: str | None = Field(None, description="a hub data set's configuration; arithmetic: target-mix or draft-mix")
    train_split: str = Field("train", description="hub split that training and validation prompts come from")
    test_split: str = Field("test", description="hub split that test prompts come from")
    train_size: int = Field(400, ge=1, description="training prompts")
    validation_size: int = Field(200, ge=2, description="prompts on which a search compares its trials")
    test_size: int = Field(1000, ge=1, description="prompts of the final evaluation")
    chat_template: bool = Field(False, description="wrap prompts in the tokenizer's chat template")
    max_prompt_words: int = Field(400, ge=1, description="an article is cut to this many words, the cue never")
    max_new_tokens: int = Field(128, ge=1, description="exact bound on generated tokens")


class DecodeSettings(Group):
    """One generation: the rule, its parameters and the sampling law."""

    method: Method = Field(Method.DIVERSED, description="how drafted tokens are judged")
    draft_length: int = Field(5, ge=1, le=32, description="tokens drafted per round, N")
    weight: float = Field(0.5, ge=0, le=1, description="weight w on the target (static ensemble)")
    cap: float = Field(
        math.inf, ge=1, allow_inf_nan=True, description="overshoot cap c of the ensemble family: out <= c*p; inf is off"
    )
    parameters: dict[str, Annotated[float | str, BeforeValidator(_number)]] = Field(
        {}, description="parameters of a baseline's rule, e.g. alpha=0.5; what is left out has the rule's default"
    )
    repaired: bool = Field(False, description="a baseline's rule OR strict, with strict's replacement")
    temperature: float = Field(1.0, ge=0, description="0 is greedy: mixture-argmax")
    top_k: int = Field(0, ge=0, description="keep the k likeliest tokens on both sides; 0 is off")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the smallest set of this mass on both sides; 1 is off")
    min_p: float = Field(
        0.0, ge=0, le=1, description="drop tokens less likely than this share of the likeliest; 0 is off"
    )
    repetition_penalty: float = Field(
        1.0, gt=0, description="divides logits of tokens seen in prompt or output; 1 is off"
    )
    presence_penalty: float = Field(
        0.0, ge=-2, le=2, description="taken once from logits of tokens in the output; 0 is off"
    )
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="taken per occurrence in the output; 0 is off")
    stop: list[str] = Field([], description="texts that end an output")
    drafter: DrafterKind = Field(
        DrafterKind.MODEL, description="the pair's draft model, or lookup of the newest tokens in the text so far"
    )
    ngram: int = Field(3, ge=1, le=16, description="prompt-lookup: longest run of tokens that is looked up")
    batch_size: int = Field(16, ge=1, description="rows decoded together")


class VerifierSettings(Group):
    """The ensemble head."""

    initial_weight: float = Field(0.5, gt=0, lt=1, description="w0: the weight on the target before training")
    features: Features = Field(Features.BOTH, description="models whose hidden states count; the other's stay at 0")
    checkpoint: Source | None = Field(None, description="a verifier folder, or models:/NAME@ALIAS")


class TrainSettings(Group):
    """REINFORCE++ on the head (paper, section 4)."""

    lam: float = Field(0.1, ge=0, description="lambda: reward per unit of mean acceptance")
    learning_rate: float = Field(5e-4, gt=0, description="AdamW's peak rate")
    epochs: int = Field(2, ge=1, description="passes over the training prompts, each with fresh rollouts")
    prompts_per_update: int = Field(8, ge=1, description="prompts per optimiser batch")
    rollouts: int = Field(4, ge=1, description="samples per prompt, K; 1 is compared with the batch's mean reward")
    repeat: int = Field(0, ge=0, description="number of the training run: same prompts, other rollouts and order")
    passes: int = Field(1, ge=1, description="optimiser steps per batch of rollouts; above 1 the ratio is clipped")
    clip_ratio: float = Field(0.2, gt=0, lt=1, description="clip of the importance ratio when passes > 1")
    clip_norm: float = Field(5.0, gt=0, description="bound on the gradient's norm")
    warmup: int = Field(10, ge=0, description="warm-up updates before the cosine")
    temperature: float = Field(1.0, gt=0, description="temperature of the rollouts; never greedy")
    batch_size: int = Field(64, ge=1, description="rows of a rollout batch decoded together")

    @model_validator(mode="after")
    def _something_to_compare_with(self) -> "TrainSettings":
        if self.rollouts == self.prompts_per_update == 1:
            raise ValueError("train.rollouts = 1 with train.prompts_per_update = 1 compares nothing; raise one of them")
        return self


class SearchSettings(Group):
    """Ray Tune over the space named here (`tune_spaces/`)."""

    space: str = Field("default", description="module in tune_spaces that defines the space")
    trials: int = Field(6, ge=1, description="samples drawn from the space")
    concurrent: int = Field(2, ge=1, description="trials running at once")
    grace_period: int = Field(1, ge=1, description="epochs before ASHA may stop a trial")
    reduction_factor: int = Field(3, ge=2, description="ASHA keeps one in this many")


def _known_method(text: str) -> str:
    name = text.partition(":")[0]
    if name not in list(Method):
        raise ValueError(f"method {name!r} is none of {', '.join(Method)}")
    return text


class EvaluateSettings(Group):
    """What is compared, on how much, and what counts as equal quality."""

    methods: list[Annotated[str, AfterValidator(_known_method)]] = Field(
        ["autoregressive", "strict", "static:weight=0.9/0.7/0.5/0.3/0.15", "diversed"],
        min_length=1,
        description="what is compared, each NAME or NAME:field=value/value:...; strict must be one of them",
    )
    temperatures: list[Annotated[float, Field(ge=0)]] = Field(
        [], description="grid of temperatures; empty: that of decode.temperature"
    )
    draft_lengths: list[Annotated[int, Field(ge=1, le=32)]] = Field(
        [], description="grid of draft lengths; empty: that of decode.draft_length"
    )
    tasks: list[str] = Field(
        [], description="tasks, each under its own preset; empty: task.name (task.data is then a folder of TASK.jsonl)"
    )
    samples: int = Field(1, ge=1, description="samples per prompt, each with noise of its own")
    workers: int = Field(
        0, ge=0, description="processes that decode; 0: as many as the cluster has room for, 1: this one alone"
    )
    margin: float = Field(
        0.05, gt=0, description="non-inferiority margin in quality against strict, in units of the metric"
    )
    loop_margin: float = Field(
        0.02, ge=0, description="more looping or empty outputs than strict by this share: infeasible"
    )
    speed_prompts: int = Field(24, ge=2, description="prompts of the speed measurement, batch 1")
    speed_repeats: int = Field(3, ge=1, description="interleaved repetitions of the speed measurement")
    resamples: int = Field(2000, ge=100, description="bootstrap resamples")


class BenchmarkSettings(Group):
    """What `jobs/benchmark.py` measures, and on how much."""

    suites: list[Suite] = Field(list(Suite), min_length=1, description="what to measure, one after the other")
    repetitions: int = Field(7, ge=3, description="interleaved repetitions; the median of their ratios counts")
    prompts: int = Field(4, ge=1, description="test prompts of a repetition")
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(
        [1, 2, 4, 8, 16], min_length=1, description="rows decoded together; 1, the yardstick, is always measured"
    )
    draft_lengths: list[Annotated[int, Field(ge=1, le=32)]] = Field(
        [3, 5, 7, 10], min_length=1, description="N among which DIVERSED's best is looked for"
    )


class TraceSettings(Group):
    """What `jobs/trace.py` shows."""

    prompts: int = Field(3, ge=1, description="test prompts that are continued")


class ServeSettings(Group):
    """The OpenAI-compatible endpoint."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port; 0 takes a free one and prints it")
    max_waiting: int = Field(32, ge=1, description="requests that may wait for their turn; more are answered 429")
    app_name: str = Field("diversed", description="Serve application name")
    route_prefix: str = Field("/", description="path prefix of the application")


class TrackingSettings(Group):
    """MLflow."""

    uri: str | None = Field(None, description="tracking URI; default sqlite in the output folder")
    experiment: str | None = Field(None, description="experiment; default diversed/<task>")


PREFIX = "DIVERSED_"

# Variables with the prefix that are not settings: the --config file, and the commit of an uploaded working directory.
OTHER_VARIABLES = {f"{PREFIX}CONFIG", f"{PREFIX}GIT_COMMIT"}

# What people type most. The schema's own names are always accepted too.
SHORTHANDS = {
    "--pair": "--pair.name",
    "--task": "--task.name",
    "--data": "--task.data",
    "--method": "--decode.method",
    "--draft-length": "--decode.draft-length",
    "--temperature": "--decode.temperature",
    "--lambda": "--train.lam",
    "--lr": "--train.learning-rate",
    "--trials": "--search.trials",
    "--verifier-checkpoint": "--verifier.checkpoint",
}


class Settings(BaseSettings):
    """All settings of a run."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )
    layers: ClassVar[list[PydanticBaseSettingsSource]] = []

    seed: int = Field(0, ge=0, description="root seed; all randomness derives from it")
    output: Folder = Field(
        Path("~/.diversed"), description="folder of runs, checkpoints, figures and the default MLflow store"
    )
    resume: bool = Field(True, description="take up an interrupted run with the same settings")
    pair: PairSettings = PairSettings()
    task: TaskSettings = TaskSettings()
    decode: DecodeSettings = DecodeSettings()
    verifier: VerifierSettings = VerifierSettings()
    train: TrainSettings = TrainSettings()
    search: SearchSettings = SearchSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    benchmark: BenchmarkSettings = BenchmarkSettings()
    trace: TraceSettings = TraceSettings()
    serve: ServeSettings = ServeSettings()
    tracking: TrackingSettings = TrackingSettings()

    @property
    def label(self) -> str:
        """`<pair>-<task>`: names runs, experiments and the registered model."""
        return f"{self.pair.name}-{self.task.name}"

    @property
    def registered_model(self) -> str:
        return f"diversed-{self.label}"

    @property
    def tracking_uri(self) -> str:
        return self.tracking.uri or f"sqlite:///{self.output / 'mlflow.db'}"

    @property
    def experiment(self) -> str:
        return self.tracking.experiment or f"diversed/{self.task.name}"

    def record(self) -> dict[str, Any]:
        """Plain JSON/YAML values, readable back by `Settings(**record)`."""
        return self.model_dump(mode="json")

    def updated(self, changes: Mapping[str, Any]) -> "Settings":
        """A validated copy with dotted names changed, e.g. `{"decode.draft_length": 7}`."""
        record = self.record()
        for name, value in changes.items():
            *parents, leaf = name.split(".")
            group = record
            for parent in parents:
                group = group[parent]
            group[leaf] = value
        return from_record(record)

    def per_task(self) -> "list[Settings]":
        """One copy per task of `evaluate.tasks`, each over that task's own preset; what differs here from this task's
        preset was asked for, and stays. ConfigError if one file of data should serve several tasks."""
        if not self.evaluate.tasks:
            return [self]
        asked = flatten(self.record())
        usual = flatten(Settings(**_preset(self.task.name), output=self.output).record())
        changes = {name: value for name, value in asked.items() if name not in usual or value != usual[name]}
        changes |= {"evaluate.tasks": [], "output": asked["output"]}
        data = changes.pop("task.data", None)
        return [self._for_task(name, data, changes) for name in self.evaluate.tasks]

    def _for_task(self, name: str, data: str | None, changes: Mapping[str, Any]) -> "Settings":
        own: dict[str, Any] = {"task.name": name}
        if data is not None:
            file = Path(data) / f"{name}.jsonl"
            if Path(data).suffix in (".json", ".jsonl"):
                raise ConfigError(
                    f"task.data = {data}: one file cannot serve several tasks; give a folder of TASK.jsonl"
                )
            own["task.data"] = str(file) if file.is_file() else None
        return from_record(_preset(name)).updated({**changes, **own})

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `Settings(...)` in code is exactly its arguments; `load_settings` adds the layers


class _Parser(argparse.ArgumentParser):
    """Bad flags become one line and the caller's exit code, as any other bad setting does."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help for the names")


class _Flags(CliSettingsSource[Any]):
    """The schema as flags; choices are shown as they are typed (`draft-only`), not by the names of enum members."""

    def _metavar_format(self, obj: Any) -> str:
        if isinstance(obj, type) and issubclass(obj, StrEnum):
            return f"{{{','.join(obj)}}}"
        if get_origin(obj) is list:
            return f"list[{self._metavar_format(get_args(obj)[0])}]"
        return super()._metavar_format(obj)


class _Layered(Settings):
    """`Settings` read from the outside; kept apart so that a plain `Settings()` never depends on the environment."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return tuple(cls.layers)


def from_record(record: Mapping[str, Any]) -> Settings:
    """Validated settings from plain values (a `run.yaml`, Serve arguments); ConfigError names the first bad field."""
    try:
        return Settings(**dict(record))
    except ValidationError as error:
        _refuse(error)


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted names of a nested record, as MLflow params want them."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def load_settings(argv: Sequence[str] | None = None, program: str = "diversed", description: str = "") -> Settings:
    """Settings from flags, environment, `--config FILE` and preset.

    ConfigError (one line: field, value, fix) for any bad input, unknown names of all layers included; `--help` exits 0.
    """
    arguments, yaml_values = _take_config(list(sys.argv[1:] if argv is None else argv))
    _refuse_unknown_variables()
    try:
        cli = _Flags(
            _Layered,
            root_parser=_Parser(
                prog=program,
                usage="%(prog)s [--config FILE.yaml] [--NAME VALUE ...]",
                description=description,
                epilog=_help_on_layers(),
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            ),
            cli_parse_args=[_long_name(argument) for argument in arguments],
            cli_kebab_case=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
            cli_implicit_flags=True,
            cli_use_class_docs_for_groups=True,
        )
        return _layer([cli, EnvSettingsSource(_Layered), InitSettingsSource(_Layered, init_kwargs=yaml_values)])
    except ValidationError as error:
        _refuse(error)
    except SettingsError as error:
        cause = error.__cause__
        raise ConfigError(
            f"{error}: {cause}; a variable holds a list as [0.9,0.5] and names as "
            '{"alpha":0.5}, a flag 0.9,0.5 and alpha=0.5'
        ) from error


def named_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from named values, e.g. Serve arguments, over environment and preset; ConfigError for any bad one.

    Names are as `dotted` takes them; values may be text.
    """
    nested: dict[str, Any] = {}
    for name, value in dotted(values).items():
        *parents, leaf = name.split(".")
        group = nested
        for parent in parents:
            group = group.setdefault(parent, {})
            if not isinstance(group, dict):
                raise ConfigError(f"{name}: {parent} is also given a value of its own; give one of the two")
        group[leaf] = value
    try:
        return _layer([InitSettingsSource(_Layered, init_kwargs=nested), EnvSettingsSource(_Layered)])
    except ValidationError as error:
        _refuse(error)
    except SettingsError as error:
        raise ConfigError(f"{error}: {error.__cause__}") from error


def dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's dotted names of values whose names are nested, dotted or shorthands: `pair` is `pair.name`."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in flatten(values).items()}
    return {_long_name(flag).removeprefix("--").replace("-", "_"): value for flag, value in flags.items()}


def _layer(layers: list[PydanticBaseSettingsSource]) -> Settings:
    """`layers`, strongest first, over the preset of the task that they name."""
    try:
        _Layered.layers = layers
        known_task = _Layered().task.name
        _Layered.layers = [*layers, InitSettingsSource(_Layered, init_kwargs=_preset(known_task))]
        return from_record(_Layered().record())
    finally:
        _Layered.layers = []


def _long_name(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return f"{SHORTHANDS.get(flag, flag)}{equals}{value}"


def _help_on_layers() -> str:
    pairs = ", ".join(f"{short} = {long}" for short, long in SHORTHANDS.items())
    return textwrap.fill(
        f"Precedence: flag > variable ({PREFIX}TRAIN__LAM=0.2) > --config FILE.yaml (or {PREFIX}CONFIG) > preset of "
        f"the task > default. Short names: {pairs}.",
        width=100,
    )


def _refuse_unknown_variables() -> None:
    """pydantic-settings checks the names inside a group, but passes over a variable that names no group or field."""
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            name = variable.removeprefix(PREFIX).split("__")[0].lower()
            if name not in Settings.model_fields:
                raise ConfigError(f"{variable}: no such setting; a group's fields are {PREFIX}GROUP__FIELD")


def _take_config(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Split `--config FILE` off; the file's values."""
    rest: list[str] = []
    path = os.environ.get(f"{PREFIX}CONFIG")
    queue = iter(arguments)
    for argument in queue:
        if argument == "--config":
            path = next(queue, None)
            if path is None:
                raise ConfigError("--config needs a YAML file's path")
        elif argument.startswith("--config="):
            path = argument.removeprefix("--config=")
        else:
            rest.append(argument)
    if path is None:
        return rest, {}
    try:
        values = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; give an existing YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"--config {path}: expected a mapping of settings, found {type(values).__name__}")
    return rest, values


def _preset(task: str) -> dict[str, Any]:
    file = resources.files("diversed") / "presets" / f"{task}.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else {}


def _refuse(error: ValidationError) -> NoReturn:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    variable = PREFIX + "__".join(str(part) for part in first["loc"]).upper()
    is_from_variable = variable in os.environ and os.environ[variable] == first["input"]
    source = f" (from {variable})" if is_from_variable else ""
    if first["type"] == "extra_forbidden":
        raise ConfigError(f"{field}{source}: no such setting; see --help for the names") from error
    shown = f" = {first['input']!r}" if not isinstance(first["input"], Mapping) else ""
    message = first["msg"].removeprefix("Value error, ")
    raise ConfigError(f"{field or 'settings'}{shown}{source}: {message}") from error
