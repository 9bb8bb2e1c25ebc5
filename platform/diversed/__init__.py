"""DIVERSED: relaxed speculative decoding with a learned verifier, trained, searched and served on Ray.

Lossy by design: the output follows a blend of the target's and the draft's law, not the target's own.
Import from the subpackages; this module stays empty of imports, so that `--help` and the engine start quickly.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
