"""A study: several verifiers trained, then compared in one or more evaluations, and one page of all of it.

    python -m jobs.study jobs/study_arithmetic.yaml [settings, as for jobs.evaluate]

The file names `verifiers` and `evaluations`, each by the settings in which it differs:

    verifiers:   {seed0: {}, seed1: {seed: 1}}
    evaluations: {main: {evaluate.methods: ["strict", "diversed:checkpoint=seed0", "diversed:checkpoint=seed1"]}}

An `about` is printed on top of the page. In a method and as `verifier.checkpoint` a verifier goes by its name here.
Verifiers are trained side by side on the cluster. All work has a folder that is taken up again: the same command goes
on where it was stopped. The page is `<output>/studies/<name of the file>.html`, its tables `.md`.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diversed.errors import ConfigError
from diversed.settings import Settings
from jobs._main import run_job
from jobs._stages import screen

__all__ = ["Plan", "main", "read_plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A study's file."""

    verifiers: dict[str, dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    about: str = ""


def read_plan(path: Path) -> Plan:
    """ConfigError if the file is no plan."""
    try:
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a study's YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    kinds = ("verifiers", "evaluations")
    if not isinstance(plan, Mapping) or set(plan) - {"about"} != set(kinds):
        raise ConfigError(f"{path}: must hold verifiers and evaluations; see python -m jobs.study --help")
    for kind in kinds:
        named = plan[kind]
        if not isinstance(named, Mapping) or not all(isinstance(changes, Mapping) for changes in named.values()):
            raise ConfigError(f"{path}: {kind}: must map names to settings, NAME: {{}} at least")
    verifiers, evaluations = ({name: dict(changes) for name, changes in plan[kind].items()} for kind in kinds)
    return Plan(verifiers, evaluations, " ".join(str(plan.get("about", "")).split()))


def study(path: Path, settings: Settings) -> None:
    from diversed.cluster import connect
    from diversed.evaluation.report import read_comparisons, write_page
    from jobs.evaluate import evaluate

    plan, console = read_plan(path), screen()
    trained = {name: settings.updated(changes) for name, changes in plan.verifiers.items()}
    for changes in plan.evaluations.values():
        settings.updated(changes)  # what is wrong with it is said before anything is trained
    with connect():
        verifiers = _train(trained)
        for name, folder in verifiers.items():
            console.print(f"verifier {name}: {folder}", soft_wrap=True, highlight=False)
        comparisons = []
        for name, changes in plan.evaluations.items():
            console.print(f"evaluation {name}", highlight=False)
            changed = _with_checkpoint(settings.updated(changes), verifiers)
            methods = [_with_folder(method, verifiers) for method in changed.evaluate.methods]
            for folder in evaluate(changed.updated({"evaluate.methods": methods}), title=name):
                comparisons += read_comparisons(folder)
    page = settings.output / "studies" / f"{path.stem}.html"
    write_page(page, comparisons, None, plan.about)
    console.print(f"page: {page}", soft_wrap=True, highlight=False)


def _train(trained: Mapping[str, Settings]) -> dict[str, Path]:
    """The last checkpoint of each."""
    import ray

    from jobs.train_verifier import train_verifier

    @ray.remote
    def run(settings: Settings) -> Path:
        return train_verifier(settings)

    references = {
        name: run.options(num_cpus=each.pair.threads, num_gpus=0).remote(each) for name, each in trained.items()
    }
    folders: dict[str, Path] = {name: ray.get(reference) for name, reference in references.items()}
    return folders


def _with_checkpoint(settings: Settings, verifiers: Mapping[str, Path]) -> Settings:
    """A name as `verifier.checkpoint` stands for that verifier's folder."""
    name = settings.verifier.checkpoint
    if name is None or name not in verifiers:
        return settings
    return settings.updated({"verifier.checkpoint": str(verifiers[name])})


def _with_folder(method: str, verifiers: Mapping[str, Path]) -> str:
    """`checkpoint=NAME` with the verifier's folder, which `NAME=` keeps as its label."""
    fields = []
    for field in method.split(":"):
        name = field.removeprefix("checkpoint=")
        fields.append(f"checkpoint={name}={verifiers[name]}" if name != field and name in verifiers else field)
    return ":".join(fields)


def main(argv: Sequence[str] | None = None) -> int:
    first, *arguments = (list(sys.argv[1:] if argv is None else argv)) or ["--help"]
    if first.startswith("-"):
        print(__doc__)
        return 0 if first in {"-h", "--help"} else 2

    def run(settings: Settings) -> None:
        study(Path(first), settings)

    return run_job(run, arguments, "Run a study.")


if __name__ == "__main__":
    sys.exit(main())
