"""A draft's LM head over its most frequent words: on a small draft the head dominates the cost of a token.

The tokens left out get q = 0, so every rule stays exact; they are still emitted, as replacements and bonus tokens.

Shapes: K kept words.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from diversed.errors import DataError

__all__ = ["frequent_words"]

BATCH = 256  # texts tokenized at once


def frequent_words(
    path: Path, tokenizer: PreTrainedTokenizerBase, size: int, vocab_size: int, always: Sequence[int]
) -> Tensor:
    """Ids, ascending, of `always` and the most frequent tokens of a text file or of all texts in a JSON-lines file, [K]
    with K = `size`. Equally frequent ones are taken in the order of their ids.

    DataError if the file cannot be read.
    """
    counts: Counter[int] = Counter()
    texts = list(_texts(path))
    for start in range(0, len(texts), BATCH):
        for ids in tokenizer(texts[start : start + BATCH], add_special_tokens=False)["input_ids"]:
            counts.update(ids)
    kept = [token for token in dict.fromkeys(always) if token < vocab_size]
    others = sorted(set(range(vocab_size)) - set(kept), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted([*kept, *others[: max(size - len(kept), 0)]]))


def _texts(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"pair.draft_word_counts = {path}: cannot be read ({error}); give a text or .jsonl file"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            yield line
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number}: not JSON; give one JSON object per line") from error
        values = record.values() if isinstance(record, dict) else [record]
        yield from (value for value in values if isinstance(value, str))
