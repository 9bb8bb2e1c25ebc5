"""From a validated request to text: the framework-free core of the endpoint.

Decoding blocks, so it runs in a thread of its own, one request at a time; the others wait for their turn in order of
arrival. `CompletionService.pieces` is the seam: whoever batches across requests replaces what stands behind it.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from diversed.decoding import Generation, Request
from diversed.evaluation.trace import trace_of
from diversed.evaluation.viewer import trace_page
from diversed.models import Detokenizer, Pair
from diversed.serving.protocol import ApiError, ChatRequest, CompletionRequest, GenerationRequest
from diversed.settings import DecodeSettings

__all__ = ["CompletionService", "ModelCard", "Piece", "StreamingEngine"]

logger = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)
BANNED = -100.0  # the API's smallest bias: "effectively bans the token"

LOSSY = (
    "Lossy by design: the output follows a learned blend of the target's and the draft's law, "
    "not the target's own distribution."
)


class StreamingEngine(Protocol):
    """What the service needs of `diversed.decoding.Engine`."""

    def stream(self, request: Request) -> Iterator[tuple[list[int], Generation | None]]:
        """New tokens of each round; the last item carries the whole Generation. Closing the iterator frees the row."""

    def close(self) -> None:
        """Free what the models hold."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served, as /v1/models says it."""

    id: str
    version: str  # the verifier's: names the registered version or the folder's content
    task: str
    target: str
    draft: str
    decode: DecodeSettings
    context: int  # positions, prompt and completion together
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def system_fingerprint(self) -> str:
        return self.version

    def body(self) -> dict[str, Any]:
        """An OpenAI `model` object with `max_model_len` as vLLM has it, and what else a user of this one must know."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "diversed",
            "max_model_len": self.context,
            "diversed": {
                "lossy": True,
                "notice": LOSSY,
                "verifier_version": self.version,
                "task": self.task,
                "target": self.target,
                "draft": self.draft,
                **self.decode.model_dump(
                    mode="json", include={"method", "draft_length", "temperature", "top_k", "top_p"}
                ),
                "cap": str(self.decode.cap),  # "inf" is off; JSON has no infinity
            },
        }


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a round added; the last piece of a request carries its Generation."""

    text: str
    generation: Generation | None = None


class CompletionService:
    """Checks requests against the served model and decodes them, one at a time."""

    def __init__(
        self,
        pair: Pair,
        engine: StreamingEngine,
        card: ModelCard,
        max_new_tokens: int,
        max_waiting: int,
    ) -> None:
        """`max_new_tokens` is for requests that give none; while `max_waiting` wait, new ones are refused."""
        self.pair, self.card = pair, card
        self._engine = engine
        self._default_limit, self._max_waiting = max_new_tokens, max_waiting
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decode")

    def check_model(self, name: str) -> None:
        """ApiError 404 unless `name` is served."""
        if name != self.card.id:
            raise ApiError(f"model {name!r} is not served here; {self.card.id!r} is", 404, "model_not_found", "model")

    def completion(self, body: CompletionRequest) -> Request:
        """The engine's request for a text or token prompt; ApiError if it cannot be served."""
        self.check_model(body.model)
        if isinstance(body.prompt, str):
            return self._request(body, self.pair.encode(body.prompt), "prompt")
        outside = [token for token in body.prompt if not 0 <= token < self.pair.vocab_size]
        if outside:
            raise ApiError(
                f"prompt: token id {outside[0]} is outside the vocabulary of {self.pair.vocab_size}",
                code="invalid_value",
                param="prompt",
            )
        return self._request(body, body.prompt, "prompt")

    def chat(self, body: ChatRequest) -> Request:
        """The engine's request for a conversation; ApiError or RequestError if it cannot be served."""
        self.check_model(body.model)
        messages = [
            # `developer` is the API's newer name of `system`, which chat templates know.
            {"role": "system" if message.role == "developer" else message.role, "content": message.content}
            for message in body.messages
        ]
        return self._request(body, self.pair.encode_chat(messages), "messages")

    def _request(self, body: GenerationRequest, prompt_ids: list[int], param: str) -> Request:
        if not prompt_ids:
            raise ApiError(f"{param}: empty; give at least one token", code="invalid_value", param=param)
        room = self.pair.context - len(prompt_ids)
        limit = body.limit if body.limit is not None else min(self._default_limit, max(room, 1))
        if limit > room:
            raise ApiError(
                f"{param}: {len(prompt_ids)} tokens + max_tokens {limit} = {len(prompt_ids) + limit} exceed the "
                f"context of {self.pair.context}; shorten the prompt or lower max_tokens",
                code="context_length_exceeded",
                param=param,
            )
        decode = self.card.decode
        return Request(
            prompt_ids=tuple(prompt_ids),
            max_new_tokens=limit,
            # 63 bits: every seed that is drawn here can also be asked for.
            seed=body.seed if body.seed is not None else secrets.randbits(63),
            temperature=_given(body.temperature, decode.temperature),
            top_k=max(_given(body.top_k, decode.top_k), 0),
            top_p=_given(body.top_p, decode.top_p),
            min_p=_given(body.min_p, decode.min_p),
            repetition_penalty=_given(body.repetition_penalty, decode.repetition_penalty),
            presence_penalty=_given(body.presence_penalty, decode.presence_penalty),
            frequency_penalty=_given(body.frequency_penalty, decode.frequency_penalty),
            logit_bias=self._biases(body),
            stop=tuple(decode.stop if body.stop is None else body.stop),
            audited=bool(body.trace),
        )

    def _biases(self, body: GenerationRequest) -> tuple[tuple[int, float], ...]:
        biases = []
        for name, bias in (body.logit_bias or {}).items():
            if not name.isdecimal() or int(name) >= self.pair.vocab_size:
                raise ApiError(
                    f"logit_bias: {name!r} is no token; give ids below {self.pair.vocab_size}",
                    code="invalid_value",
                    param="logit_bias",
                )
            biases.append((int(name), -math.inf if bias <= BANNED else min(bias, -BANNED)))
        return tuple(biases)

    def trace(self, generation: Generation) -> str:
        """A page of an audited answer, token by token."""
        request, decode = generation.request, self.card.decode
        prompt = self.pair.decode(request.prompt_ids)
        facts = {"model": self.card.id, "verifier": self.card.version, "seed": str(request.seed)}
        return trace_page([trace_of(self.pair, generation, decode, prompt, facts)])

    async def pieces(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Decode `request`, a piece per round. Closing or cancelling this ends it at the next round and frees the row.

        ApiError 429 at the first step if too many requests wait already.
        """
        if self._waiting >= self._max_waiting:
            raise ApiError(
                f"{self._waiting} requests wait already; try again later", 429, "overloaded", kind="rate_limit_error"
            )
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        loop = asyncio.get_running_loop()
        rounds = self._engine.stream(request)
        try:
            detokenizer = Detokenizer(self.pair.tokenizer, request.stop)
            while (step := await loop.run_in_executor(self._thread, next, rounds, None)) is not None:
                tokens, generation = step
                text = detokenizer.push(tokens)
                if generation is not None:
                    text += detokenizer.finish()
                yield Piece(text, generation)
        finally:
            # Not awaited, as a cancelled task may not await: the one thread closes the rounds after the step it may be
            # in, and before the first step of the request whose turn is next.
            self._thread.submit(_close, rounds).add_done_callback(_report)
            self._turn.release()

    def close(self) -> None:
        """End the thread and free the models; for a service that is being taken down."""
        self._thread.shutdown(wait=True, cancel_futures=False)
        self._engine.close()


def _given(value: Number | None, default: Number) -> Number:
    return default if value is None else value


def _close(rounds: Iterator[object]) -> None:
    close = getattr(rounds, "close", None)  # a generator's; other iterators hold nothing
    if close is not None:
        close()


def _report(closed: "Future[None]") -> None:
    error = closed.exception()
    if error is not None:
        logger.error("freeing a row failed", exc_info=error)
