"""MLflow: runs that are always closed, the model registry, and `trials.TrialCallback` for Tune (imports Ray)."""

from diversed.tracking.registry import ModelVersion, Registry, verifier_files
from diversed.tracking.runs import TrackedRun, Tracker

__all__ = ["ModelVersion", "Registry", "TrackedRun", "Tracker", "verifier_files"]
