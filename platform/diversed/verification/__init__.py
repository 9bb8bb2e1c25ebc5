"""Verification rules: pure functions on tensors. No model, no cache, no I/O."""

from diversed.verification.baselines import RULES, rule_of
from diversed.verification.laws import biased, draw, penalised, residual, sampling_law, total_variation
from diversed.verification.rules import (
    AUDIT,
    OVERSHOOT,
    Kind,
    Laws,
    Rule,
    Verdict,
    accept_probability,
    audit,
    emitted_law,
    is_drafted,
    verify,
)

__all__ = [
    "AUDIT",
    "OVERSHOOT",
    "RULES",
    "Kind",
    "Laws",
    "Rule",
    "Verdict",
    "accept_probability",
    "audit",
    "biased",
    "draw",
    "emitted_law",
    "is_drafted",
    "penalised",
    "residual",
    "rule_of",
    "sampling_law",
    "total_variation",
    "verify",
]
