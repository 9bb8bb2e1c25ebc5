"""Pairs of models that share one vocabulary, and their text."""

from diversed.models.layers import context_length
from diversed.models.pair import BUILT_IN, Pair, load_pair, set_threads
from diversed.models.text import Detokenizer, StopFinder
from diversed.models.views import compiled_forward, with_fewer_operations, with_own_head

__all__ = [
    "BUILT_IN",
    "Detokenizer",
    "Pair",
    "StopFinder",
    "compiled_forward",
    "context_length",
    "load_pair",
    "set_threads",
    "with_fewer_operations",
    "with_own_head",
]
