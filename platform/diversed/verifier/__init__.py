"""The learned ensemble head and its checkpoint folder."""

from diversed.verifier.checkpoint import VerifierCard, import_two_row, load_verifier, save_verifier
from diversed.verifier.head import Head

__all__ = ["Head", "VerifierCard", "import_two_row", "load_verifier", "save_verifier"]
