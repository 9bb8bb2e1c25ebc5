"""Ids back to text, at once or as they arrive."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from diversed.errors import DiversedError

__all__ = ["Detokenizer", "decode"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of `ids`; special tokens are skipped, spaces are left as they are."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class Detokenizer:
    """Text as it grows. All deltas together are exactly `decode` of all ids, and no delta shows a character of which
    some bytes are still to come.

    Held back until decided: trailing replacement characters (a cut character in a byte-level tokenizer), and a trailing
    run of byte tokens (`<0x0A>`: SentencePiece's fallback judges a run of them as a whole). The ids are decoded anew at
    each call, because what a decoder does with a token may depend on those before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self.text = ""  # given out so far

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` add and no later id can change."""
        self._ids.extend(ids)
        decided = len(self._ids)
        while decided and BYTE_TOKEN.fullmatch(self._token(self._ids[decided - 1])):
            decided -= 1
        text = decode(self._tokenizer, self._ids[:decided]).rstrip(REPLACEMENT)
        return self._give(text) if text.startswith(self.text) else ""

    def finish(self) -> str:
        """The rest, when no more ids will come."""
        text = decode(self._tokenizer, self._ids)
        if not text.startswith(self.text):
            raise DiversedError(f"the tokenizer rewrote text that was given out: {self.text[-40:]!r} in {text[-80:]!r}")
        return self._give(text)

    def _token(self, index: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(index))

    def _give(self, text: str) -> str:
        delta = text[len(self.text) :]
        self.text = text
        return delta
