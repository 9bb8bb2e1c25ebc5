"""Verification rules: pure functions on tensors. No model, no cache, no I/O."""

from diversed.verification.laws import biased, draw, penalised, residual, sampling_law, total_variation
from diversed.verification.rules import Kind, Rule, Verdict, accept_probability, output_law, verify

__all__ = [
    "Kind",
    "Rule",
    "Verdict",
    "accept_probability",
    "biased",
    "draw",
    "output_law",
    "penalised",
    "residual",
    "sampling_law",
    "total_variation",
    "verify",
]
