"""What a search space is; the spaces themselves are the modules of `tune_spaces/`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.tune.search.sample import Domain

__all__ = ["Space"]

DRAFT_LENGTH = "decode.draft_length"


@dataclass(frozen=True, slots=True)
class Space:
    """`domains` by dotted names of settings, as `ray.tune.loguniform` and its kin make them; `first` is tried first."""

    domains: "dict[str, Domain]"
    first: dict[str, Any]

    def draft_lengths(self, fixed: int) -> list[int]:
        """All draft lengths that a trial may have, for the cost profile; `fixed` if the space leaves it alone."""
        domain = self.domains.get(DRAFT_LENGTH)
        if domain is None:
            return [fixed]
        categories = getattr(domain, "categories", None)
        if categories is not None:
            return sorted({fixed, *map(int, categories)})
        return sorted({fixed, *range(int(domain.lower), int(domain.upper))})  # type: ignore[attr-defined]

    def holds(self, point: dict[str, Any]) -> bool:
        """Whether `point` gives every dimension a value of its domain."""
        return point.keys() == self.domains.keys() and all(
            domain.is_valid(point[name]) for name, domain in self.domains.items()
        )
