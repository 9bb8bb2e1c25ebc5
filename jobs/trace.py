"""A page that shows texts token by token: coloured by w, marked where the rule went beyond strict.

    python -m jobs.trace --verifier-checkpoint models:/diversed-arithmetic-arithmetic@champion
    python -m jobs.trace --method lossy --decode.parameters alpha=0.9 --temperature 0.5 --trace.prompts 5

The first test prompts of the task are continued by `decode.method`; the page goes to `<output>/traces` and to MLflow.
"""

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from diversed.settings import Method, Placement, Settings
from jobs._main import job

if TYPE_CHECKING:
    from diversed.evaluation.viewer import Trace
    from diversed.models import Pair


def trace(settings: Settings) -> None:
    from diversed.artifacts import write_text_atomic
    from diversed.cluster import connect
    from diversed.evaluation.viewer import trace_page
    from diversed.models import load_pair, set_threads
    from diversed.tracking import Tracker

    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    tracker = Tracker(settings)
    with (
        connect() if settings.pair.placement is Placement.ACTORS else nullcontext(),
        tracker.run(f"trace {settings.label}", tags={"stage": "trace"}) as run,
    ):
        traces = _traces(settings, pair)
        folder = settings.output / "traces" / settings.label / run.id
        write_text_atomic(folder / "trace.html", trace_page(traces))
        run.log_artifacts(folder, "trace")
    print(f"page: {folder / 'trace.html'}")


def _traces(settings: Settings, pair: "Pair") -> "list[Trace]":
    from diversed.cluster import engine_for
    from diversed.decoding import Request
    from diversed.evaluation.compare import prompt_seed
    from diversed.evaluation.trace import trace_of
    from diversed.tasks import Split, get_task
    from jobs.evaluate import load_head

    decode, checkpoint = settings.decode, settings.verifier.checkpoint
    weighs = decode.method is Method.DIVERSED and checkpoint is not None
    head = load_head(settings, pair, str(checkpoint)) if weighs else None
    task = get_task(settings.task.name)
    examples = task.examples(settings.task, Split.TEST, settings.seed)[: settings.trace.prompts]
    requests = [
        Request.of(
            pair.encode(example.prompt, settings.task.chat_template),
            settings.task.max_new_tokens,
            prompt_seed(settings, example),
            decode,
            audited=True,
        )
        for example in examples
    ]
    engine = engine_for(settings.pair, pair, decode, head)
    try:
        generations = engine.generate(requests)
    finally:
        engine.close()
    traces = []
    for example, generation in zip(examples, generations, strict=True):
        score = task.metric(example, pair.decode(generation.tokens, decode.stop))
        facts = {
            "reference": example.reference,
            task.metric_name: f"{score:g}",
            "seed": str(generation.request.seed),
            "pair": pair.name,
            "verifier": checkpoint if head is not None and checkpoint else "none",
        }
        shown = trace_of(pair, generation, decode, example.prompt, facts)
        traces.append(replace(shown, title=f"{example.id}: {shown.title}"))
    return traces


main = job("Show texts token by token.")(trace)

if __name__ == "__main__":
    sys.exit(main())
