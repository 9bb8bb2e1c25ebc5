"""The OpenAI-compatible wire format: what a request may say, and the exact shape of every answer. No HTTP, no engine.

A field that the API has and this endpoint does not is accepted at the values that change nothing (official clients and
evaluation tools send `n: 1`, `logprobs: false`, `presence_penalty: 0`) and refused at any other, by name.
"""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from diversed.decoding import Generation
from diversed.errors import RequestError

__all__ = [
    "DONE",
    "ApiError",
    "ChatReply",
    "ChatRequest",
    "CompletionReply",
    "CompletionRequest",
    "GenerationRequest",
    "Message",
    "Reply",
    "error_body",
    "event",
    "metrics",
    "usage",
    "validation_error",
]

JSON = dict[str, Any]
DONE = "data: [DONE]\n\n"


# -- errors ------------------------------------------------------------------------------------------------------------


class ApiError(RequestError):
    """A request that gets an error body for an answer; `status` is the HTTP status."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.kind = status, code, param, kind

    @property
    def body(self) -> JSON:
        return error_body(str(self), self.kind, self.param, self.code)


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> JSON:
    """`kind` is the API's `type`, e.g. `invalid_request_error` or `server_error`."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


CODES = {
    "extra_forbidden": "unknown_parameter",
    "json_invalid": "invalid_json",
    "missing": "missing_required_parameter",
    "unsupported_parameter": "unsupported_parameter",
}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The answer to a body that does not fit its model: names the first field that is wrong.

    Args:
        errors: Of pydantic or FastAPI; a location may begin with FastAPI's `body`.
    """
    first = errors[0]
    code, message, context = CODES.get(first["type"], "invalid_value"), str(first["msg"]), first.get("ctx") or {}
    if code == "invalid_json":
        return ApiError(f"the body is not JSON: {context.get('error', message)}", code=code)
    location = [str(part) for part in first["loc"]]
    param = context.get("param") or ".".join(location[1:] if location[:1] == ["body"] else location)
    if not param:
        return ApiError("the body is not a JSON object; send one, with Content-Type: application/json", code=code)
    message = {"missing": "required, but missing", "extra_forbidden": "no such parameter"}.get(first["type"], message)
    return ApiError(f"{param}: {message}", code=code, param=param)


# -- requests ----------------------------------------------------------------------------------------------------------


def _only(*neutral: Any) -> AfterValidator:
    """A field that must be absent, null or one of `neutral`."""

    def check(value: Any) -> Any:
        for allowed in (None, *neutral):
            if value == allowed and isinstance(value, bool) == isinstance(allowed, bool):
                return value
        shown = " or ".join(json.dumps(allowed) for allowed in neutral) or "null"
        raise PydanticCustomError(
            "unsupported_parameter", "not supported by this endpoint; leave it out or give {shown}", {"shown": shown}
        )

    return AfterValidator(check)


def _one_prompt(value: Any) -> str | list[int]:
    """A string, a list of token ids, or a list that holds exactly one of these."""
    if isinstance(value, list) and value and all(isinstance(part, str | list) for part in value):
        if len(value) > 1:
            raise PydanticCustomError(
                "unsupported_parameter", "{count} prompts in one request; send each by itself", {"count": len(value)}
            )
        value = value[0]
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(part) is int for part in value):
        return value
    raise PydanticCustomError("invalid_value", "give one prompt: a string or a list of token ids")


def _stop_texts(value: Any) -> list[str] | None:
    """At most 16 texts; a string is one of them, an empty one says nothing."""
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) > 16:
        raise PydanticCustomError("invalid_value", "give a string or a list of at most 16 strings")
    return [text for text in texts if text]


def _text_content(value: Any) -> str:
    """A message's text: a string, or the texts of its parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("invalid_value", "give a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise PydanticCustomError(
                "unsupported_parameter", 'only parts of the form {{"type": "text", "text": "..."}}'
            )
        texts.append(part["text"])
    return "".join(texts)


class _Body(BaseModel):
    # Strict: the JSON string "5" is not a number. (An integer for a float is fine.)
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StreamOptions(_Body):
    include_usage: bool = False
    include_obfuscation: bool | None = Field(None, description="accepted; chunks are never padded")


class GenerationRequest(_Body):
    """What both endpoints take."""

    model: str = Field(description="id of a served model, see /v1/models")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: the served configuration's")
    top_p: float | None = Field(None, gt=0, le=1, description="default: the served configuration's")
    top_k: int | None = Field(None, ge=-1, description="extension: keep the k likeliest tokens; 0 and -1 are off")
    max_tokens: int | None = Field(None, ge=1, description="exact bound on generated tokens; default: the task's")
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="the same request with the same seed gives the same tokens"
    )
    stream: bool | None = Field(None, description="server-sent events, one per decoding round, then [DONE]")
    stream_options: StreamOptions | None = None

    # Cannot change an answer: accepted and not used.
    user: str | None = None
    safety_identifier: str | None = None
    metadata: Any = None
    prompt_cache_key: Any = None
    service_tier: Any = None

    stop: Annotated[list[str] | None, PlainValidator(_stop_texts, json_schema_input_type=str | list[str] | None)] = (
        Field(None, description="the text ends before the first of these; default: the served configuration's")
    )
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="extension: of prompt and output; 1 is off")
    logit_bias: dict[str, float] | None = Field(None, description="by token id; -100 and below ban a token")
    min_p: float | None = Field(None, ge=0, le=1, description="extension: share of the likeliest token; 0 is off")

    trace: bool | None = Field(
        None, description="extension, without stream: the answer's `trace` is an HTML page of its tokens"
    )

    n: Annotated[Any, _only(1)] = None
    min_tokens: Annotated[Any, _only(0)] = None
    ignore_eos: Annotated[Any, _only(False)] = None
    stop_token_ids: Annotated[Any, _only([])] = None
    skip_special_tokens: Annotated[Any, _only(True)] = None
    use_beam_search: Annotated[Any, _only(False)] = None

    @property
    def limit(self) -> int | None:
        """The asked bound on generated tokens."""
        return self.max_tokens

    @model_validator(mode="after")
    def _traces_are_whole(self) -> "GenerationRequest":
        if self.trace and self.stream:
            raise PydanticCustomError("invalid_value", "only allowed without stream", {"param": "trace"})
        return self

    @model_validator(mode="after")
    def _usage_belongs_to_streams(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("invalid_value", "only allowed with stream = true", {"param": "stream_options"})
        return self


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[int],
        PlainValidator(_one_prompt, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]

    best_of: Annotated[Any, _only(1)] = None
    echo: Annotated[Any, _only(False)] = None
    logprobs: Annotated[Any, _only(False)] = None  # 0 asks for the drawn token's, so it is not neutral here
    suffix: Annotated[Any, _only("")] = None


class Message(_Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, PlainValidator(_text_content, json_schema_input_type=str | list[dict[str, str]])]
    name: str | None = None
    refusal: Annotated[Any, _only()] = None
    audio: Annotated[Any, _only()] = None
    tool_calls: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only()] = None


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="the newer name of max_tokens")

    logprobs: Annotated[Any, _only(False)] = None
    top_logprobs: Annotated[Any, _only(0)] = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, _only(True, False)] = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none", "auto")] = None
    response_format: Annotated[Any, _only({"type": "text"})] = None
    modalities: Annotated[Any, _only(["text"])] = None
    audio: Annotated[Any, _only()] = None
    prediction: Annotated[Any, _only()] = None
    reasoning_effort: Annotated[Any, _only("none")] = None
    verbosity: Annotated[Any, _only()] = None
    store: Annotated[Any, _only(False)] = None
    web_search_options: Annotated[Any, _only()] = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise PydanticCustomError(
                "invalid_value", "differs from max_completion_tokens; give one of the two", {"param": "max_tokens"}
            )
        return self


# -- answers -----------------------------------------------------------------------------------------------------------


class Reply(ABC):
    """One answer, whole or as the chunks of a stream; all carry the same id, time and model."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, system_fingerprint: str) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model, self.system_fingerprint = model, system_fingerprint

    def whole(self, text: str, generation: Generation, prompt_tokens: int, draft_length: int) -> JSON:
        """The body of an answer that is not streamed."""
        return {
            **self._head(self.whole_object),
            "choices": [self._choice(self._message(text), generation.finish_reason)],
            "usage": usage(prompt_tokens, generation),
            "metrics": metrics(generation, draft_length),
        }

    def opening(self) -> list[JSON]:
        """Chunks before the first text."""
        return []

    def delta(self, text: str) -> JSON:
        """A chunk with the next piece of text."""
        return self._chunk([self._choice(self._delta(text), None)])

    def closing(self, generation: Generation) -> JSON:
        """The chunk that says why the text ends."""
        return self._chunk([self._choice(self._nothing(), generation.finish_reason)])

    def account(self, generation: Generation, prompt_tokens: int, draft_length: int) -> JSON:
        """The last chunk, of `stream_options.include_usage`: no choice, but usage and metrics."""
        return {
            **self._chunk([]),
            "usage": usage(prompt_tokens, generation),
            "metrics": metrics(generation, draft_length),
        }

    def _head(self, name: str) -> JSON:
        return {
            "id": self.id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    def _chunk(self, choices: list[JSON]) -> JSON:
        return {**self._head(self.chunk_object), "choices": choices, "usage": None}

    def _choice(self, content: JSON, finish_reason: str | None) -> JSON:
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}

    @abstractmethod
    def _message(self, text: str) -> JSON:
        """Content of a whole answer's choice."""

    @abstractmethod
    def _delta(self, text: str) -> JSON:
        """Content of a chunk's choice."""

    @abstractmethod
    def _nothing(self) -> JSON:
        """Content of the closing chunk's choice."""


class CompletionReply(Reply):
    """Answer of /v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def _message(self, text: str) -> JSON:
        return {"text": text}

    def _delta(self, text: str) -> JSON:
        return {"text": text}

    def _nothing(self) -> JSON:
        return {"text": ""}


class ChatReply(Reply):
    """Answer of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[JSON]:
        return [self._chunk([self._choice({"delta": {"role": "assistant", "content": ""}}, None)])]

    def _message(self, text: str) -> JSON:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str) -> JSON:
        return {"delta": {"content": text}}

    def _nothing(self) -> JSON:
        return {"delta": {}}


def event(body: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


def usage(prompt_tokens: int, generation: Generation) -> JSON:
    """Tokens read and emitted; an emitted end-of-sequence token counts, though it has no text."""
    emitted = len(generation.tokens)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": emitted, "total_tokens": prompt_tokens + emitted}


def metrics(generation: Generation, draft_length: int) -> JSON:
    """How speculation went, under vLLM's names (its "detailed" level), so that aiperf, guidellm and dashboards read it.

    Steps are rounds that drafted something: a round for the last allowed token drafts nothing. Without any step
    the mean length is 1 and the rate 0. `verifier.mean_target_weight` is ours: mean w over tokens that were judged,
    null if none was.
    """
    steps = [
        (accepted, drafted)
        for accepted, drafted in zip(generation.accepted_R.tolist(), generation.drafted_R.tolist(), strict=True)
        if drafted > 0
    ]
    accepted, drafted = sum(a for a, _ in steps), sum(d for _, d in steps)
    counts = Counter(steps)
    by_length = {
        str(length): [counts[j, length] for j in range(length + 1)] for length in sorted({d for _, d in steps})
    }
    mask_T = generation.mask_T
    judged = int(mask_T.sum())
    return {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + accepted / len(steps) if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": [sum(a == j for a, _ in steps) for j in range(draft_length + 1)],
            "acceptance_histogram_by_draft_length": by_length,
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": draft_length,
            "per_step_accepted": [a for a, _ in steps],
            "per_step_drafted": [d for _, d in steps],
        },
        "verifier": {"mean_target_weight": float((generation.w_T * mask_T).sum() / judged) if judged else None},
    }
