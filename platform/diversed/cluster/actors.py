"""Draft and target in two Ray actors behind the engine's protocols: the same loop, the same tokens.

An actor holds one model. Engines of one process and pair share the two actors; each has a role of its own in them, a
cache and its settings, under a number. What the draft actor proposes goes to the target actor as an object reference,
so laws over the vocabulary never pass through the loop's process. Calls of one process run in order, and only `verify`
is waited for: the calls before it are handed to it as dependencies, so that their failure is its failure.
"""

import copy
import itertools
import logging
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import get_current_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor, nn

from diversed.cluster.resources import Bundle, engine_plan, require
from diversed.cluster.session import nodes
from diversed.decoding import Drafter, Engine, build_engine, rule_and_weigh
from diversed.decoding.roles import (
    Array,
    DraftInput,
    LocalDrafter,
    LocalTarget,
    PromptLookup,
    Proposal,
    VerifyInput,
    Weigh,
)
from diversed.errors import ClusterError, DiversedError
from diversed.models import Pair, load_pair, set_threads
from diversed.settings import DecodeSettings, DrafterKind, PairSettings, Placement
from diversed.verification import Rule, Verdict

__all__ = ["engine_for"]

logger = logging.getLogger(__name__)

PLACE_SECONDS = 120.0  # until the actors' resources are free
LOAD_SECONDS = 1800.0  # until a process has read its weights, from a network disk perhaps
CALL_SECONDS = 600.0  # one round, with the prompts read before it

Reference = ray.ObjectRef  # of a call's value


def engine_for(
    settings: PairSettings, pair: Pair, decode: DecodeSettings, head: Weigh | None = None, collect: bool = False
) -> Engine:
    """An engine with both models in this process or each in an actor, as `settings.placement` says.

    The actors take bundles 1 and 2 of the placement group that the caller runs in (a trial or replica placed by
    `search_plan` or `serve_plan`), else of a new one. They see the head's weights as they are at each `generate` or
    `stream`. Closing the last engine of a pair ends them. ClusterError if they cannot be placed.
    """
    if settings.placement is Placement.IN_PROCESS:
        return build_engine(pair, decode, head, collect)
    rule, weigh = rule_and_weigh(decode, head)
    drafts = rule.method.drafts and decode.drafter is DrafterKind.MODEL
    actors = _Actors.shared(settings, drafts)
    target = RemoteTarget(actors, rule, weigh, collect)
    drafter: Drafter | None = None
    if drafts:
        drafter = RemoteDrafter(actors, collect or weigh is not None, rule.untempered)
    elif rule.method.drafts:
        drafter = PromptLookup(pair.vocab_size, pair.eos_ids, decode.ngram)
    return Engine(drafter, target, decode, pair)


# -- inside the actors ---------------------------------------------------------------------------------------------

RoleT = TypeVar("RoleT", LocalDrafter, LocalTarget)


class _ModelActor(Generic[RoleT]):
    """One model of the pair and the roles it plays, by number."""

    def __init__(self) -> None:
        self.roles: dict[int, RoleT] = {}

    def start(self, settings: PairSettings) -> str:
        """Load the model; where it is. (Not the constructor's work: an error there arrives as the actor's death.)"""
        set_threads(settings.threads)
        device = "cuda" if settings.device.startswith("cuda:") else settings.device  # Ray shows one GPU, number 0
        self.pair = load_pair(settings.model_copy(update={"device": device}))
        self.load()
        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        return f"{self.pair.device}, Ray's GPU {' '.join(gpus) or 'none'}, node {context.get_node_id()[:8]}"

    def load(self) -> None:
        raise NotImplementedError

    def reserve(self, role: int, slots: int, capacity: int) -> None:
        self.roles[role].reserve(slots, capacity)

    @torch.inference_mode()
    def prefill(self, role: int, rows: slice, tokens_BK: Array, start: int) -> None:
        self.roles[role].prefill(rows, tokens_BK, start)

    def move(self, role: int, source: int, destination: int, length: int) -> None:
        self.roles[role].move(source, destination, length)

    def close(self, role: int) -> None:
        del self.roles[role]


class DraftActor(_ModelActor[LocalDrafter]):
    """The draft model in a process of its own."""

    def load(self) -> None:
        self.model = self.pair.draft

    def open(self, role: int, hidden: bool, untempered: bool) -> None:
        pair = self.pair
        self.roles[role] = LocalDrafter(
            self.model, pair.vocab_size, pair.eos_ids, hidden, pair.draft_words_K, pair.compiled, untempered
        )

    @torch.inference_mode()
    def propose(self, role: int, block: DraftInput, *_before: None) -> Proposal:
        return self.roles[role].propose(block).to(torch.device("cpu"))


class TargetActor(_ModelActor[LocalTarget]):
    """The target model in a process of its own."""

    def load(self) -> None:
        self.model = self.pair.target

    def open(self, role: int, rule: Rule, collect: bool) -> None:
        self.roles[role] = LocalTarget(self.model, self.pair.vocab_size, rule, None, collect, self.pair.compiled)

    def set_head(self, role: int, pickled: bytes) -> None:
        head: Weigh = ray.cloudpickle.loads(pickled)
        self.roles[role].weigh = head.to(self.pair.device) if isinstance(head, nn.Module) else head

    @torch.inference_mode()
    def verify(
        self, role: int, block: VerifyInput, proposal: Proposal | None, *_before: None
    ) -> tuple[Verdict, Tensor | None]:
        return self.roles[role].verify(block, proposal)


# -- in the loop's process -----------------------------------------------------------------------------------------


class _Actors:
    """The two actors of a pair, for all engines of this process. `users` counts the open roles."""

    # By pair and connection: after a shutdown, another Ray knows nothing of these actors.
    _live: "dict[tuple[PairSettings, str], _Actors]" = {}  # noqa: RUF012 - one table for the process

    @classmethod
    def shared(cls, settings: PairSettings, drafts: bool) -> "_Actors":
        """The actors of `settings`, their models loaded. Without `drafts` only the target need be there."""
        if not ray.is_initialized():
            raise ClusterError("pair.placement = 'actors': no Ray is connected; use in-process, or run it as a job")
        key = (settings, ray.get_runtime_context().get_worker_id())
        actors = cls._live.get(key) or cls(key)
        try:
            actors._start({"target": TargetActor, "draft": DraftActor} if drafts else {"target": TargetActor})
        except BaseException:
            if actors.users == 0:
                actors.end()
            raise
        cls._live[key] = actors
        return actors

    def __init__(self, key: tuple[PairSettings, str]) -> None:
        self._key = key
        self.users = 0
        self.handles: dict[str, Any] = {}
        self._numbers = itertools.count()
        current = get_current_placement_group()
        self._own = current is None
        self._group = self._reserve(key[0]) if current is None else current
        # Of a group with a bundle for the caller itself, that is the first.
        self._first = 0 if current is None else 1
        if len(self._group.bundle_specs) < self._first + 2:
            raise ClusterError(
                f"pair.placement = 'actors': this process was placed alone ({self._group.bundle_specs}); place it with "
                "bundles for target and draft as well"
            )

    def _reserve(self, settings: PairSettings) -> Any:
        plan = engine_plan(settings, nodes())
        require(plan, nodes())
        logger.info("%s", plan)
        group = placement_group(plan.placement, strategy="PACK")
        if not group.wait(PLACE_SECONDS):
            remove_placement_group(group)
            free = {name: ray.available_resources().get(name, 0.0) for name in plan.group}
            raise ClusterError(
                f"{plan}, but for {PLACE_SECONDS:.0f} s no more than {free} has been free; end other work on the "
                "cluster, or use --pair.placement in-process"
            )
        return group

    def _start(self, classes: Mapping[str, type[_ModelActor[Any]]]) -> None:
        started = {}
        for name, actor_class in classes.items():
            if name not in self.handles:
                self.handles[name] = ray.remote(actor_class).options(**self._options(name)).remote()
                started[name] = self.handles[name].start.remote(self._key[0])
        for name, reference in started.items():  # after all have begun: the models load at the same time
            logger.info("%s model on %s", name, self.value(reference, name, LOAD_SECONDS))

    def _options(self, name: str) -> dict[str, Any]:
        index = self._first + ["target", "draft"].index(name)
        resources = self._group.bundle_specs[index]
        bundle = Bundle(name, resources.get("CPU", 0.0), resources.get("GPU", 0.0))
        return {
            "num_cpus": bundle.cpus,
            "num_gpus": bundle.gpus,
            "max_restarts": 0,  # a restarted actor would have lost its caches
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
        }

    def join(self) -> int:
        """A number for a new role."""
        self.users += 1
        return next(self._numbers)

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.end()

    def end(self) -> None:
        """End both actors and give their place back; the next engine starts new ones."""
        if self._live.get(self._key) is self:
            del self._live[self._key]
        if not ray.is_initialized():
            return
        for handle in self.handles.values():
            ray.kill(handle)
        self.handles.clear()
        if self._own:
            remove_placement_group(self._group)

    def value(self, reference: "Reference[Any]", name: str, seconds: float) -> Any:
        """The value, or one DiversedError: what the platform raised in an actor, or that the actor is gone."""
        try:
            return ray.get(reference, timeout=seconds)
        except GetTimeoutError as error:
            raise DiversedError(f"the {name} actor has not answered for {seconds:.0f} s") from error
        except RayActorError as error:
            raise self._death(error) from error
        except RayTaskError as error:
            if isinstance(error.cause, DiversedError):
                raise error.cause from error
            if isinstance(error.cause, RayActorError):  # the other actor's, met in what it should have given
                raise self._death(error.cause) from error
            raise

    def _death(self, error: RayActorError) -> DiversedError:
        dead = [name for name, handle in self.handles.items() if handle._actor_id.hex() == error.actor_id]
        self.end()
        return DiversedError(
            f"the {' '.join(dead) or 'draft or target'} actor died, unfinished requests are lost; start them again "
            f"({error})"
        )


class _RemoteRole:
    """One engine's role in an actor."""

    name: str

    def __init__(self, actors: _Actors, *arguments: Any) -> None:
        self._actors = actors
        self._actor = actors.handles[self.name]
        self._role = actors.join()
        self._open = True
        self._before: list[Reference[Any]] = [self._actor.open.remote(self._role, *arguments)]

    def reserve(self, slots: int, capacity: int) -> None:
        self._before.append(self._actor.reserve.remote(self._role, slots, capacity))

    def prefill(self, rows: slice, tokens_BK: Array, start: int) -> None:
        self._before.append(self._actor.prefill.remote(self._role, rows, tokens_BK, start))

    def move(self, source: int, destination: int, length: int) -> None:
        self._before.append(self._actor.move.remote(self._role, source, destination, length))

    def close(self) -> None:
        if self._open:
            self._open = False
            if ray.is_initialized():
                self._actor.close.remote(self._role)
            self._actors.leave()

    def _dependencies(self) -> "list[Reference[Any]]":
        before, self._before = self._before, []
        return before


class RemoteDrafter(_RemoteRole):
    """The engine's `Drafter` in a `DraftActor`."""

    name = "draft"

    def __init__(self, actors: _Actors, hidden: bool, untempered: bool) -> None:
        super().__init__(actors, hidden, untempered)

    def propose(self, block: DraftInput) -> "Reference[Proposal]":
        proposal: Reference[Proposal] = self._actor.propose.remote(self._role, block, *self._dependencies())
        return proposal


class RemoteTarget(_RemoteRole):
    """The engine's `Target` in a `TargetActor`."""

    name = "target"

    def __init__(self, actors: _Actors, rule: Rule, weigh: Weigh | None, collect: bool) -> None:
        super().__init__(actors, rule, collect)
        self._weigh = weigh
        self._sent = b""

    def reserve(self, slots: int, capacity: int) -> None:
        """Called when rows join, hence also the moment to hand over a head that has been trained since."""
        super().reserve(slots, capacity)
        if self._weigh is None:
            return
        head = copy.deepcopy(self._weigh).cpu() if isinstance(self._weigh, nn.Module) else self._weigh
        pickled = ray.cloudpickle.dumps(head)
        if pickled != self._sent:
            self._before.append(self._actor.set_head.remote(self._role, pickled))
            self._sent = pickled

    def verify(self, block: VerifyInput, proposal: "Reference[Proposal] | None") -> tuple[Verdict, Tensor | None]:
        reference = self._actor.verify.remote(self._role, block, proposal, *self._dependencies())
        verdict: tuple[Verdict, Tensor | None] = self._actors.value(reference, self.name, CALL_SECONDS)
        return verdict
