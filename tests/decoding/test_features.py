"""What a request may ask for beside temperature, and what happens when something goes wrong inside the loop."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from diversed.decoding import Engine, PromptLookup, Request, build_engine
from diversed.errors import ConfigError, RequestError
from diversed.models import StopFinder
from diversed.settings import DecodeSettings, DrafterKind, Method

Generate = Callable[..., Any]
GREEDY = {"temperature": 0.0}


class LetterTokenizer:
    """Token i is the i-th letter; the vocabulary of the tiny pair."""

    def decode(self, ids: Any, **_: object) -> str:
        return "".join(chr(ord("a") + token) for token in ids)


def engine_of(pair: Any, method: str = "strict", **decode: Any) -> Engine:
    weigh = (lambda f: torch.sigmoid(f.sum(-1))) if method == "diversed" else None
    return build_engine(pair, DecodeSettings(method=Method(method), **decode), weigh)


def tokens(generations: Any) -> list[list[int]]:
    return [generation.tokens for generation in generations]


# -- laws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 8])
def test_case_07_penalties_count_the_drafted_tokens_too(
    tiny_pair: Any, prompts: Any, generate: Generate, batch: int
) -> None:
    """Planted fault: the penalty's history ends before the block, so its later positions use a stale one."""
    for penalty in ({"repetition_penalty": 1.3}, {"presence_penalty": 0.7, "frequency_penalty": 0.4}):
        autoregressive = generate(tiny_pair(), prompts, "autoregressive", 0.0, batch, **penalty)
        strict = generate(tiny_pair(), prompts, "strict", 0.0, batch, **penalty)
        assert tokens(strict) == tokens(autoregressive)
        assert tokens(strict) != tokens(generate(tiny_pair(), prompts, "strict", 0.0, batch))
        assert sum(generation.accepted for generation in strict) > 0


def test_repetition_penalty_is_that_of_transformers(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    model, processors = tiny_pair().target, LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])
    for prompt, generation in zip(
        prompts, generate(tiny_pair(), prompts, "strict", 0.0, repetition_penalty=1.3), strict=True
    ):
        ids = torch.tensor([prompt])
        for _ in generation.tokens:
            ids = torch.cat([ids, processors(ids, model(ids).logits[:, -1]).argmax(-1, keepdim=True)], 1)
        assert generation.tokens == ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("method", ["autoregressive", "strict", "static", "draft-only"])
def test_case_04_a_banned_token_is_neither_drafted_nor_emitted(tiny_pair: Any, prompts: Any, method: str) -> None:
    """Planted fault: processors are applied to the target's logits only, so the draft proposes what is banned."""
    engine = engine_of(tiny_pair(), method, batch_size=8)
    free = [Request(tuple(prompt), 24, seed) for seed, prompt in enumerate(prompts)]
    common = max(range(16), key=lambda token: sum(g.tokens.count(token) for g in engine.generate(free)))
    drafted: list[int] = []
    if engine.drafter is not None:
        propose = engine.drafter.propose

        def watched(block: Any) -> Any:
            proposal = propose(block)
            drafted.extend(proposal.tokens_BN.flatten().tolist())
            return proposal

        engine.drafter.propose = watched  # type: ignore[method-assign]
    banned = [Request(tuple(p), 24, s, logit_bias=((common, float("-inf")),)) for s, p in enumerate(prompts)]
    for generation in engine.generate(banned):
        assert common not in generation.tokens
    assert common not in drafted
    assert bool(drafted) == (method != "autoregressive")


def test_a_large_bias_forces_a_token(tiny_pair: Any) -> None:
    for generation in engine_of(tiny_pair()).generate([Request((3, 4), 12, 0, logit_bias=((7, 200.0),))]):
        assert generation.tokens == [7] * 12


def test_min_p_one_is_greedy_up_to_ties(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    assert tokens(generate(tiny_pair(), prompts, "strict", 1.0, min_p=1.0)) == tokens(
        generate(tiny_pair(), prompts, "autoregressive", 0.0)
    )


def test_rows_with_and_without_options_do_not_meet(tiny_pair: Any, prompts: Any) -> None:
    """Each row of a mixed batch has the tokens that it has alone."""
    options: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.4},
        {"logit_bias": ((3, 2.0), (5, -4.0))},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"min_p": 0.2, "temperature": 0.7},
        {"top_k": 3, "presence_penalty": 1.0},
        {"top_p": 0.6},
        {"temperature": 0.0},
    ]
    requests = [Request(tuple(p), 20, s, **o) for s, (p, o) in enumerate(zip(prompts, options, strict=True))]
    engine = engine_of(tiny_pair(), "static", batch_size=8)
    assert tokens(engine.generate(requests)) == [engine.generate([request])[0].tokens for request in requests]


def test_case_08_the_ways_to_say_greedy_agree(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    """Planted fault: temperature 0 divides by zero. T = 0, T = 1e-6 and top-k 1 take the target's argmax."""
    greedy = tokens(generate(tiny_pair(), prompts, "strict", 0.0))
    assert tokens(generate(tiny_pair(), prompts, "strict", 1e-6)) == greedy
    assert tokens(generate(tiny_pair(), prompts, "strict", 1.0, top_k=1)) == greedy
    for generation in generate(tiny_pair(), prompts, "strict", 1e-6):
        assert bool(torch.isfinite(generation.p_T).all())
    # Greedy rows beside others, which bring a division for all.
    requests = [Request(tuple(p), 24, s, temperature=0.7 * (s % 2)) for s, p in enumerate(prompts)]
    for row, generation in enumerate(engine_of(tiny_pair(), batch_size=8).generate(requests)):
        assert bool(torch.isfinite(generation.p_T).all())
        assert row % 2 or generation.tokens == greedy[row]


@pytest.mark.parametrize("method", ["autoregressive", "strict", "static", "diversed"])
def test_case_20_log_probabilities_are_those_of_a_teacher_forced_pass(
    tiny_pair: Any, prompts: Any, generate: Generate, method: str
) -> None:
    """Planted fault: an accepted token's log-probability is that of its acceptance, 0.0. `target_logprobs_T` is log p,
    `verification_logprobs_T` log v."""
    pair = tiny_pair()
    head = (lambda f: torch.sigmoid(f.sum(-1))) if method == "diversed" else None
    for prompt, generation in zip(prompts, generate(pair, prompts, method, 0.8, head=head, weight=0.3), strict=True):
        ids = torch.tensor([prompt + generation.tokens])
        index = torch.tensor(generation.tokens)[:, None]
        p, q = (
            (model(ids).logits[0, len(prompt) - 1 : -1] / 0.8).softmax(-1).gather(1, index)[:, 0]
            for model in (pair.target, pair.draft)
        )
        torch.testing.assert_close(generation.target_logprobs_T, p.log(), atol=1e-4, rtol=1e-4)
        v = generation.w_T * p + (1 - generation.w_T) * q
        torch.testing.assert_close(generation.verification_logprobs_T, v.log(), atol=1e-4, rtol=1e-4)
        assert bool((generation.target_logprobs_T < 0).all())


def test_samples_differ_in_their_noise_alone(tiny_pair: Any) -> None:
    request = Request((3, 4, 5), 20, 17)
    samples = request.samples(4)
    assert samples[0] == request
    assert len({sample.seed for sample in samples}) == 4
    answers = tokens(engine_of(tiny_pair()).generate(samples))
    assert len({tuple(answer) for answer in answers}) == 4
    assert request.samples(2) == samples[:2]


# -- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["autoregressive", "strict", "diversed"])
@pytest.mark.parametrize("batch", [1, 8])
def test_case_13_stop_texts_end_the_output_within_and_across_blocks(
    tiny_pair: Any, prompts: Any, method: str, batch: int
) -> None:
    """Planted fault: stop texts are looked for in each block by itself. Every text of two tokens is one in turn."""
    pair = tiny_pair()
    pair.tokenizer = LetterTokenizer()
    engine = engine_of(pair, method, batch_size=batch, draft_length=3)
    requests = [Request(tuple(prompt), 14, seed) for seed, prompt in enumerate(prompts)]
    for row, free in enumerate(engine.generate(requests)):
        text = pair.tokenizer.decode(free.tokens)
        for at in range(0, 12, 2 if batch == 8 else 1):
            stop = text[at : at + 2]
            end = text.index(stop) + 2
            stopping = [
                Request(r.prompt_ids, 14, r.seed, stop=("zz", stop) if i == row else ()) for i, r in enumerate(requests)
            ]
            stopped = engine.generate(stopping if batch == 8 else stopping[row : row + 1])[row if batch == 8 else 0]
            assert stopped.tokens == free.tokens[:end]
            assert stopped.finish_reason == "stop"
            assert len(stopped.kind_T) == end


def test_a_stop_text_needs_a_tokenizer_and_some_text(tiny_pair: Any) -> None:
    with pytest.raises(RequestError, match="stop: this pair has no tokenizer"):
        engine_of(tiny_pair()).generate([Request((3,), 4, 0, stop=("a",))])
    with pytest.raises(RequestError, match="stop: an empty text"):
        engine_of(tiny_pair()).generate([Request((3,), 4, 0, stop=("",))])


def test_the_finder_looks_at_the_newest_tokens_only() -> None:
    finder = StopFinder(LetterTokenizer(), ("yz",))  # type: ignore[arg-type]
    assert finder.push(list(range(10)) * 20) is None
    assert finder.push([24]) is None
    assert finder.push([25, 3]) == 1
    assert finder.found


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"logit_bias": ((16, 1.0),)}, "logit_bias: token 16 is not in the vocabulary of 16"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias: nan for token 1"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias: inf for token 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: give a number above 0"),
    ],
)
def test_unusable_fields_are_refused_by_name(tiny_pair: Any, field: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine_of(tiny_pair()).generate([Request((3,), 4, 0, **field)])


# -- prompt lookup --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 8])
def test_prompt_lookup_changes_no_token_of_a_greedy_output(
    tiny_pair: Any, prompts: Any, generate: Generate, batch: int
) -> None:
    looked_up = generate(tiny_pair(), prompts, "strict", 0.0, batch, drafter=DrafterKind.PROMPT_LOOKUP, new=60)
    assert tokens(looked_up) == tokens(generate(tiny_pair(), prompts, "autoregressive", 0.0, batch, new=60))
    assert sum(generation.accepted for generation in looked_up) > 0
    assert sum(generation.rounds for generation in looked_up) < 60 * len(prompts)


def test_prompt_lookup_proposes_what_followed_the_longest_match() -> None:
    from diversed.decoding import DraftInput, Sampling

    lookup = PromptLookup(16, (9,), ngram=2)
    lookup.reserve(3, 20)
    texts = [[1, 2, 3, 4, 2, 5, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8], [3, 9, 4, 3]]
    width = max(map(len, texts))
    padded = torch.tensor([text + [0] * (width - len(text)) for text in texts]).numpy()
    counts = torch.tensor([len(text) for text in texts]).numpy()
    block = DraftInput(padded, counts, counts * 0, counts * 0 + 4, torch.zeros(3, 4), Sampling())
    proposal = lookup.propose(block)
    assert proposal.tokens_BN[0].tolist() == [3, 4, 2, 5]  # after "1 2", though "2" was last followed by 5
    assert proposal.drafted_B.tolist() == [4, 0, 1]  # no match; an EOS ends what is drafted
    assert proposal.tokens_BN[2, 0] == 9
    assert proposal.q_BMV.sum(-1).tolist() == [[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert torch.equal(proposal.q_BMV[0, :4].argmax(-1), proposal.tokens_BN[0])
    assert proposal.q_BMV[2, 0].argmax() == 9


def test_prompt_lookup_has_nothing_for_a_verifier(tiny_pair: Any) -> None:
    with pytest.raises(ConfigError, match=r"decode\.drafter = 'prompt-lookup': has no hidden states"):
        engine_of(tiny_pair(), "diversed", drafter=DrafterKind.PROMPT_LOOKUP)


# -- contexts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["strict", "static"])
def test_case_11_a_text_that_outgrows_the_draft_goes_on_without_it(
    tiny_pair: Any, generate: Generate, caplog: pytest.LogCaptureFixture, method: str, batch: int
) -> None:
    """Planted fault: drafting past the draft's context, or refusing the request. Its context is 12 here."""
    pair = tiny_pair()
    pair.draft_context = 12
    prompts = [[3, 4, 5, 6], [7] * 30, [5, 3] * 5]
    expected = generate(pair, prompts, "autoregressive", 0.0, batch, new=24)
    caplog.clear()
    limited = generate(pair, prompts, method, 0.0, batch, new=24, weight=1.0)
    assert tokens(limited) == tokens(expected)
    assert [generation.drafted > 0 for generation in limited] == [True, False, True]
    assert [record.message for record in caplog.records] == [
        "a text is longer than the draft's context of 12 tokens: it goes on without drafts"
    ]


def test_case_11_blocks_end_with_the_context(tiny_pair: Any, generate: Generate) -> None:
    """Planted fault: N drafted tokens run past the last position (prompt = context - 3, N = 5)."""
    prompt = [(3 + i) % 16 for i in range(253)]
    for method in ("autoregressive", "strict", "draft-only"):
        (generation,) = generate(tiny_pair(), [prompt], method, new=3)
        assert len(generation.tokens) == 3
    with pytest.raises(RequestError, match="253 tokens \\+ max_new_tokens 4 = 257 exceed"):
        generate(tiny_pair(), [prompt], "strict", new=4)


@pytest.mark.parametrize("pieces", [1, 7, 50])
def test_prompts_read_in_pieces_give_the_same_tokens(
    tiny_pair: Any, prompts: Any, generate: Generate, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Long prompts join while others run; `pieces` tokens of all joining rows in a forward."""
    long = [*prompts, [(5 * i) % 16 for i in range(90)], [(3 * i) % 16 for i in range(120)]]
    expected = tokens(generate(tiny_pair(), long, "static", batch=3))
    monkeypatch.setattr("diversed.decoding.engine.PREFILL_TOKENS", pieces)
    assert tokens(generate(tiny_pair(), long, "static", batch=3)) == expected


# -- trouble ------------------------------------------------------------------------------------------------------


def test_case_19_nothing_of_a_request_reaches_the_next(tiny_pair: Any, prompts: Any) -> None:
    """Planted fault: drafting state survives its request. Two identical calls have identical blocks."""
    engine = engine_of(tiny_pair(), "static", batch_size=3)
    requests = [Request(tuple(prompt), 30, seed) for seed, prompt in enumerate(prompts)]
    first, second = engine.generate(requests), engine.generate(requests)
    for one, other in zip(first, second, strict=True):
        assert one.tokens == other.tokens
        assert one.drafted_R.tolist() == other.drafted_R.tolist()
        assert one.accepted_R.tolist() == other.accepted_R.tolist()


def test_an_exception_inside_a_model_leaves_the_engine_usable(tiny_pair: Any, prompts: Any) -> None:
    engine = engine_of(tiny_pair(), "strict", batch_size=4)
    requests = [Request(tuple(prompt), 20, seed) for seed, prompt in enumerate(prompts)]
    expected = tokens(engine.generate(requests))
    slots = engine.target.slots  # type: ignore[attr-defined]
    forward, calls = slots.forward, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("inside the model")
        return forward(*args, **kwargs)

    slots.forward = failing
    with pytest.raises(ValueError, match="inside the model"):
        engine.generate(requests)
    assert not engine.busy
    assert tokens(engine.generate(requests)) == expected


def test_a_cancelled_request_frees_its_row_at_once(tiny_pair: Any, prompts: Any) -> None:
    engine = engine_of(tiny_pair(), "strict", batch_size=3)
    requests = [Request(tuple(prompt), 40, seed) for seed, prompt in enumerate(prompts[:5])]
    expected = tokens(engine.generate(requests))
    tickets = [engine.submit(request) for request in requests]
    engine.step()
    running = len(engine.tokens_of(tickets[3]))
    engine.cancel(tickets[1])  # a row
    engine.cancel(tickets[4])  # waits
    assert engine.tokens_of(tickets[1]) == []
    assert running == 0  # three rows, so the fourth request waited
    engine.step()
    assert len(engine.tokens_of(tickets[3])) > 0
    answers: dict[int, Any] = {}
    while engine.busy:
        answers |= dict(engine.step())
    assert sorted(answers) == [tickets[0], tickets[2], tickets[3]]
    assert [answers[tickets[i]].tokens for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
    engine.cancel(tickets[0])  # has ended: no error


def test_cancelled_while_its_prompt_is_read(tiny_pair: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diversed.decoding.engine.PREFILL_TOKENS", 2)
    engine = engine_of(tiny_pair(), "strict", batch_size=3)
    requests = [Request(tuple(prompt), 10, seed) for seed, prompt in enumerate(prompts[:3])]
    expected = tokens(engine.generate(requests))
    tickets = [engine.submit(request) for request in requests]
    engine.step()
    engine.cancel(tickets[0])
    answers: dict[int, Any] = {}
    while engine.busy:
        answers |= dict(engine.step())
    assert {ticket: answer.tokens for ticket, answer in answers.items()} == dict(
        zip(tickets[1:], expected[1:], strict=True)
    )


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("where", ["reserve", "prefill", "round"])
def test_out_of_memory_for_one_request_fails_that_request_alone(
    tiny_pair: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch, where: str, batch: int
) -> None:
    """The sixth request's prompt is long; whatever holds more than 100 positions of a prompt runs out of memory."""
    engine = engine_of(tiny_pair(), "strict", batch_size=batch)
    small = [Request(tuple(prompt), 20, seed) for seed, prompt in enumerate(prompts)]
    expected = tokens(engine.generate(small))
    slots = engine.target.slots  # type: ignore[attr-defined]
    reserve, forward = slots.cache.reserve, slots.forward

    def reserving(rows: int, capacity: int) -> None:
        if capacity > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        reserve(rows, capacity)

    def running(rows: Any, tokens_BN: Any, starts_B: Any, *args: Any, **kwargs: Any) -> Any:
        if int(starts_B.max()) + tokens_BN.shape[1] > 100:
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")
        return forward(rows, tokens_BN, starts_B, *args, **kwargs)

    if where == "reserve":
        slots.cache.reserve = reserving
    else:
        slots.forward = running
    if where == "prefill":
        monkeypatch.setattr("diversed.decoding.engine.PREFILL_TOKENS", 16)
    big = Request((3, 4) * 60, 20, 5)
    requests = [*small[:5], big, *small[5:]]
    tickets = [engine.submit(request) for request in requests]
    answers: dict[int, Any] = {}
    while engine.busy:
        answers |= dict(engine.step())
    assert isinstance(answers[tickets[5]], RequestError)
    assert "out of memory" in str(answers[tickets[5]])
    others = [answers[ticket].tokens for ticket in [*tickets[:5], *tickets[6:]]]
    assert others == expected
    with pytest.raises(RequestError, match="out of memory"):
        engine.generate(requests)
    assert not engine.busy


def test_what_fits_one_by_one_is_decoded_one_by_one(tiny_pair: Any, prompts: Any) -> None:
    """Memory for two rows: the others are put back, and have the tokens they have elsewhere."""
    engine = engine_of(tiny_pair(), "static", batch_size=8)
    requests = [Request(tuple(prompt), 20, seed) for seed, prompt in enumerate(prompts)]
    expected = tokens(engine.generate(requests))
    slots = engine.target.slots  # type: ignore[attr-defined]
    forward, most = slots.forward, []

    def running(rows: Any, tokens_BN: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tokens_BN) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        most.append(len(tokens_BN))
        return forward(rows, tokens_BN, *args, **kwargs)

    slots.forward = running
    assert tokens(engine.generate(requests)) == expected
    assert max(most) == 2


# -- compiled -----------------------------------------------------------------------------------------------------

COMPILED = """
import json, torch
import numpy as np
from conftest import PROMPT_LENGTHS, CONTEXT, VOCAB, tiny_llama
from types import SimpleNamespace
from diversed.decoding import Request, build_engine
from diversed.decoding.cache import SlotModel
from diversed.settings import DecodeSettings, Method

torch.set_num_threads(1)
target, draft = tiny_llama(0, 2), tiny_llama(1, 1)
generator = torch.Generator().manual_seed(0)
prompts = [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
answers = {}
for compiled in (False, True):
    pair = SimpleNamespace(
        target=target, draft=draft, vocab_size=VOCAB, eos_ids=(), context=CONTEXT, draft_context=CONTEXT,
        tokenizer=None, draft_words_K=None, compiled=compiled,
    )
    for batch in (1, 3):
        decode = DecodeSettings(method=Method.DIVERSED, temperature=0.0, batch_size=batch)
        engine = build_engine(pair, decode, lambda features: torch.sigmoid(features.sum(-1)))
        requests = [Request.of(prompt, 24, seed, decode) for seed, prompt in enumerate(prompts)]
        generations = engine.generate(requests)
        answers.setdefault(compiled, []).append([g.tokens for g in generations])
        w = torch.cat([g.w_T for g in generations])
        answers.setdefault("w", []).append(w)
assert answers[False] == answers[True]
for plain, compiled in zip(answers["w"][:2], answers["w"][2:]):
    torch.testing.assert_close(plain, compiled, atol=1e-4, rtol=1e-3)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])

# Two models of one shape: each has graphs of its own.
ids, logits = torch.tensor([[3, 7, 4, 2, 5, 6]]), {}
with torch.inference_mode():
    for compiled in (False, True):
        slots = [SlotModel(tiny_llama(seed, 1), VOCAB, compiled=compiled) for seed in (0, 1)]
        for each in slots:
            each.cache.reserve(1, 64)
            each.forward(slice(0, 1), ids, np.array([0]))
        logits[compiled] = [each.forward(slice(0, 1), ids[:, :3], np.array([6]))[0].clone() for each in slots * 2]
torch.testing.assert_close(logits[False], logits[True], atol=1e-4, rtol=1e-3)
"""


@pytest.mark.slow
def test_compiled_models_give_the_same_tokens() -> None:
    """Greedy, mixed lengths, two batch sizes, hidden states. In a process of its own: where a test listens to all
    loggers, the compiler traces itself."""
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here.parents[1] / 'platform'}:{here}"}
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert 0 < int(ran.stdout) <= 16  # compiled at all, and not anew for each length
