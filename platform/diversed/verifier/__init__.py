"""The learned ensemble head and its checkpoint folder."""

from diversed.verifier.checkpoint import DECISIVE, VerifierCard, import_two_row, load_verifier, save_verifier
from diversed.verifier.head import Head

__all__ = ["DECISIVE", "Head", "VerifierCard", "import_two_row", "load_verifier", "save_verifier"]
