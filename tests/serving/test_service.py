"""The service without HTTP: limits, seeds, turns, and rows that are freed whatever happens."""

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from diversed.decoding import Generation, Request
from diversed.errors import RequestError
from diversed.serving.protocol import ApiError, ChatRequest, CompletionRequest
from diversed.serving.service import CompletionService
from tests.serving.scripted import EOS, ScriptedEngine, scripted_service, wait_for

MODEL = "diversed-bytes-script"


def body(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": MODEL, "prompt": "p", **fields})


async def collect(service: CompletionService, request: Request) -> tuple[list[str], Generation]:
    texts = []
    async with aclosing(service.pieces(request)) as pieces:
        async for piece in pieces:
            texts.append(piece.text)
            if piece.generation is not None:
                return texts, piece.generation
    raise AssertionError("no generation")


def test_a_request_is_the_engines_with_the_served_defaults(service: CompletionService) -> None:
    assert service.completion(body(seed=5)) == Request((112,), 40, 5, temperature=0.5, top_k=7, top_p=0.9)
    asked = service.completion(body(seed=5, temperature=0, top_k=-1, top_p=1, max_tokens=3))
    assert asked == Request((112,), 3, 5, temperature=0, top_k=0, top_p=1)
    assert service.completion(body(prompt=[112], seed=5)) == service.completion(body(seed=5))


def test_a_conversation_is_one_prompt(service: CompletionService) -> None:
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}]
    chat = ChatRequest.model_validate({"model": MODEL, "messages": messages, "seed": 1, "max_completion_tokens": 2})
    request = service.chat(chat)
    assert bytes(request.prompt_ids).decode() == "<system>x<user>y"
    assert request.max_new_tokens == 2


def test_without_a_seed_requests_differ(service: CompletionService) -> None:
    seeds = {service.completion(body()).seed for _ in range(20)}
    assert len(seeds) == 20  # 63 bits: two equal ones have a probability below 1e-16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_context_bounds_prompt_and_completion(service: CompletionService) -> None:
    assert service.completion(body(prompt="x" * 60, max_tokens=4)).max_new_tokens == 4
    with pytest.raises(ApiError, match=r"60 tokens \+ max_tokens 5 = 65 exceed the context of 64") as caught:
        service.completion(body(prompt="x" * 60, max_tokens=5))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    # Without a limit of the caller's, the default gives way to the context.
    assert service.completion(body(prompt="x" * 60)).max_new_tokens == 4
    with pytest.raises(ApiError, match=r"64 tokens \+ max_tokens 1"):
        service.completion(body(prompt="x" * 64))


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(service: CompletionService, prompt: Any) -> None:
    with pytest.raises(ApiError, match="prompt: empty"):
        service.completion(body(prompt=prompt))


@pytest.mark.parametrize("token", [-1, 257])
def test_a_token_outside_the_vocabulary_is_refused(service: CompletionService, token: int) -> None:
    with pytest.raises(ApiError, match=f"token id {token} is outside the vocabulary of 257"):
        service.completion(body(prompt=[1, token]))


def test_an_unknown_model_is_a_404_that_names_the_known_one(service: CompletionService) -> None:
    with pytest.raises(ApiError, match=f"'gpt' is not served here; '{MODEL}' is") as caught:
        service.completion(body(model="gpt"))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_case_16_no_delta_shows_half_a_character(service: CompletionService, engine: ScriptedEngine) -> None:
    texts, generation = asyncio.run(collect(service, service.completion(body())))
    assert "".join(texts) == engine.text == service.pair.decode(generation.tokens)
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)
    assert generation.tokens[-1] == EOS
    assert len(texts) > 3


def test_requests_take_turns_in_order_of_arrival(service: CompletionService, engine: ScriptedEngine) -> None:
    async def several() -> None:
        requests = [service.completion(body(seed=seed)) for seed in range(6)]
        answers = await asyncio.gather(*(collect(service, request) for request in requests))
        assert [generation.request.seed for _, generation in answers] == list(range(6))

    asyncio.run(several())
    assert [request.seed for request in engine.requests] == list(range(6))
    assert engine.most_open == 1
    wait_for(lambda: engine.freed == 6)


def test_beyond_the_waiting_bound_a_request_is_refused_at_once() -> None:
    engine = ScriptedEngine()
    engine.gate = threading.Event()
    service = scripted_service(engine, max_waiting=2)

    async def crowd() -> None:
        tasks = [asyncio.create_task(collect(service, service.completion(body(seed=i)))) for i in range(3)]
        await asyncio.sleep(0)  # one decodes, two wait
        with pytest.raises(ApiError, match="2 requests wait already") as caught:
            await collect(service, service.completion(body(seed=3)))
        assert (caught.value.status, caught.value.kind) == (429, "rate_limit_error")
        assert engine.gate is not None
        engine.gate.set()
        assert len(await asyncio.gather(*tasks)) == 3
        await collect(service, service.completion(body(seed=4)))  # places are given back

    asyncio.run(crowd())


def test_a_cancelled_request_frees_its_row_before_the_next_begins() -> None:
    engine = ScriptedEngine()
    engine.gate = threading.Event()
    service = scripted_service(engine)

    async def leave() -> None:
        task = asyncio.create_task(collect(service, service.completion(body(seed=0))))
        assert await asyncio.to_thread(engine.round_started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.open == 1  # the round that was running cannot be cut short
        assert engine.gate is not None
        engine.gate.set()
        await collect(service, service.completion(body(seed=1)))

    asyncio.run(leave())
    assert engine.most_open == 1
    wait_for(lambda: engine.freed == 2)


def test_a_request_cancelled_while_it_waits_gives_its_place_back() -> None:
    engine = ScriptedEngine()
    engine.gate = threading.Event()
    service = scripted_service(engine, max_waiting=1)

    async def leave() -> None:
        first = asyncio.create_task(collect(service, service.completion(body(seed=0))))
        waiting = asyncio.create_task(collect(service, service.completion(body(seed=1))))
        assert await asyncio.to_thread(engine.round_started.wait, 20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        third = asyncio.create_task(collect(service, service.completion(body(seed=2))))
        await asyncio.sleep(0)
        assert engine.gate is not None
        engine.gate.set()
        await asyncio.gather(first, third)

    asyncio.run(leave())
    assert [request.seed for request in engine.requests] == [0, 2]


def test_a_stream_that_is_closed_early_stops_decoding(service: CompletionService, engine: ScriptedEngine) -> None:
    async def take_two() -> None:
        pieces = service.pieces(service.completion(body()))
        await anext(pieces)
        await anext(pieces)
        await pieces.aclose()
        await collect(service, service.completion(body(max_tokens=1)))

    asyncio.run(take_two())
    wait_for(lambda: engine.freed == 2)
    assert engine.most_open == 1


def test_after_an_error_the_next_request_is_served() -> None:
    engine = ScriptedEngine(fail_at=1)
    service = scripted_service(engine)

    async def fail_then_work() -> None:
        with pytest.raises(ValueError, match="secret"):
            await collect(service, service.completion(body()))
        engine.fail_at = None
        await collect(service, service.completion(body()))
        engine.refuse = True
        with pytest.raises(RequestError, match="refused by the engine"):
            await collect(service, service.completion(body()))

    asyncio.run(fail_then_work())
    wait_for(lambda: engine.open == 0)


def test_the_model_card_says_that_it_is_lossy(service: CompletionService) -> None:
    card = service.card.body()
    assert card["object"] == "model"
    assert card["max_model_len"] == 64
    assert card["diversed"]["lossy"] is True
    assert "not the target's own distribution" in card["diversed"]["notice"]
    assert card["diversed"]["draft_length"] == 4
    assert card["diversed"]["verifier_version"] == service.card.system_fingerprint == "diversed-bytes-script-v3"
