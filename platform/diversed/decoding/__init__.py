"""The speculative engine: slot cache, roles, loop, cost model. Knows no Ray."""

from diversed.decoding.costs import Costs, predicted_speedup, profile_costs
from diversed.decoding.engine import Engine, build_engine, rule_and_weigh
from diversed.decoding.records import Generation, Request
from diversed.decoding.roles import (
    Drafter,
    DraftInput,
    LocalDrafter,
    LocalTarget,
    PromptLookup,
    Proposal,
    Sampling,
    Target,
    VerifyInput,
    Weigh,
)

__all__ = [
    "Costs",
    "DraftInput",
    "Drafter",
    "Engine",
    "Generation",
    "LocalDrafter",
    "LocalTarget",
    "PromptLookup",
    "Proposal",
    "Request",
    "Sampling",
    "Target",
    "VerifyInput",
    "Weigh",
    "build_engine",
    "predicted_speedup",
    "profile_costs",
    "rule_and_weigh",
]
