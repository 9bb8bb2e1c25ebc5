"""The endpoint as users meet it: Ray Serve, the embedded pair, a registered champion, the official client."""

import http.client
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import openai
import pytest
import torch
import yaml

from diversed.artifacts import write_run_record
from diversed.decoding import Engine, Generation, Request, build_engine
from diversed.errors import CheckpointError, ClusterError, ConfigError, TrackingError
from diversed.models import Pair, load_pair
from diversed.settings import Settings, named_settings
from diversed.tasks import Split, get_task
from diversed.verifier import Head, VerifierCard, load_verifier, save_verifier

if TYPE_CHECKING:
    from jobs.deploy import Deployed

# Ray Serve and MLflow use what pydantic, starlette and others have deprecated.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(420)]

MODEL = "diversed-arithmetic-arithmetic"
DRAFT_LENGTH = 4  # the winner's; neither the default nor the preset's


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """What the user of the endpoint has: no decode setting of the winner's."""
    output = tmp_path_factory.mktemp("serving")
    return named_settings({"output": str(output), "serve.port": 0, "serve.app_name": "tested", "seed": 3})


@pytest.fixture(scope="module")
def pair(settings: Settings) -> Pair:
    return load_pair(settings.pair)


@pytest.fixture(scope="module")
def verifier(settings: Settings, pair: Pair) -> Path:
    """A winner's folder. Its head is not trained, but weighs features: w varies from token to token."""
    torch.manual_seed(0)
    head = Head(pair.draft_dim, pair.target_dim, 0.3)
    with torch.no_grad():
        head.weight_D.normal_(std=0.02)
    won = settings.updated({"decode.draft_length": DRAFT_LENGTH, "decode.cap": 8.0})
    folder = settings.output / "winner"
    save_verifier(folder, head, VerifierCard.of(won, pair))
    write_run_record(folder, won)
    return folder


@pytest.fixture(scope="module")
def deployed(settings: Settings, verifier: Path, ray_session: None) -> "Iterator[Deployed]":
    from ray import serve

    from diversed.tracking import Tracker
    from jobs.deploy import deploy_champion

    tracker = Tracker(settings)
    with tracker.run("made for the test") as run:
        version = tracker.registry.register(settings.registered_model, verifier, run.id)
    tracker.registry.set_alias(settings.registered_model, "champion", version)
    yield deploy_champion(settings)
    serve.shutdown()


@pytest.fixture(scope="module")
def client(deployed: "Deployed") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=deployed.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@dataclass(frozen=True)
class Offline:
    """The engine in this process, batched, under the winner's configuration."""

    engine: Engine
    pair: Pair
    settings: Settings

    def __call__(self, prompts: list[str], seed: int, limit: int = 60) -> list[Generation]:
        decode = self.settings.updated({"decode.draft_length": DRAFT_LENGTH, "decode.cap": 8.0}).decode
        requests = [Request.of(self.pair.encode(prompt), limit, seed + i, decode) for i, prompt in enumerate(prompts)]
        return self.engine.generate(requests)


@pytest.fixture(scope="module")
def offline(settings: Settings, pair: Pair, verifier: Path) -> Offline:
    head, _ = load_verifier(verifier, pair)
    decode = settings.updated({"decode.draft_length": DRAFT_LENGTH, "decode.cap": 8.0, "decode.batch_size": 8}).decode
    return Offline(build_engine(pair, decode, head), pair, settings)


@pytest.fixture(scope="module")
def prompts(settings: Settings) -> list[str]:
    examples = get_task("arithmetic").examples(settings.task, Split.TEST, settings.seed)
    return [example.prompt for example in examples[:20]]


def speculation(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.model_extra["metrics"]["speculative_decoding"]
    return found


def test_the_job_says_what_is_served_and_how_it_answers(deployed: "Deployed", prompts: list[str]) -> None:
    assert deployed.version == f"{MODEL}-v1"
    assert deployed.prompt == prompts[0]
    told = deployed.describe()
    assert deployed.url in told
    assert "lossy by design" in told
    assert repr(deployed.reply) in told


def test_case_24_the_endpoint_replays_the_offline_engine(
    client: openai.OpenAI, offline: Offline, pair: Pair, prompts: list[str]
) -> None:
    generations = offline(prompts, seed=100)
    for i, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        answer = client.completions.create(model=MODEL, prompt=prompt, seed=100 + i, max_tokens=60)
        # The embedded tokenizer's encode(decode(ids)) is ids: equal texts are equal tokens.
        assert pair.encode(answer.choices[0].text) == [t for t in generation.tokens if t not in pair.eos_ids]
        assert answer.choices[0].finish_reason == generation.finish_reason
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(generation.request.prompt_ids)
        assert answer.usage.completion_tokens == len(generation.tokens)
        found = speculation(answer)
        drafting = generation.drafted_R > 0
        assert found["per_step_accepted"] == generation.accepted_R[drafting].tolist()
        assert found["per_step_drafted"] == generation.drafted_R[drafting].tolist()
        assert found["num_spec_tokens"] == DRAFT_LENGTH
        mean = float((generation.w_T * generation.mask_T).sum() / generation.mask_T.sum())
        assert answer.model_extra is not None
        assert math.isclose(answer.model_extra["metrics"]["verifier"]["mean_target_weight"], mean, rel_tol=1e-4)
    means = {round(float(generation.w_T.min()), 3) for generation in generations}
    assert len(means) > 1  # w is of the features, not a constant


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_streamed_and_whole_are_one_text(client: openai.OpenAI, prompts: list[str], temperature: float) -> None:
    for seed, prompt in enumerate(prompts[:4]):
        arguments: Any = {"model": MODEL, "prompt": prompt, "seed": seed, "temperature": temperature}
        whole = client.completions.create(**arguments)
        chunks = list(client.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
        *rest, account = chunks
        assert "".join(chunk.choices[0].text for chunk in rest) == whole.choices[0].text
        assert len(rest) > 2
        assert rest[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert account.usage == whole.usage
        assert speculation(account) == speculation(whole)


def test_chat_streamed_and_whole_are_one_text(client: openai.OpenAI, prompts: list[str]) -> None:
    arguments: Any = {"model": MODEL, "messages": [{"role": "user", "content": prompts[0]}], "seed": 9}
    whole = client.chat.completions.create(**arguments)
    chunks = client.chat.completions.create(**arguments, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    # The embedded tokenizer has no chat template: a lone message is the prompt itself.
    assert text == client.completions.create(model=MODEL, prompt=prompts[0], seed=9).choices[0].text


def test_case_17_a_seed_fixes_the_tokens_whatever_else_is_asked(client: openai.OpenAI, prompts: list[str]) -> None:
    def ask(seed: int) -> str:
        return client.completions.create(model=MODEL, prompt=prompts[1], seed=seed).choices[0].text

    alone = ask(5)
    together: dict[int, str] = {}
    threads = [threading.Thread(target=lambda s=seed: together.update({s: ask(s)})) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(together) == set(range(8))
    assert together[5] == alone
    assert len(set(together.values())) > 1


def test_without_a_seed_answers_differ(client: openai.OpenAI, prompts: list[str]) -> None:
    # The head lets the varied phrasing of the draft through: ten texts are equal with a probability below 1e-6.
    texts = {client.completions.create(model=MODEL, prompt=prompts[0]).choices[0].text for _ in range(10)}
    assert len(texts) > 1


@pytest.mark.parametrize("limit", [1, 2, DRAFT_LENGTH, DRAFT_LENGTH + 1, DRAFT_LENGTH + 2])
def test_case_14_usage_is_exact(client: openai.OpenAI, pair: Pair, prompts: list[str], limit: int) -> None:
    answer = client.completions.create(model=MODEL, prompt=prompts[0], max_tokens=limit, seed=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == limit == len(pair.encode(answer.choices[0].text))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + limit
    assert answer.choices[0].finish_reason == "length"
    assert (speculation(answer)["num_spec_steps"] == 0) == (limit == 1)


def test_case_12_15_an_emitted_eos_ends_the_text(
    client: openai.OpenAI, offline: Offline, pair: Pair, prompts: list[str]
) -> None:
    # Where a request ends by itself, its length as the limit must still be a stop, and nothing may follow.
    (generation,) = offline(prompts[:1], seed=0, limit=128)
    length = len(generation.tokens)
    assert generation.finish_reason == "stop"
    answers = [
        client.completions.create(model=MODEL, prompt=prompts[0], seed=0, max_tokens=limit)
        for limit in (length - 1, length, length + 1)
    ]
    assert [answer.choices[0].finish_reason for answer in answers] == ["length", "stop", "stop"]
    assert all(a.choices[0].text == pair.decode(generation.tokens) for a in answers)
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [length - 1, length, length]


def test_a_trace_is_a_page_of_the_same_answer(client: openai.OpenAI, prompts: list[str]) -> None:
    arguments: Any = {"model": MODEL, "prompt": prompts[0], "seed": 4}
    plain = client.completions.create(**arguments)
    traced = client.completions.create(**arguments, extra_body={"trace": True})
    assert traced.choices[0].text == plain.choices[0].text
    assert traced.model_extra is not None
    page = traced.model_extra["trace"]
    assert page.startswith("<!DOCTYPE html>")
    assert "diversed, N = " in page
    assert plain.model_extra is not None
    assert "trace" not in plain.model_extra
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompts[0]}], seed=4, extra_body={"trace": True}
    )
    assert chat.model_extra is not None
    assert "<section " in chat.model_extra["trace"]
    with pytest.raises(openai.BadRequestError, match="trace: only allowed without stream"):
        client.completions.create(**arguments, stream=True, extra_body={"trace": True})


def test_errors_have_the_apis_shape(client: openai.OpenAI, deployed: "Deployed", prompts: list[str]) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model=MODEL, prompt="x", max_tokens=0)
    with pytest.raises(openai.BadRequestError, match=r"\d+ tokens \+ max_tokens 250 = \d+ exceed the context of 256"):
        client.completions.create(model=MODEL, prompt=prompts[0], max_tokens=250)
    for method, path, content, status in (
        ("POST", "/v1/completions", b'{"model": ', 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("GET", "/v1/nowhere", b"", 404),
        ("GET", "/v1/completions", b"", 405),
    ):
        found, value = send(deployed.url, method, path, content)
        assert found == status
        assert set(value["error"]) == {"message", "type", "param", "code"}


def test_models_and_health(client: openai.OpenAI, deployed: "Deployed") -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.model_extra is not None
    card = model.model_extra["diversed"]
    assert card["lossy"] is True
    assert (card["draft_length"], card["cap"], card["verifier_version"]) == (DRAFT_LENGTH, "8.0", f"{MODEL}-v1")
    assert client.models.retrieve(MODEL) == model
    assert send(deployed.url, "GET", "/health") == (200, {"status": "ok"})


def test_a_client_that_leaves_does_not_hold_the_row(
    deployed: "Deployed", client: openai.OpenAI, offline: Offline, pair: Pair, prompts: list[str]
) -> None:
    for _ in range(3):
        address = urlsplit(deployed.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        body = {"model": MODEL, "prompt": prompts[0], "max_tokens": 200, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        answer.close()
        connection.close()
    (generation,) = offline(prompts[2:3], seed=4)
    after = client.completions.create(model=MODEL, prompt=prompts[2], seed=4, max_tokens=60)
    assert after.choices[0].text == pair.decode(generation.tokens)  # a row left over would have shifted this one


def test_deploying_after_a_promotion_replaces_the_application_on_the_same_port(
    deployed: "Deployed", settings: Settings, pair: Pair, client: openai.OpenAI
) -> None:
    from diversed.tracking import Tracker
    from jobs.deploy import deploy_champion

    folder = settings.output / "better"
    save_verifier(folder, Head(pair.draft_dim, pair.target_dim, 0.9), VerifierCard.of(settings, pair))
    write_run_record(folder, settings)
    tracker = Tracker(settings)
    with tracker.run("a better one") as run:
        version = tracker.registry.register(settings.registered_model, folder, run.id)
    tracker.registry.set_alias(settings.registered_model, "champion", version)
    # What runs is the version that was checked, until it is deployed again.
    assert client.completions.create(model=MODEL, prompt=deployed.prompt).system_fingerprint == f"{MODEL}-v1"
    again = deploy_champion(settings)
    assert (again.url, again.version) == (deployed.url, f"{MODEL}-v2")
    answer = client.completions.create(model=MODEL, prompt=deployed.prompt)
    assert answer.system_fingerprint == f"{MODEL}-v2"
    assert answer.model_extra is not None
    assert math.isclose(answer.model_extra["metrics"]["verifier"]["mean_target_weight"], 0.9, rel_tol=1e-6)


def test_a_replica_that_cannot_load_fails_the_deployment_in_one_line(deployed: "Deployed", settings: Settings) -> None:
    from ray import serve

    from diversed.serving.endpoint import deploy
    from serve_apps.completions import application

    broken = settings.updated(
        {"verifier.checkpoint": "/nowhere", "serve.app_name": "broken", "serve.route_prefix": "/broken"}
    )
    with pytest.raises(ClusterError, match=r"did not start: .*CheckpointError: .*no such folder") as caught:
        deploy(application(broken), broken.serve)
    assert "\n" not in str(caught.value)
    serve.delete("broken")


def test_what_cannot_be_served_is_known_before_deploying(settings: Settings, verifier: Path, tmp_path: Path) -> None:
    from diversed.serving.champion import champion_of

    with pytest.raises(CheckpointError, match="no such folder"):
        champion_of(settings.updated({"verifier.checkpoint": str(tmp_path / "none")}))
    nothing = settings.updated({"output": str(tmp_path)})
    with pytest.raises(TrackingError, match=rf"models:/{MODEL}@champion.* is not in the registry"):
        champion_of(nothing)
    (tmp_path / "torn").mkdir()
    for file in verifier.iterdir():
        (tmp_path / "torn" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "torn" / "run.yaml").write_text("settings: [")
    with pytest.raises(CheckpointError, match=r"run.yaml: not the record of a run"):
        champion_of(settings.updated({"verifier.checkpoint": str(tmp_path / "torn")}))


def test_a_folder_is_served_by_its_content_and_changes_are_the_callers(settings: Settings, verifier: Path) -> None:
    from diversed.serving.champion import champion_of

    folder = settings.updated({"verifier.checkpoint": str(verifier), "decode.draft_length": 9})
    plain = champion_of(folder)
    assert (plain.decode.draft_length, plain.decode.cap, plain.decode.batch_size) == (DRAFT_LENGTH, 8.0, 1)
    assert plain.version.startswith(f"{MODEL}-")
    changed = champion_of(folder, {"decode.draft_length": "7", "decode.temperature": 0})
    assert (changed.decode.draft_length, changed.decode.temperature, changed.decode.cap) == (7, 0, 8.0)
    assert changed.version == plain.version


def test_serve_arguments_are_settings() -> None:
    from serve_apps.completions import build

    build({"pair": "arithmetic", "decode.draft_length": "3", "serve": {"max_waiting": "2"}})
    for arguments, message in (
        ({"decode.draft_length": "-1"}, "decode.draft_length = '-1': .*greater than or equal to 1"),
        ({"draft": "x"}, "draft: no such setting"),
        ({"decode": {"method": "strict"}}, "decode.method: an endpoint serves its verifier's"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(arguments)


def test_the_config_file_is_what_serve_build_makes(repository: Path) -> None:
    from ray.serve.schema import ServeDeploySchema

    from serve_apps.completions import app

    values = yaml.safe_load((repository / "serve_apps/completions.yaml").read_text())
    config = ServeDeploySchema.model_validate(values)
    (application,) = config.applications
    assert application.import_path == "serve_apps.completions:app"
    assert config.http_options.host == "127.0.0.1"
    assert config.proxy_location == "HeadOnly"
    (deployment,) = application.deployments
    assert deployment.name == app._bound_deployment.name == "completions"
    assert deployment.max_ongoing_requests == app._bound_deployment.max_ongoing_requests


def send(url: str, method: str, path: str, content: bytes = b"") -> tuple[int, Any]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    connection.request(method, path, content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, value
