"""Streaming detokenisation: exact, and never a broken character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from diversed.errors import DiversedError
from diversed.models import Detokenizer
from diversed.models.text import decode

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def stream(tokenizer, ids, cuts):
    """Deltas of `ids` given in blocks that end at `cuts`."""
    detokenizer = Detokenizer(tokenizer)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    deltas = [detokenizer.push(ids[start:end]) for start, end in pairwise(edges)]
    deltas.append(detokenizer.finish())
    assert detokenizer.text == "".join(deltas)
    return deltas


@pytest.fixture(scope="session")
def sentencepiece_like():
    """Words and letters with a marked space, and single bytes for everything else, as in Llama 2."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        SPACE,
        *"abc",
        f"{SPACE}a",
        f"{SPACE}ab",
    ]
    tokenizer = Tokenizer(BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


CUTS = st.lists(st.integers(0, 200), max_size=12)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=30), cuts=CUTS)
def test_case_16_no_broken_character_in_any_delta(tokenizer, text, cuts):
    """Case 16: a multi-byte character cut at a block boundary waits for its other bytes."""
    ids = tokenizer(text)["input_ids"]
    one_by_one, in_blocks = stream(tokenizer, ids, range(len(ids))), stream(tokenizer, ids, cuts)
    assert not any("\ufffd" in delta for delta in one_by_one + in_blocks)
    assert "".join(one_by_one) == "".join(in_blocks) == decode(tokenizer, ids) == text


@given(ids=st.lists(st.integers(0, 258), max_size=40), cuts=CUTS)
def test_deltas_add_up_for_any_ids(tokenizer, ids, cuts):
    """Also where a model emits bytes that are no characters at all."""
    assert "".join(stream(tokenizer, ids, cuts)) == decode(tokenizer, ids)


@given(ids=st.lists(st.sampled_from([*range(3, 20), *range(0xC0, 0xD0), *range(250, 265)]), max_size=30), cuts=CUTS)
def test_deltas_add_up_with_byte_fallback(sentencepiece_like, ids, cuts):
    """A run of byte tokens is one decision: a later byte can undo an earlier one."""
    assert "".join(stream(sentencepiece_like, ids, cuts)) == decode(sentencepiece_like, ids)


def test_a_cut_emoji_waits_and_a_plain_word_does_not(tokenizer):
    word, emoji = tokenizer("hello")["input_ids"], tokenizer("🤖")["input_ids"]
    assert len(emoji) == 3  # its four bytes
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(word) == "hello"
    assert [detokenizer.push([part]) for part in emoji] == ["", "", "🤖"]
    assert detokenizer.finish() == ""


def test_what_stays_broken_comes_at_the_end(tokenizer):
    """Generation ended inside a character: the rest is what `decode` makes of it."""
    ids = tokenizer("a🤖")["input_ids"][:-1]
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) == "a"
    assert detokenizer.finish() == decode(tokenizer, ids)[1:] == "\ufffd"


def test_special_tokens_are_not_text(tokenizer):
    ids = [*tokenizer("one")["input_ids"], tokenizer.eos_token_id]
    assert "".join(stream(tokenizer, ids, [1, 2])) == decode(tokenizer, ids) == "one"


def test_a_tokenizer_that_rewrites_the_past_is_reported():
    """No silent difference between the streamed and the whole text."""
    tokenizer = Tokenizer(BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "X")])
    detokenizer = Detokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert detokenizer.push([0]) == "a"
    assert detokenizer.push([1]) == ""
    with pytest.raises(DiversedError, match="rewrote text"):
        detokenizer.finish()
