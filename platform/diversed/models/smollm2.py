"""SmolLM2-135M-Instruct from the package index."""

from pathlib import Path

__all__ = ["folders"]


def folders(cache_dir: Path, draft_layers: int) -> tuple[Path, Path]:
    """Where the converted target and the draft of `draft_layers` layers are kept, whether or not they are there."""
    root = cache_dir.expanduser() / "smollm2"
    return root / "target", root / f"draft-{draft_layers}"
