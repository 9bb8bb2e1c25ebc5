"""Search verifiers with Ray Tune: the fastest one whose quality is shown to be no worse than strict's.

    ray job submit --working-dir . --runtime-env jobs/runtime_env.yaml -- python -m jobs.tune_verifier --trials 12
    python -m jobs.tune_verifier                            # on a Ray of its own
    python -m jobs.tune_verifier --search.space default     # a module of tune_spaces/

A search goes to `<output>/searches/<pair>-<task>-<fingerprint>/<attempt>`; an interrupted one is taken up there. Its
trials are nested MLflow runs and TensorBoard events. Nothing is promoted: that is `python -m jobs.promote`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diversed.settings import Settings, flatten
from jobs._main import job
from jobs._stages import attempt_at, fingerprint, screen

if TYPE_CHECKING:
    from rich.console import Console

    from diversed.models import Pair
    from diversed.tracking import TrackedRun, Tracker
    from diversed.tuning.candidates import Outcome

__all__ = ["main", "search_and_log"]


def tune_verifier(settings: Settings) -> None:
    from diversed.cluster import connect
    from diversed.models import load_pair, set_threads
    from diversed.tasks import Split, get_task
    from diversed.tracking import Tracker
    from tune_spaces import load_space

    console = screen()
    set_threads(settings.pair.threads)
    load_space(settings)
    pair = load_pair(settings.pair)
    for split in (Split.TRAIN, Split.VALIDATION):
        get_task(settings.task.name).examples(settings.task, split, settings.seed)
    tracker = Tracker(settings)
    root = settings.output / "searches" / f"{settings.label}-{fingerprint(settings)}"
    with attempt_at(root, settings.resume) as attempt, connect(dashboard=True):
        tracker.close_stale(key_prefix=f"{root}/")
        key = f"{attempt.folder}/search"
        with tracker.run(f"search {settings.label}", key=key, tags={"stage": "search"}) as run:
            outcome = search_and_log(settings, pair, attempt.folder, tracker, run, console)
        attempt.finish()
    if outcome.best is not None:
        console.print(f"promote it: python -m jobs.promote --verifier-checkpoint {outcome.best.folder}", soft_wrap=True)


def search_and_log(
    settings: Settings,
    pair: "Pair",
    folder: Path,
    tracker: "Tracker",
    run: "TrackedRun",
    console: "Console",
    trained: Path | None = None,
) -> "Outcome":
    """Search in `folder` with Ray connected; the ranking goes to the screen and, with the best verifier, to `run`.

    `trained` is a verifier that was trained under `settings`: it competes with the trials.
    """
    from diversed.cluster import at_once, nodes, require, search_plan
    from diversed.tuning.candidates import Candidate
    from diversed.tuning.search import search
    from diversed.tuning.yardstick import assess, measured_costs, yardstick
    from diversed.verifier import load_verifier
    from tune_spaces import load_space

    plan = search_plan(settings, nodes())
    require(plan, nodes())
    console.print(f"{settings.search.trials} trials, {at_once(plan, nodes())} at once; {plan}", highlight=False)
    space = load_space(settings)
    costs = measured_costs(settings, pair, space.draft_lengths(settings.decode.draft_length))
    measure = yardstick(settings, pair, costs, folder, console)
    incumbent = None
    if trained is not None:
        values = flatten(settings.record())
        report = assess(settings, pair, load_verifier(trained, pair)[0], measure).report()
        own = {name: values[name] for name in space.domains}
        incumbent = Candidate("train", trained, own, settings.train.epochs, report)
        console.print(f"train: {incumbent.describe()}", highlight=False, soft_wrap=True)
    outcome = search(settings, space, measure, folder, tracker, run, plan.placement, console, incumbent)
    console.print(outcome.table())
    console.print(outcome.describe(), highlight=False, soft_wrap=True)
    run.log_table(outcome.rows(), "trials.json")
    chosen = outcome.best or outcome.closest
    if chosen is not None:
        run.log_metrics({f"best/{name}": value for name, value in chosen.report.items() if isinstance(value, float)})
        run.log_artifacts(chosen.folder, "verifier")
    run.set_tags({"outcome": outcome.describe()})
    return outcome


main = job("Search verifiers with Ray Tune.")(tune_verifier)

if __name__ == "__main__":
    sys.exit(main())
