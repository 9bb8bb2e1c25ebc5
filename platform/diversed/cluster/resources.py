"""What a stage needs of a cluster, and what is missing: plain arithmetic, known and printed before anything starts.

Without it the commonest failure of a Ray program is a job that waits for ever for a processor nobody has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diversed.errors import ClusterError
from diversed.settings import PairSettings, Placement, Settings

__all__ = [
    "Bundle",
    "Plan",
    "at_once",
    "engine_plan",
    "evaluation_plan",
    "require",
    "search_plan",
    "serve_plan",
    "shortfalls",
]

Nodes = Sequence[Mapping[str, float]]  # resources of each node, by Ray's names

# The loop waits while the draft drafts, and both while the target verifies: the three share one engine's CPUs.
LOOP_SHARE, TARGET_SHARE, DRAFT_SHARE = 0.25, 0.5, 0.25


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one process needs."""

    role: str
    cpus: float
    gpus: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """As Ray's placement groups take it."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    def __str__(self) -> str:
        return f"{self.role} {_amounts(self.resources)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`copies` equal groups of processes that may run at once. Bundle 0 of a group runs the loop; with actors, 1 is the
    target, 2 the draft."""

    stage: str
    bundles: tuple[Bundle, ...]
    copies: int = 1

    @property
    def group(self) -> dict[str, float]:
        """What one group needs."""
        cpus, gpus = sum(bundle.cpus for bundle in self.bundles), sum(bundle.gpus for bundle in self.bundles)
        return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})

    @property
    def placement(self) -> list[dict[str, float]]:
        """One group's bundles, for a placement group, `PlacementGroupFactory` or `placement_group_bundles`."""
        return [bundle.resources for bundle in self.bundles]

    def __str__(self) -> str:
        return f"{self.stage}: {_amounts(self.group)} ({', '.join(str(bundle) for bundle in self.bundles)})"


def engine_plan(pair: PairSettings, nodes: Nodes) -> Plan:
    """The actors of an engine whose loop runs in the calling process; no bundle if both models run there."""
    return Plan("the engine", _bundles("driver", pair, nodes)[1:])


def search_plan(settings: Settings, nodes: Nodes) -> Plan:
    """The trials that run at once."""
    copies = min(settings.search.concurrent, settings.search.trials)
    return Plan("a trial", _bundles("trial", settings.pair, nodes), copies)


def evaluation_plan(settings: Settings, nodes: Nodes) -> Plan:
    """The workers of an evaluation; as many as there is room for where `evaluate.workers` is 0."""
    copies = settings.evaluate.workers or max(1, int(_total(nodes, "CPU") // settings.pair.threads))
    return Plan("an evaluation worker", _bundles("worker", settings.pair, nodes), copies)


def serve_plan(settings: Settings, nodes: Nodes) -> Plan:
    """One replica of the endpoint."""
    return Plan("the endpoint", _bundles("replica", settings.pair, nodes))


def at_once(plan: Plan, nodes: Nodes) -> int:
    """How many groups of `plan` the cluster has room for at once, at most its `copies`."""
    room = [_total(nodes, name) / amount for name, amount in plan.group.items() if amount]
    return min([plan.copies, *(int(groups + 1e-6) for groups in room)])


def shortfalls(plan: Plan, nodes: Nodes) -> list[str]:
    """Why not even one group can ever run on `nodes`, readably; [] if it can, at worst after others have ended."""
    missing = [
        f"{plan} but the cluster has {name}={_total(nodes, name):g}"
        for name, amount in plan.group.items()
        if amount > _total(nodes, name)
    ]
    if missing:
        return missing
    return [
        f"{plan} but no single node has {bundle}"
        for bundle in plan.bundles
        if not any(all(node.get(name, 0.0) >= amount for name, amount in bundle.resources.items()) for node in nodes)
    ]


def require(plan: Plan, nodes: Nodes) -> None:
    """ClusterError, one line with the remedy, if `plan` can never run on `nodes`."""
    missing = shortfalls(plan, nodes)
    if not missing:
        return
    remedies = ["lower --pair.threads"]
    if any(bundle.gpus for bundle in plan.bundles):
        remedies.append("use --pair.device cpu")
    if len(plan.bundles) > 1:
        remedies.append("use --pair.placement in-process")
    raise ClusterError(f"{'; '.join(missing)}; {', '.join(remedies)} or add nodes")


def _total(nodes: Nodes, name: str) -> float:
    return sum(node.get(name, 0.0) for node in nodes)


def _amounts(resources: Mapping[str, float]) -> str:
    return " ".join(f"{name}={amount:g}" for name, amount in resources.items())


def _bundles(driver: str, pair: PairSettings, nodes: Nodes) -> tuple[Bundle, ...]:
    cpus = float(pair.threads)
    gpus = 1.0 if pair.device.startswith("cuda") or (pair.device == "auto" and _total(nodes, "GPU") > 0) else 0.0
    if pair.placement is Placement.IN_PROCESS:
        return (Bundle(driver, cpus, gpus),)
    return (
        Bundle(driver, LOOP_SHARE * cpus),
        Bundle("target", TARGET_SHARE * cpus, gpus),
        Bundle("draft", DRAFT_SHARE * cpus, gpus),
    )
