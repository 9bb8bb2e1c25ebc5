"""Verification rules: pure functions on tensors. No model, no cache, no I/O."""

from diversed.verification.laws import draw, residual, sampling_law, total_variation
from diversed.verification.rules import Kind, Rule, Verdict, accept_probability, output_law, verify

__all__ = [
    "Kind",
    "Rule",
    "Verdict",
    "accept_probability",
    "draw",
    "output_law",
    "residual",
    "sampling_law",
    "total_variation",
    "verify",
]
