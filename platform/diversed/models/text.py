"""Ids back to text, at once or as they arrive."""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from diversed.errors import DiversedError

__all__ = ["Detokenizer", "StopFinder", "decode"]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    """Text of `ids` before the first of the `stop` texts; special tokens are skipped, spaces are left as they are."""
    text = str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))
    return text[: _first(text, stop)]


class Detokenizer:
    """Text as it grows, up to the first of the `stop` texts. All deltas together are exactly `decode` of all ids, and
    no delta shows a character of which some bytes are still to come, or what may be the beginning of a stop text.

    Held back until decided: trailing replacement characters (a cut character in a byte-level tokenizer), and a trailing
    run of byte tokens (`<0x0A>`: SentencePiece's fallback judges a run of them as a whole). The ids are decoded anew at
    each call, because what a decoder does with a token may depend on those before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self.text = ""  # given out so far

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` add and no later id can change."""
        self._ids.extend(ids)
        decided = len(self._ids)
        while decided and BYTE_TOKEN.fullmatch(self._token(self._ids[decided - 1])):
            decided -= 1
        text = decode(self._tokenizer, self._ids[:decided]).rstrip(REPLACEMENT)
        end = _first(text, self._stop)
        text = text[:end] if end < len(text) else text[: len(text) - _begun(text, self._stop)]
        return self._give(text) if text.startswith(self.text) else ""

    def finish(self) -> str:
        """The rest, when no more ids will come."""
        text = decode(self._tokenizer, self._ids, self._stop)
        if not text.startswith(self.text):
            raise DiversedError(f"the tokenizer rewrote text that was given out: {self.text[-40:]!r} in {text[-80:]!r}")
        return self._give(text)

    def _token(self, index: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(index))

    def _give(self, text: str) -> str:
        delta = text[len(self.text) :]
        self.text = text
        return delta


def _first(text: str, stop: Sequence[str]) -> int:
    """Where the first stop text begins; the text's length if it has none."""
    return min((at for at in (text.find(each) for each in stop) if at >= 0), default=len(text))


def _begun(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a stop text."""
    lengths = (n for each in stop for n in range(min(len(each) - 1, len(text)), 0, -1) if text.endswith(each[:n]))
    return max(lengths, default=0)


class StopFinder:
    """Where an output completes one of its stop texts.

    A character takes at most a few tokens, so the newest tokens decide: what is decoded does not grow with the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._window = 4 * max(len(text) for text in stop) + 8  # UTF-8 has at most 4 bytes, hence tokens, a character
        self._ids: list[int] = []
        self.found = False

    def push(self, ids: Sequence[int]) -> int | None:
        """How many of the new `ids` are needed to complete a stop text; None if all leave it incomplete."""
        for consumed, token in enumerate(ids, start=1):
            self._ids = [*self._ids[1 - self._window :], token]
            text = decode(self._tokenizer, self._ids)
            if any(stop in text for stop in self._stop):
                self.found = True
                return consumed
        return None
