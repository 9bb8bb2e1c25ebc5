"""The routes under a real HTTP server, asked by the official client and by hand. The engine is scripted."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import uvicorn

from diversed.serving.http import create_app
from diversed.serving.service import CompletionService
from tests.serving.scripted import ScriptedEngine, scripted_service, wait_for

MODEL = "diversed-bytes-script"


@pytest.fixture
def address(service: CompletionService) -> Iterator[tuple[str, int]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def any_client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(any_client: openai.OpenAI, address: tuple[str, int]) -> openai.OpenAI:
    return any_client.with_options(base_url=f"http://{address[0]}:{address[1]}/v1")


def send(
    address: tuple[str, int],
    method: str,
    path: str,
    content: bytes | None = None,
    content_type: str = "application/json",
) -> tuple[int, Any, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request(method, path, content, {"Content-Type": content_type})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, value, answer


def test_the_same_text_streamed_and_whole(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    whole = client.completions.create(model=MODEL, prompt="p", seed=1)
    chunks = list(client.completions.create(model=MODEL, prompt="p", seed=1, stream=True))
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks) == engine.text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert whole.choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert whole.system_fingerprint == "diversed-bytes-script-v3"
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_same_chat_streamed_and_whole(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, seed=1)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=messages, seed=1, stream=True, stream_options={"include_usage": True}
        )
    )
    *rest, account = chunks
    assert whole.choices[0].message.content == "".join(c.choices[0].delta.content or "" for c in rest) == engine.text
    assert rest[0].choices[0].delta.role == "assistant"
    assert account.choices == []
    assert account.usage == whole.usage
    assert account.model_extra is not None
    assert whole.model_extra is not None
    assert account.model_extra["metrics"] == whole.model_extra["metrics"]


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 40])
def test_case_14_usage_is_exact(client: openai.OpenAI, engine: ScriptedEngine, limit: int) -> None:
    answer = client.completions.create(model=MODEL, prompt="four", max_tokens=limit)
    emitted = min(limit, len(engine.text.encode()) + 1)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        4,
        emitted,
        4 + emitted,
    )


def test_case_15_an_end_at_the_last_allowed_token_is_a_stop(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    length = len(engine.text.encode()) + 1
    reasons = [
        client.completions.create(model=MODEL, prompt="p", max_tokens=limit).choices[0].finish_reason
        for limit in (length - 1, length, length + 1)
    ]
    assert reasons == ["length", "stop", "stop"]


def test_case_16_a_cut_character_is_the_end_of_the_text(client: openai.OpenAI) -> None:
    # "hé": the limit falls between the two bytes of é. What is left of it is given once, in both forms alike.
    whole = client.completions.create(model=MODEL, prompt="p", max_tokens=2).choices[0].text
    chunks = client.completions.create(model=MODEL, prompt="p", max_tokens=2, stream=True)
    assert whole == "".join(chunk.choices[0].text for chunk in chunks) == "h\N{REPLACEMENT CHARACTER}"


def test_models(client: openai.OpenAI) -> None:
    (listed,) = client.models.list().data
    assert listed.id == MODEL
    assert client.models.retrieve(MODEL) == listed
    assert listed.model_extra is not None
    assert listed.model_extra["diversed"]["lossy"] is True
    with pytest.raises(openai.NotFoundError, match="'org/other' is not served here"):
        client.models.retrieve("org/other")


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="p")
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    messages: Any = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=messages, stream=True)


def test_bad_requests_are_shaped(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="p", max_tokens=-1)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="n: not supported") as caught:
        client.completions.create(model=MODEL, prompt="p", n=2, stream=True)
    assert caught.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError, match="logit_bias: 'x' is no token") as caught:
        client.completions.create(model=MODEL, prompt="p", logit_bias={"x": 1})
    assert caught.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError, match="exceed the context of 64"):
        client.completions.create(model=MODEL, prompt="x" * 80)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{", "invalid_json"),
        (b"", "missing_required_parameter"),
        (b"[1]", "invalid_value"),
        (b'"text"', "invalid_value"),
        (b"null", "invalid_value"),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b'{"model": "m", "prompt": "p", "temperature": NaN}', "invalid_value"),
    ],
)
def test_malformed_bodies_are_400_in_the_apis_shape(address: tuple[str, int], content: bytes, code: str | None) -> None:
    status, value, _ = send(address, "POST", "/v1/completions", content)
    assert status == 400
    error = value["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert code is None or error["code"] == code
    assert "Traceback" not in error["message"]


def test_a_body_that_is_not_called_json_says_how_to_call_it(address: tuple[str, int]) -> None:
    content = json.dumps({"model": MODEL, "prompt": "p"}).encode()
    status, value, _ = send(address, "POST", "/v1/completions", content, "application/x-www-form-urlencoded")
    assert status == 400
    assert "Content-Type: application/json" in value["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405)],
)
def test_routes_that_do_not_exist_are_shaped(address: tuple[str, int], method: str, path: str, status: int) -> None:
    found, value, _ = send(address, method, path)
    assert found == status
    assert value["error"]["message"].startswith(f"{method} {path}: ")


def test_health(address: tuple[str, int]) -> None:
    assert send(address, "GET", "/health")[:2] == (200, {"status": "ok"})


def test_a_failure_is_a_500_without_its_insides(address: tuple[str, int], engine: ScriptedEngine) -> None:
    engine.fail_at = 0
    content = json.dumps({"model": MODEL, "prompt": "p"}).encode()
    streamed = json.dumps({"model": MODEL, "prompt": "p", "stream": True}).encode()
    for body in (content, streamed):  # nothing was sent yet: the stream's first round failed too
        status, value, _ = send(address, "POST", "/v1/completions", body)
        assert status == 500
        assert value["error"]["type"] == "server_error"
        assert "secret" not in json.dumps(value)
    engine.fail_at = None
    assert send(address, "POST", "/v1/completions", content)[0] == 200


def test_a_stream_that_breaks_off_says_so(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.fail_at = 2
    texts: list[str] = []
    stream = client.completions.create(model=MODEL, prompt="p", stream=True)
    with pytest.raises(openai.APIError, match="the server failed"):
        texts.extend(chunk.choices[0].text for chunk in stream)
    assert "".join(texts) == "héllo"
    wait_for(lambda: engine.open == 0)


def test_the_engines_refusal_is_a_400(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.refuse = True
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="refused by the engine"):
            client.completions.create(model=MODEL, prompt="p", stream=stream)


def test_a_client_that_leaves_stops_its_generation(address: tuple[str, int], engine: ScriptedEngine) -> None:
    engine.text = "x" * 39
    content = json.dumps({"model": MODEL, "prompt": "p", "stream": True}).encode()
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data: ")
    engine.gate = threading.Event()  # later rounds wait until the client is gone
    engine.round_started.clear()
    answer.close()
    connection.close()
    engine.gate.set()
    wait_for(lambda: engine.freed == 1)
    assert send(address, "POST", "/v1/completions", content.replace(b"true", b"false"))[0] == 200
    assert engine.most_open == 1


def test_too_many_waiting_is_a_429_with_a_time() -> None:
    engine = ScriptedEngine()
    engine.gate = threading.Event()
    app = create_app(scripted_service(engine, max_waiting=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        address = listener.getsockname()
        content = json.dumps({"model": MODEL, "prompt": "p"}).encode()
        answers: list[int] = []
        refused: list[http.client.HTTPResponse] = []

        def ask() -> None:
            status, _, answer = send(address, "POST", "/v1/completions", content)
            answers.append(status)
            if status == 429:
                refused.append(answer)
                assert engine.gate is not None
                engine.gate.set()

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
        server.should_exit = True
        thread.join(20)
    assert sorted(answers) == [200, 200, 429]
    assert refused[0].headers["Retry-After"] == "1"
