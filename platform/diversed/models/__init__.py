"""Pairs of models that share one vocabulary, and their text."""

from diversed.models.pair import BUILT_IN, Pair, load_pair, set_threads
from diversed.models.text import Detokenizer

__all__ = ["BUILT_IN", "Detokenizer", "Pair", "load_pair", "set_threads"]
