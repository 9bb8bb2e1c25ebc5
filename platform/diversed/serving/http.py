"""The endpoint's HTTP routes: an ordinary FastAPI app around a `CompletionService`, which any ASGI server can run."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from diversed.decoding import Request
from diversed.errors import InputError
from diversed.serving.protocol import (
    DONE,
    ApiError,
    ChatReply,
    ChatRequest,
    CompletionReply,
    CompletionRequest,
    GenerationRequest,
    Reply,
    error_body,
    event,
    validation_error,
)
from diversed.serving.service import CompletionService, Piece

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

INTERNAL = "the server failed on this request; its log has the reason"


def create_app(service: CompletionService) -> FastAPI:
    """The OpenAI-compatible app; every error it answers has the API's shape."""
    app = FastAPI(title="DIVERSED completions", summary=service.card.body()["diversed"]["notice"])

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.card.body()]}

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        service.check_model(model)
        return service.card.body()

    @app.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest) -> Response:
        return await _answer(service, service.completion(body), body, CompletionReply)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest) -> Response:
        return await _answer(service, service.chat(body), body, ChatReply)

    _shape_errors(app)
    return app


async def _answer(
    service: CompletionService, request: Request, body: GenerationRequest, shape: type[Reply]
) -> Response:
    reply = shape(service.card.id, service.card.system_fingerprint)
    draft_length = service.card.decode.draft_length
    prompt_tokens = len(request.prompt_ids)
    pieces = service.pieces(request)
    if body.stream:
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        # The first round is run before the head goes out, so that a request that cannot be served gets its status.
        first = await anext(pieces)
        events = _events(first, pieces, reply, prompt_tokens if include_usage else None, draft_length)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
    async with aclosing(pieces):
        texts = []
        async for piece in pieces:
            texts.append(piece.text)
            if piece.generation is not None:
                answer = reply.whole("".join(texts), piece.generation, prompt_tokens, draft_length)
                traced = {"trace": service.trace(piece.generation)} if body.trace else {}
                return JSONResponse(answer | traced)
    raise RuntimeError("the engine ended a request without its generation")


async def _events(
    first: Piece, rest: AsyncGenerator[Piece, None], reply: Reply, account_for: int | None, draft_length: int
) -> AsyncIterator[str]:
    """The stream's lines. `account_for`: prompt tokens, if a last chunk with usage was asked for."""
    async with aclosing(rest):
        for chunk in reply.opening():
            yield event(chunk)
        try:
            piece = first
            while piece.generation is None:
                if piece.text:
                    yield event(reply.delta(piece.text))
                piece = await anext(rest)
        except Exception:
            # The head is out: the client can only be told by an event, and must not take the text so far for all.
            logger.exception("a stream broke off")
            yield event(error_body(INTERNAL, "server_error", code="internal_error"))
            return
        if piece.text:
            yield event(reply.delta(piece.text))
        yield event(reply.closing(piece.generation))
        if account_for is not None:
            yield event(reply.account(piece.generation, account_for, draft_length))
        yield DONE


def _shape_errors(app: FastAPI) -> None:
    """Give FastAPI's, Starlette's and our own errors the API's body."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: HttpRequest, error: RequestValidationError) -> JSONResponse:
        refused = validation_error(error.errors())
        return JSONResponse(refused.body, refused.status)

    @app.exception_handler(InputError)
    async def refused(_: HttpRequest, error: InputError) -> JSONResponse:
        if isinstance(error, ApiError):
            headers = {"Retry-After": "1"} if error.status == 429 else None
            return JSONResponse(error.body, error.status, headers)
        return JSONResponse(error_body(str(error), "invalid_request_error"), 400)

    @app.exception_handler(HTTPException)
    async def no_route(request: HttpRequest, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return JSONResponse(error_body(message, "invalid_request_error"), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: HttpRequest, _error: Exception) -> JSONResponse:
        return JSONResponse(error_body(INTERNAL, "server_error", code="internal_error"), 500)
