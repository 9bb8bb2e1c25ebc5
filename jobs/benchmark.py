"""Measure the engine, its batches, the learner, the start-up and the numerics of a pair on this machine.

    python -m jobs.benchmark                                             # all suites, on the embedded arithmetic pair
    python -m jobs.benchmark --benchmark.suites engine,batch --draft-length 5 --pair.threads 2 \
        --verifier-checkpoint models:/diversed-arithmetic-arithmetic@champion

Each suite prints tables and is recorded in `<output>/benchmarks/<pair>/<suite>-<date>.json` and in MLflow. What counts
are ratios of interleaved repetitions, with their spread; seconds and tokens per second hold for one machine.
"""

import sys
from collections.abc import Callable
from functools import partial

from diversed.settings import Settings, Suite
from jobs._main import job
from jobs._stages import screen

HELP = [sys.executable, "-m", "jobs.benchmark", "--help"]


def benchmark(settings: Settings) -> None:
    from diversed.evaluation.benchmark import Report, write_report
    from diversed.evaluation.numerics import measure_numerics
    from diversed.evaluation.processes import measure_memory
    from diversed.evaluation.suites import add_memory, check_benchmark, measure_batch, measure_engine, measure_startup
    from diversed.models import load_pair, set_threads
    from diversed.tasks import Split, get_task
    from diversed.tracking import Tracker
    from diversed.training.benchmark import measure_learner
    from jobs.evaluate import load_head, metric_name

    check_benchmark(settings)
    console = screen()
    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    task = get_task(settings.task.name)
    examples = task.examples(settings.task, Split.TEST, settings.seed)
    tracker = Tracker(settings)
    checkpoint = settings.verifier.checkpoint
    head = None if checkpoint is None else load_head(settings, pair, checkpoint)

    def batch() -> Report:
        report = measure_batch(settings, pair, examples, head, console)
        add_memory(report, measure_memory(settings))
        return report

    suites: dict[Suite, Callable[[], Report]] = {
        Suite.ENGINE: partial(measure_engine, settings, pair, examples, head, console),
        Suite.BATCH: batch,
        Suite.LEARNER: partial(measure_learner, settings, pair, task, console),
        Suite.STARTUP: partial(measure_startup, settings, examples[0].prompt, HELP, console),
        Suite.NUMERICS: partial(measure_numerics, settings, pair, examples, console),
    }
    folder = settings.output / "benchmarks" / settings.pair.name
    with tracker.run(f"benchmark {settings.pair.name}", tags={"stage": "benchmark"}) as run:
        for suite in dict.fromkeys(settings.benchmark.suites):
            report = suites[suite]()
            path = write_report(folder, suite, report, settings, pair)
            report.show(console)
            console.print(f"record: {path}", soft_wrap=True, highlight=False)
            run.log_metrics({metric_name(f"{suite}/{name}"): value for name, value in report.metrics().items()})
            run.log_table(report.rows(), f"{suite}.json")
            run.log_artifact(path, "benchmark")


main = job("Measure the engine, its batches, the learner, the start-up and the numerics of a pair on this machine.")(
    benchmark
)

if __name__ == "__main__":
    sys.exit(main())
