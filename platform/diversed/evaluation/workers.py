"""Parts of an evaluation on several Ray workers, each with an engine of its own.

A worker that is done takes the next part, so a slow one holds up nobody. One that dies (out of memory, a lost node) is
replaced and its part given out again: a part's file is written whole or not at all, and the same part gives the same
bytes wherever it runs.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from diversed.cluster import engine_for, evaluation_plan, nodes, require
from diversed.cluster.resources import at_once
from diversed.errors import ClusterError, DiversedError
from diversed.evaluation.compare import Part, PartRunner
from diversed.models import load_pair, set_threads
from diversed.settings import Settings
from diversed.tasks import get_task

__all__ = ["Workers", "workers_for"]

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # at one part, each on a new worker
PLACE_SECONDS = 180.0  # until the first worker has its place and has loaded the pair


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

    def run(self, part: Part) -> None:
        self.runner.run(part)


class Workers:
    """A `Runner` for as long as its `with` block; a Ray must be connected.

    Parts go only to workers that are there: on a cluster with other work some may never get their place.
    """

    def __init__(self, settings: Settings, count: int) -> None:
        self._settings = settings
        self._plan = evaluation_plan(settings, nodes())
        self._count = count
        self._groups: dict[Any, Any] = {}  # placement groups, by worker
        self._starting: dict[Any, Any] = {}  # workers by what they will say when they are there
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
            while len(self._groups) < min(self._count, len(waiting) + len(running)):
                self._start()
            while waiting and self._idle:
                worker, (part, attempt) = self._idle.popleft(), waiting.popleft()
                running[worker.run.remote(part)] = (worker, part, attempt)
            seconds = None if running else PLACE_SECONDS
            done, _ = ray.wait([*running, *self._starting], num_returns=1, timeout=seconds)
            if not done:
                free = {name: ray.available_resources().get(name, 0.0) for name in self._plan.group}
                raise ClusterError(
                    f"{self._plan}, but for {PLACE_SECONDS:.0f} s no more than {free} has been free; end other work on "
                    "the cluster, or use --evaluate.workers 1"
                )
            (reference,) = done
            if reference in self._starting:
                self._arrived(reference)
            else:
                worker, part, attempt = running.pop(reference)
                if self._survived(reference, worker, part, attempt):
                    self._idle.append(worker)
                    yield part
                else:
                    waiting.appendleft((part, attempt + 1))

    def _start(self) -> None:
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
        self._starting[worker.start.remote(self._settings)] = worker

    def _arrived(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            ray.get(reference)
        except RayActorError as error:
            raise DiversedError(f"an evaluation worker died while it loaded the pair: {error}") from error
        except RayTaskError as error:
            _raise(error)
        self._idle.append(worker)

    def _survived(self, reference: Any, worker: Any, part: Part, attempt: int) -> bool:
        """Whether the part is done; False if its worker died and it can be tried again."""
        try:
            ray.get(reference)
        except RayActorError as error:
            self._end(worker)
            where = f"{part.path.name} of {part.variant.label}"
            if attempt == ATTEMPTS:
                raise DiversedError(f"{ATTEMPTS} workers died at {where}, the last: {error}") from error
            logger.warning("a worker died at %s: again", where)
            return False
        except RayTaskError as error:
            _raise(error)
        return True

    def _end(self, worker: Any) -> None:
        ray.kill(worker)
        remove_placement_group(self._groups.pop(worker))


def _raise(error: RayTaskError) -> NoReturn:
    """What the platform raised in a worker, as it was raised there."""
    if isinstance(error.cause, DiversedError):
        raise error.cause from error
    raise error
