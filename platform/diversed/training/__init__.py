"""Training of the verifier: rollouts by the engine, REINFORCE++ on records, checkpoints."""

from diversed.training.trainer import EngineFactory, Trainer, latest_checkpoint

__all__ = ["EngineFactory", "Trainer", "latest_checkpoint"]
