"""Draft and target in actors: the tokens of the in-process engine, and clear ends when an actor is gone."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from diversed.cluster.actors import _Actors, engine_for
from diversed.decoding import Engine, Generation, Request
from diversed.errors import ClusterError, DiversedError, PairError
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, DrafterKind, PairSettings
from diversed.verifier import Head

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]

IN_PROCESS = PairSettings()
ACTORS = PairSettings(placement="actors")
STRICT = DecodeSettings(method="strict", batch_size=4)


def requests_of(prompts: list[list[int]], decode: DecodeSettings) -> list[Request]:
    """Unequal lengths of output as well: rows join and leave at different rounds."""
    return [Request.of(prompt, 16 + index, derive_seed(5, index), decode) for index, prompt in enumerate(prompts)]


def discrete(answer: Generation) -> tuple[Any, ...]:
    counts = answer.kind_T.tolist(), answer.accepted_R.tolist(), answer.drafted_R.tolist()
    return answer.tokens, answer.finish_reason, *counts


def outcome(engine: Engine, requests: list[Request]) -> list[tuple[Any, ...]]:
    return [discrete(answer) for answer in engine.generate(requests)]


@pytest.fixture(scope="module")
def kept(ray_session: None, pair: Pair) -> Iterator[Engine]:
    """An open engine keeps the actors for the tests that follow."""
    engine = engine_for(ACTORS, pair, STRICT)
    yield engine
    engine.close()
    assert not _Actors._live


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("method", ["autoregressive", "strict", "static", "diversed"])
def test_same_seed_same_tokens_in_process_and_in_actors(
    pair: Pair, prompts: list[list[int]], head: Head, method: str, temperature: float, batch_size: int
) -> None:
    decode = DecodeSettings(method=method, temperature=temperature, batch_size=batch_size)
    weigh = head if method == "diversed" else None
    here, there = (engine_for(settings, pair, decode, weigh, True) for settings in (IN_PROCESS, ACTORS))
    requests = requests_of(prompts if batch_size > 1 else prompts[2:5], decode)
    try:
        for mine, theirs in zip(here.generate(requests), there.generate(requests), strict=True):
            assert discrete(mine) == discrete(theirs)
            torch.testing.assert_close(mine.w_T, theirs.w_T)
            torch.testing.assert_close(mine.features_TD, theirs.features_TD)
    finally:
        there.close()


OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"logit_bias": ((7, 3.0), (9, float("-inf")))},
    {"temperature": 0.0, "frequency_penalty": 0.5},
    {"min_p": 0.05, "top_k": 20},
    {"stop": (" and",)},
]


@pytest.mark.usefixtures("kept")
def test_laws_before_temperature_reach_the_target(pair: Pair, prompts: list[list[int]]) -> None:
    decode = DecodeSettings(method="opt", temperature=0.3, batch_size=8, parameters={"alpha": 0.3})
    here, there = (engine_for(settings, pair, decode) for settings in (IN_PROCESS, ACTORS))
    try:
        assert outcome(there, requests_of(prompts, decode)) == outcome(here, requests_of(prompts, decode))
    finally:
        there.close()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("drafter", list(DrafterKind))
def test_options_of_requests_alike(pair: Pair, prompts: list[list[int]], drafter: DrafterKind) -> None:
    """Cases 4, 7, 13 and 19 in actors; prompt lookup needs the target's actor alone."""
    decode = STRICT.model_copy(update={"drafter": drafter})
    plain = requests_of(prompts, decode)
    requests = [replace(request, **OPTIONS[i % len(OPTIONS)]) for i, request in enumerate(plain)]
    here, there = (engine_for(settings, pair, decode) for settings in (IN_PROCESS, ACTORS))
    try:
        expected = outcome(here, requests)
        assert outcome(there, requests) == expected
        assert outcome(there, requests) == expected
    finally:
        there.close()


@pytest.mark.usefixtures("kept")
def test_streams_alike(pair: Pair, prompts: list[list[int]], head: Head) -> None:
    decode = DecodeSettings(batch_size=1)
    here, there = (engine_for(settings, pair, decode, head) for settings in (IN_PROCESS, ACTORS))
    request = requests_of(prompts, decode)[3]
    try:
        assert [tokens for tokens, _ in here.stream(request)] == [tokens for tokens, _ in there.stream(request)]
    finally:
        there.close()


@pytest.mark.usefixtures("kept")
def test_actors_see_the_head_as_it_is_at_each_call(pair: Pair, prompts: list[list[int]], head: Head) -> None:
    decode = DecodeSettings(batch_size=8)
    here, there = (engine_for(settings, pair, decode, head) for settings in (IN_PROCESS, ACTORS))
    requests = requests_of(prompts, decode)
    try:
        before = outcome(there, requests)
        assert before == outcome(here, requests)
        with torch.no_grad():
            head.bias.fill_(-4.0)  # nearly all weight to the draft
        after = outcome(there, requests)
        assert after == outcome(here, requests)
        assert after != before
    finally:
        there.close()


@pytest.mark.usefixtures("kept")
def test_engines_of_one_process_share_the_actors(pair: Pair, prompts: list[list[int]], head: Head) -> None:
    """A trainer's engine stays open while its head is evaluated by another."""
    first = engine_for(ACTORS, pair, STRICT)
    second = engine_for(ACTORS, pair, DecodeSettings(batch_size=2), head)
    requests = requests_of(prompts, STRICT)
    alone = outcome(first, requests)
    outcome(second, requests)
    assert len(_Actors._live) == 1
    second.close()
    second.close()
    assert outcome(first, requests) == alone
    first.close()
    assert next(iter(_Actors._live.values())).users == 2  # the two roles of `kept`


@pytest.mark.usefixtures("kept")
def test_an_error_in_an_actor_arrives_as_itself(pair: Pair) -> None:
    """Nobody waits for the reading of prompts: an unknown token there fails the round that follows, in each actor."""
    engine = engine_for(ACTORS, pair, STRICT)
    assert engine.drafter is not None
    try:
        for role in (engine.drafter, engine.target):
            role.reserve(4, 16)
            role.prefill(slice(0, 1), np.array([[10**6]]), 0)
            with pytest.raises(IndexError):
                engine.generate([Request((1, 2, 3), 4, 0)])
            assert len(engine.generate([Request((1, 2, 3), 4, 0)])[0].tokens) == 4
    finally:
        engine.close()


def test_pair_error_in_an_actor_is_one_line(pair: Pair) -> None:
    settings = PairSettings(placement="actors", name="nobody")
    with pytest.raises(PairError, match="nobody"):
        engine_for(settings, pair, STRICT)
    assert not [key for key, _ in _Actors._live if key.name == "nobody"]


@pytest.mark.usefixtures("kept")
def test_death_of_an_actor_is_one_line_and_the_next_engine_is_new(pair: Pair, prompts: list[list[int]]) -> None:
    import ray

    requests = requests_of(prompts, STRICT)
    for name in ("target", "draft"):
        engine = engine_for(ACTORS, pair, STRICT)
        expected = outcome(engine, requests)
        (actors,) = _Actors._live.values()
        end_it = partial(ray.kill, actors.handles[name])
        with pytest.raises(DiversedError, match=rf"the {name} actor died") as caught:
            engine.generate(requests, lambda done, end_it=end_it: end_it() if done == 0 else None)
        assert "\n" not in str(caught.value)
        assert not _Actors._live
        engine.close()
    again = engine_for(ACTORS, pair, STRICT)
    assert outcome(again, requests) == expected
    again.close()


def test_more_than_the_cluster_has_is_refused_before_anything_starts(pair: Pair) -> None:
    with pytest.raises(ClusterError, match=r"the engine: CPU=48 \(target CPU=32, draft CPU=16\) but the cluster has"):
        engine_for(PairSettings(placement="actors", threads=64), pair, STRICT)


def test_actors_take_the_callers_placement_group(pair: Pair, prompts: list[list[int]]) -> None:
    """As in a Tune trial or a Serve replica: bundle 0 is the caller, 1 the target, 2 the draft."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from diversed.cluster.resources import search_plan
    from diversed.settings import Settings

    plan = search_plan(Settings(pair={"placement": "actors"}), [{"CPU": 2.0}])

    def trial(group_id: str) -> tuple[list[tuple[Any, ...]], list[int]]:
        from ray.util.placement_group import get_current_placement_group

        assert get_current_placement_group().id.hex() == group_id
        engine = engine_for(ACTORS, pair, STRICT)
        try:
            return outcome(engine, requests_of(prompts, STRICT)), bundles_in_use(group_id)
        finally:
            engine.close()

    def bundles_in_use(group_id: str) -> list[int]:
        """Bundles whose CPUs are taken; Ray tells after a second or two."""
        names = {bundle: f"CPU_group_{bundle}_{group_id}" for bundle in range(3)}
        for _ in range(50):
            free, total = ray.available_resources(), ray.cluster_resources()
            used = [bundle for bundle, name in names.items() if free.get(name, 0) < total[name]]
            if len(used) == len(names):
                break
            time.sleep(0.2)
        return used

    group = placement_group(plan.placement, strategy="PACK")
    try:
        strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        task = ray.remote(trial).options(num_cpus=plan.bundles[0].cpus, scheduling_strategy=strategy)
        tokens, used = ray.get(task.remote(group.id.hex()), timeout=240)
    finally:
        remove_placement_group(group)
    assert tokens == outcome(engine_for(IN_PROCESS, pair, STRICT), requests_of(prompts, STRICT))
    assert used == [0, 1, 2]
