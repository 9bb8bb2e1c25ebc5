"""The wire format: what is taken, what is refused and how, and the shape of every answer."""

import json
import math
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from diversed.decoding import Request
from diversed.serving.protocol import (
    ApiError,
    ChatReply,
    ChatRequest,
    CompletionReply,
    CompletionRequest,
    GenerationRequest,
    event,
    metrics,
    usage,
    validation_error,
)
from tests.serving.scripted import EOS, generation_of

REQUEST = Request((1, 2), 8, 0)


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "p", **fields})


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def refusal(body: type[GenerationRequest], fields: Any) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        body.model_validate(fields)
    return validation_error(caught.value.errors())


@pytest.mark.parametrize(
    "field",
    [
        {"n": 1},
        {"best_of": 1},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"logprobs": None},
        {"logprobs": False},
        {"logit_bias": {}},
        {"stop": None},
        {"stop": []},
        {"echo": False},
        {"suffix": ""},
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"repetition_penalty": 1.0},
        {"ignore_eos": False},
        {"stream": None},
        {"temperature": None},
    ],
)
def test_neutral_values_of_what_is_not_supported_are_taken(field: dict[str, Any]) -> None:
    completion(**field)


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"n": True},
        {"best_of": 3},
        {"logprobs": 0},
        {"logprobs": 5},
        {"echo": True},
        {"suffix": "end"},
        {"ignore_eos": True},
        {"min_tokens": 1},
    ],
)
def test_other_values_are_refused_by_name(field: dict[str, Any]) -> None:
    refused = refusal(CompletionRequest, {"model": "m", "prompt": "p", **field})
    (name,) = field
    assert (refused.status, refused.code, refused.param) == (400, "unsupported_parameter", name)
    assert str(refused).startswith(f"{name}: not supported")


@pytest.mark.parametrize(
    "field",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"modalities": ["text", "audio"]},
        {"store": True},
        {"reasoning_effort": "high"},
    ],
)
def test_chat_refuses_what_it_cannot_do(field: dict[str, Any]) -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **field}
    refused = refusal(ChatRequest, fields)
    assert (refused.code, refused.param) == ("unsupported_parameter", next(iter(field)))


def test_chat_takes_the_neutral_values() -> None:
    chat(
        tools=[], tool_choice="auto", parallel_tool_calls=True, response_format={"type": "text"}, logprobs=False,
        top_logprobs=0, modalities=["text"], store=False, n=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": "p"}, "missing_required_parameter", "model"),
        ({"model": "m"}, "missing_required_parameter", "prompt"),
        ({"model": "m", "prompt": "p", "max_token": 3}, "unknown_parameter", "max_token"),
        ({"model": 3, "prompt": "p"}, "invalid_value", "model"),
        ({"model": "m", "prompt": 3}, "invalid_value", "prompt"),
        ({"model": "m", "prompt": None}, "invalid_value", "prompt"),
        ({"model": "m", "prompt": [1, "a"]}, "invalid_value", "prompt"),
        ({"model": "m", "prompt": [True, False]}, "invalid_value", "prompt"),
        ({"model": "m", "prompt": ["a", "b"]}, "unsupported_parameter", "prompt"),
        ({"model": "m", "prompt": [[1], [2]]}, "unsupported_parameter", "prompt"),
        ({"model": "m", "prompt": "p", "stop": [1]}, "invalid_value", "stop"),
        ({"model": "m", "prompt": "p", "stop": ["a"] * 17}, "invalid_value", "stop"),
        ({"model": "m", "prompt": "p", "presence_penalty": 2.5}, "invalid_value", "presence_penalty"),
        ({"model": "m", "prompt": "p", "repetition_penalty": 0}, "invalid_value", "repetition_penalty"),
        ({"model": "m", "prompt": "p", "min_p": 1.5}, "invalid_value", "min_p"),
        ({"model": "m", "prompt": "p", "max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"model": "m", "prompt": "p", "max_tokens": "5"}, "invalid_value", "max_tokens"),
        ({"model": "m", "prompt": "p", "max_tokens": 5.5}, "invalid_value", "max_tokens"),
        ({"model": "m", "prompt": "p", "temperature": -0.1}, "invalid_value", "temperature"),
        ({"model": "m", "prompt": "p", "temperature": 2.5}, "invalid_value", "temperature"),
        ({"model": "m", "prompt": "p", "temperature": math.nan}, "invalid_value", "temperature"),
        ({"model": "m", "prompt": "p", "top_p": 0}, "invalid_value", "top_p"),
        ({"model": "m", "prompt": "p", "top_k": -2}, "invalid_value", "top_k"),
        ({"model": "m", "prompt": "p", "seed": 2**63}, "invalid_value", "seed"),
        ({"model": "m", "prompt": "p", "stream": "true"}, "invalid_value", "stream"),
        ({"model": "m", "prompt": "p", "stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        (
            {"model": "m", "prompt": "p", "stream": True, "stream_options": {"usage": True}},
            "unknown_parameter",
            "stream_options.usage",
        ),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, Any], code: str, param: str) -> None:
    refused = refusal(CompletionRequest, fields)
    assert (refused.code, refused.param) == (code, param)
    assert refused.body["error"] == {
        "message": str(refused), "type": "invalid_request_error", "param": param, "code": code,
    }  # fmt: skip
    assert "\n" not in str(refused)
    assert str(refused).startswith(param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "tool", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": 3}], "messages.1.content"),
    ],
)
def test_a_bad_message_is_named(messages: Any, param: str) -> None:
    assert refusal(ChatRequest, {"model": "m", "messages": messages}).param == param


@pytest.mark.parametrize("prompt", ["one", ["one"], [111, 110, 101], [[111, 110, 101]]])
def test_a_prompt_is_text_or_tokens_and_may_stand_in_a_list(prompt: Any) -> None:
    assert completion(prompt=prompt).prompt in ("one", [111, 110, 101])


def test_text_parts_are_joined_and_both_names_of_the_limit_hold() -> None:
    body = chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        max_completion_tokens=7,
    )
    assert body.messages[0].content == "ab"
    assert body.limit == 7
    assert chat(max_tokens=7, max_completion_tokens=7).limit == 7
    fields = {"model": "m", "messages": [{"role": "user", "content": ""}], "max_tokens": 7, "max_completion_tokens": 8}
    assert refusal(ChatRequest, fields).param == "max_tokens"


def test_answers_are_what_the_official_client_reads() -> None:
    generation = generation_of(REQUEST, [[1, 2, 3], [4, EOS]], [4, 4], "stop")
    text = CompletionReply("m", "v1")
    whole = Completion.model_validate(text.whole("abc", generation, 2, 4), strict=True)
    assert whole.choices[0].text == "abc"
    assert whole.choices[0].finish_reason == "stop"
    assert Completion.model_validate(text.closing(generation)).choices[0].text == ""
    # As the API does and unlike its own type, a chunk before the last has no finish_reason yet.
    assert text.delta("a")["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]

    talk = ChatReply("m", "v1")
    assert (
        ChatCompletion.model_validate(talk.whole("abc", generation, 2, 4), strict=True).choices[0].message.content
        == "abc"
    )
    parts = [*talk.opening(), talk.delta("a"), talk.closing(generation), talk.account(generation, 2, 4)]
    read = [ChatCompletionChunk.model_validate(part, strict=True) for part in parts]
    assert read[0].choices[0].delta.role == "assistant"
    assert read[2].choices[0].finish_reason == "stop"
    assert read[3].choices == []
    assert read[3].usage is not None
    assert read[3].usage.total_tokens == 7
    assert len({part["id"] for part in parts}) == 1


def test_usage_counts_the_end_token() -> None:
    generation = generation_of(REQUEST, [[1, 2, 3], [4, EOS]], [4, 4], "stop")
    assert usage(2, generation) == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}


def test_metrics_are_vllms_numbers() -> None:
    # Rounds: 4 drafted 2 accepted; 4 drafted 0 accepted; 2 drafted 2 accepted and a bonus; a last token without draft.
    generation = generation_of(REQUEST, [[1, 2, 3], [4], [5, 6, 7], [8]], [4, 4, 2, 0], "length")
    found = metrics(generation, 4)
    assert found["speculative_decoding"] == {
        "mean_acceptance_length": 1 + 4 / 3,
        "draft_acceptance_rate": 0.4,
        "acceptance_histogram": [1, 0, 2, 0, 0],
        "acceptance_histogram_by_draft_length": {"2": [0, 0, 1], "4": [1, 0, 1, 0, 0]},
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 10,
        "num_spec_tokens": 4,
        "per_step_accepted": [2, 0, 2],
        "per_step_drafted": [4, 4, 2],
    }
    assert found["verifier"] == {"mean_target_weight": 0.25}  # bonus tokens, of weight 1, are not judged
    json.dumps(found, allow_nan=False)


def test_metrics_of_a_request_that_drafted_nothing() -> None:
    found = metrics(generation_of(REQUEST, [[1]], [0], "length"), 4)
    assert found["speculative_decoding"]["num_spec_steps"] == 0
    assert found["speculative_decoding"]["mean_acceptance_length"] == 1.0
    assert found["speculative_decoding"]["draft_acceptance_rate"] == 0.0
    assert found["verifier"]["mean_target_weight"] is None


def test_an_event_is_one_line_whatever_the_text() -> None:
    line = event({"text": "a\nb\r\n\u2028é"})
    assert line.count("\n") == 2
    assert line.endswith("\n\n")
    assert json.loads(line.removeprefix("data: ")) == {"text": "a\nb\r\n\u2028é"}
