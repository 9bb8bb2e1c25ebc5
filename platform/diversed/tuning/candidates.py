"""Verifiers that compete for champion, and how one of them is chosen. Plain records; no Ray, no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

__all__ = ["Candidate", "Outcome", "select"]

SHORT = {"learning_rate": "rate", "initial_weight": "w0", "draft_length": "N"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A verifier with the settings it was trained under and its numbers on the validation prompts."""

    name: str
    folder: Path  # a verifier folder
    changes: dict[str, Any]  # dotted settings that differ from the search's own
    epoch: int
    report: dict[str, Any]  # of `objective.Score.report`

    @property
    def score(self) -> float:
        return float(self.report["score"])

    @property
    def feasible(self) -> bool:
        return bool(self.report["feasible"])

    @property
    def reason(self) -> str:
        """Why it is infeasible; empty if it is not."""
        return str(self.report["reason"])

    def describe(self) -> str:
        """One line of the numbers that decide."""
        told = (
            f"predicted speed-up {self.report['speedup_predicted']:.2f}, "
            f"acceptance {self.report['token_acceptance']:.3f}, "
            f"quality {self.report['quality']:.3f} ({self.report['quality_difference']:+.3f} against strict)"
        )
        return told if self.feasible else f"{told}; infeasible: {self.reason}"

    def record(self) -> dict[str, Any]:
        """Plain JSON values, read back by `Candidate.of`."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "changes": self.changes,
            "epoch": self.epoch,
            "report": self.report,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Candidate":
        return cls(**{**record, "folder": Path(record["folder"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found. `best` is None if no candidate is feasible; `closest` is the least infeasible one."""

    best: Candidate | None
    closest: Candidate | None
    candidates: tuple[Candidate, ...]

    def describe(self) -> str:
        if self.best is not None:
            return f"best is {self.best.name}, epoch {self.best.epoch}: {self.best.describe()}"
        if self.closest is None:
            return "no candidate at all"
        closest = self.closest
        return f"no feasible candidate; the closest is {closest.name}, epoch {closest.epoch}: {closest.describe()}"

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per candidate, best first; infeasible ones by distance after the feasible."""
        ranked = sorted(self.candidates, key=lambda candidate: candidate.score, reverse=True)
        return [{"candidate": c.name, "epoch": c.epoch, **c.changes, **c.report} for c in ranked]

    def table(self) -> Table:
        """`rows` for the screen."""
        names = list(dict.fromkeys(name for candidate in self.candidates for name in candidate.changes))
        table = Table(title="candidates on the validation prompts, best first")
        table.add_column("candidate")
        for name in ("epoch", *(SHORT.get(leaf, leaf) for leaf in (n.rpartition(".")[2] for n in names))):
            table.add_column(name, justify="right")
        for name in ("predicted speed-up", "acceptance", "quality", "against strict"):
            table.add_column(name, justify="right")
        table.add_column("verdict")
        for row in self.rows():
            changes = ("" if name not in row else f"{row[name]:.3g}" for name in names)
            table.add_row(
                row["candidate"],
                str(row["epoch"]),
                *changes,
                f"{row['speedup_predicted']:.2f}",
                f"{row['token_acceptance']:.3f}",
                f"{row['quality']:.3f}",
                f"{row['quality_difference']:+.3f}",
                "feasible" if row["feasible"] else "infeasible",
            )
        return table


def select(candidates: Sequence[Candidate]) -> Outcome:
    """The feasible candidate with the highest score; the earlier one of equals."""
    feasible = [candidate for candidate in candidates if candidate.feasible]
    infeasible = [candidate for candidate in candidates if not candidate.feasible]
    return Outcome(
        best=max(feasible, key=lambda candidate: candidate.score, default=None),
        closest=max(infeasible, key=lambda candidate: candidate.score, default=None),
        candidates=tuple(candidates),
    )
