"""Ray: being connected to it, what fits on it, and engines whose models run in actors."""

from diversed.cluster.actors import engine_for
from diversed.cluster.resources import Plan, at_once, engine_plan, evaluation_plan, require, search_plan, serve_plan
from diversed.cluster.session import Session, connect, free_port, nodes

__all__ = [
    "Plan",
    "Session",
    "at_once",
    "connect",
    "engine_for",
    "engine_plan",
    "evaluation_plan",
    "free_port",
    "nodes",
    "require",
    "search_plan",
    "serve_plan",
]
