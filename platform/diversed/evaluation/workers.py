"""Parts of an evaluation on several Ray workers, each with an engine of its own.

A worker that is done takes the next part, so a slow one holds up nobody. One that dies (out of memory, a lost node) is
replaced and its part given out again: a part's file is written whole or not at all, and the same part gives the same
bytes wherever it runs.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from diversed.cluster import engine_for, evaluation_plan, nodes, require
from diversed.cluster.resources import at_once
from diversed.errors import DiversedError
from diversed.evaluation.compare import Part, PartRunner
from diversed.models import load_pair, set_threads
from diversed.settings import Settings
from diversed.tasks import get_task

__all__ = ["Workers", "workers_for"]

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # at one part, each on a new worker


def workers_for(settings: Settings) -> int:
    """How many workers the connected cluster has room for, at most `evaluate.workers`. ClusterError if for none."""
    plan = evaluation_plan(settings, nodes())
    require(plan, nodes())
    return at_once(plan, nodes())


class _Worker:
    """One engine at a time, for the parts it is given."""

    def start(self, settings: Settings) -> None:
        set_threads(settings.pair.threads)
        pair = load_pair(settings.pair)
        engines = partial(engine_for, settings.pair, pair)
        self.runner = PartRunner(pair, get_task(settings.task.name), settings, engines)

    def run(self, part: Part, _started: None) -> None:
        self.runner.run(part)


class Workers:
    """A `Runner` for as long as its `with` block; a Ray must be connected."""

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._plan = evaluation_plan(settings, nodes())
        self._count = count
        self._groups: dict[Any, Any] = {}  # by worker
        self._started: dict[
            Any, Any
        ] = {}  # what `start` came to; handed to each call, so that its failure is the call's
        self._idle: deque[Any] = deque()

    def __enter__(self) -> "Workers":
        logger.info("%s, %d at once", self._plan, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._groups):
            self._end(worker)

    def __call__(self, parts: Sequence[Part], /) -> Iterator[Part]:
        waiting = deque((part, 1) for part in parts)
        running: dict[Any, tuple[Any, Part, int]] = {}
        while waiting or running:
            while waiting and len(running) < self._count:
                worker = self._idle.popleft() if self._idle else self._start()
                part, attempt = waiting.popleft()
                running[worker.run.remote(part, self._started[worker])] = (worker, part, attempt)
            (done, *_), _ = ray.wait(list(running), num_returns=1)
            worker, part, attempt = running.pop(done)
            try:
                ray.get(done)
            except RayActorError as error:
                self._end(worker)
                if attempt == ATTEMPTS:
                    raise DiversedError(
                        f"{part.variant.label}: {ATTEMPTS} workers died at {part.path.name}, the last: {error}"
                    ) from error
                logger.warning("a worker died at %s of %s: again", part.path.name, part.variant.label)
                waiting.appendleft((part, attempt + 1))
            except RayTaskError as error:
                if isinstance(error.cause, DiversedError):
                    raise error.cause from error
                raise
            else:
                self._idle.append(worker)
                yield part

    def _start(self) -> Any:
        group = placement_group(self._plan.placement, strategy="PACK")
        bundle = self._plan.bundles[0]
        worker: Any = (
            ray.remote(_Worker)
            .options(
                num_cpus=bundle.cpus,
                num_gpus=bundle.gpus,
                max_restarts=0,  # a restarted one would not have its pair
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
                ),
            )
            .remote()
        )
        self._groups[worker] = group
        self._started[worker] = worker.start.remote(self._settings)
        return worker

    def _end(self, worker: Any) -> None:
        ray.kill(worker)
        del self._started[worker]
        remove_placement_group(self._groups.pop(worker))
