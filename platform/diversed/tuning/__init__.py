"""The objective, the search over it, and promotion. Import its modules."""

__all__: list[str] = []
