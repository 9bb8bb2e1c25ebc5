"""The numbers of one evaluation as plain records: what reports and figures are made of."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from diversed.evaluation.gate import Gate
from diversed.evaluation.intervals import Estimate
from diversed.evaluation.metrics import MethodSummary
from diversed.settings import Method

__all__ = ["Comparison", "MethodRow"]


@dataclass(frozen=True, slots=True)
class MethodRow:
    """All numbers of one method. `summary` is None for Hugging Face's ways, of which only the speed is measured."""

    label: str
    method: str | None
    parameters: dict[str, float | str]  # of the rule, e.g. a static ensemble's {"weight": 0.5}; {} without any
    summary: MethodSummary | None
    against_strict: dict[str, Estimate]
    against_autoregressive: dict[str, Estimate]
    gate: Gate | None
    speed: dict[str, Estimate]

    @property
    def weight(self) -> float | None:
        """Of a static ensemble."""
        return float(self.parameters["weight"]) if self.method == Method.STATIC else None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "MethodRow":
        """From the plain values of `asdict`."""
        values = dict(record)
        for name in ("against_strict", "against_autoregressive", "speed"):
            values[name] = {key: Estimate(**estimate) for key, estimate in values[name].items()}
        if values["summary"] is not None:
            values["summary"] = MethodSummary.of(values["summary"])
        if values["gate"] is not None:
            gate = dict(values["gate"])
            values["gate"] = Gate(
                **{**gate, "reasons": tuple(gate["reasons"]), "difference": Estimate(**gate["difference"])}
            )
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """An evaluation's numbers and where they come from."""

    label: str  # <pair>-<task>
    metric: str  # the task's name for its quality
    origin: dict[str, Any]  # date, commits, machine, command, seed, decoding, timing
    methods: list[MethodRow]

    def row(self, label: str) -> MethodRow | None:
        """The method of that label, if it was run."""
        return next((row for row in self.methods if row.label == label), None)

    def statics(self) -> list[MethodRow]:
        """The static ensembles, from the most relaxed on."""
        return sorted((row for row in self.methods if row.weight is not None), key=lambda row: row.weight or 0.0)

    def record(self) -> dict[str, Any]:
        """Plain JSON values, read back by `Comparison.of`."""
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Comparison":
        return cls(**{**record, "methods": [MethodRow.of(row) for row in record["methods"]]})
