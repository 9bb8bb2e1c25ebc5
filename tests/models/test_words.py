"""The draft's LM head over frequent words."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from diversed.decoding import Request, build_engine
from diversed.errors import ConfigError, DataError
from diversed.models import load_pair
from diversed.models.words import frequent_words
from diversed.settings import DecodeSettings, Method, PairSettings, load_settings
from diversed.verification import is_drafted


class Words:
    """A tokenizer whose ids are the numbers in a text."""

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


TOKENIZER: Any = Words()


def test_the_most_frequent_words_are_kept_and_some_always(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("5 5 5 7 7\n\n2 7 5 2\n1\n")
    assert frequent_words(path, TOKENIZER, 3, 10, (9,)).tolist() == [5, 7, 9]
    assert frequent_words(path, TOKENIZER, 5, 10, (9, 9, 12)).tolist() == [1, 2, 5, 7, 9]
    assert frequent_words(path, TOKENIZER, 7, 10, ()).tolist() == [0, 1, 2, 3, 4, 5, 7]  # then in order of ids


def test_all_texts_of_a_jsonl_file_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"a": "3 3", "b": "4", "n": 8}) + "\n" + json.dumps("4 4") + "\n")
    assert frequent_words(path, TOKENIZER, 1, 10, ()).tolist() == [4]
    path.write_text('"3"\n{broken\n')
    with pytest.raises(DataError, match="line 2: not JSON"):
        frequent_words(path, TOKENIZER, 1, 10, ())
    with pytest.raises(DataError, match=r"pair\.draft_word_counts = .*nothing\.txt: cannot be read"):
        frequent_words(tmp_path / "nothing.txt", TOKENIZER, 1, 10, ())


def test_words_need_a_file() -> None:
    with pytest.raises(ConfigError, match=r"pair\.draft_words needs a file to count words in"):
        load_settings(["--pair.draft-words", "20"])


def test_a_restricted_draft_proposes_its_words_alone_and_changes_no_greedy_token(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("Tom has 7 coins and buys 9 more.\n" * 3)
    prompt = "Tom has 7 coins and buys 9 more. How many coins?"
    full = load_pair(PairSettings(device="cpu"))
    small = load_pair(PairSettings(device="cpu", draft_words=20, draft_word_counts=str(path)))
    assert small.draft_words_K is not None
    assert len(small.draft_words_K) == 20
    assert set(small.eos_ids) <= set(small.draft_words_K.tolist())
    drafted: set[int] = set()
    outputs = []
    for pair in (full, small):
        for temperature in (0.0, 1.0):
            decode = DecodeSettings(method=Method.STRICT, temperature=temperature, batch_size=4)
            engine = build_engine(pair, decode)
            propose = engine.drafter.propose  # type: ignore[union-attr]

            def watched(block: Any, propose: Any = propose, restricted: bool = pair is small) -> Any:
                proposal = propose(block)
                drafted_BN = is_drafted(proposal.tokens_BN.shape[1], proposal.drafted_B)
                assert torch.allclose(proposal.q_BMV[:, :-1].sum(-1), drafted_BN.float())
                if restricted:
                    drafted.update(proposal.tokens_BN.flatten().tolist())
                return proposal

            engine.drafter.propose = watched  # type: ignore[union-attr]
            requests = [Request.of(pair.encode(prompt), 40, seed, decode) for seed in range(4)]
            outputs.append([generation.tokens for generation in engine.generate(requests)])
    assert drafted
    assert drafted <= set(small.draft_words_K.tolist())
    assert outputs[0] == outputs[2]  # greedy
    emitted = {token for tokens in outputs[3] for token in tokens}
    assert emitted - set(small.draft_words_K.tolist())  # the target is as free as before
    assert full.draft.get_output_embeddings().weight.shape[0] == full.draft.config.vocab_size  # the model is as it was


def test_a_verifier_reads_the_restricted_draft_too(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt"
    path.write_text("Tom has 7 coins")
    pair = load_pair(PairSettings(device="cpu", draft_words=20, draft_word_counts=str(path)))
    decode = DecodeSettings(method=Method.DIVERSED, batch_size=2)
    engine = build_engine(pair, decode, lambda features: torch.full(features.shape[:-1], 0.5), collect=True)
    (generation,) = engine.generate([Request.of(pair.encode("Tom has 7 coins"), 10, 0, decode)])
    assert generation.features_TD is not None
    assert generation.features_TD.shape == (len(generation.tokens), pair.draft_dim + pair.target_dim)
