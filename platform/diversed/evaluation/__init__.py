"""Methods compared on common prompts: metrics, intervals, quality gate, speed, report. Import its modules."""

__all__: list[str] = []
