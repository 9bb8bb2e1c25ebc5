"""Plans and shortfalls are arithmetic: no Ray here."""

import pytest

from diversed.cluster.resources import Bundle, Plan, at_once, engine_plan, require, search_plan, serve_plan, shortfalls
from diversed.errors import ClusterError
from diversed.settings import Settings

LAPTOP = [{"CPU": 2.0}]
TWO_GPUS = [{"CPU": 8.0, "GPU": 2.0}]


def settings(**pair: object) -> Settings:
    return Settings(pair=pair)


def test_in_process_trial_is_one_bundle() -> None:
    plan = search_plan(settings(threads=2), LAPTOP)
    assert plan.placement == [{"CPU": 2.0}]
    assert (plan.copies, at_once(plan, LAPTOP)) == (2, 1)
    assert engine_plan(settings().pair, LAPTOP).bundles == ()


def test_actors_share_the_cpus_of_one_engine() -> None:
    """Two trials of three processes each fit on two cores: within an engine one process works at a time."""
    plan = search_plan(settings(placement="actors"), LAPTOP)
    assert plan.placement == [{"CPU": 0.25}, {"CPU": 0.5}, {"CPU": 0.25}]
    assert at_once(plan, LAPTOP) == 2
    assert str(plan) == "a trial: CPU=1 (trial CPU=0.25, target CPU=0.5, draft CPU=0.25)"
    require(plan, LAPTOP)


def test_each_model_gets_its_own_gpu_where_there_are_some() -> None:
    plan = search_plan(settings(placement="actors"), TWO_GPUS)
    assert plan.placement == [{"CPU": 0.25}, {"CPU": 0.5, "GPU": 1.0}, {"CPU": 0.25, "GPU": 1.0}]
    assert at_once(plan, TWO_GPUS) == 1
    assert serve_plan(settings(), TWO_GPUS).placement == [{"CPU": 1.0, "GPU": 1.0}]
    assert serve_plan(settings(device="cpu"), TWO_GPUS).placement == [{"CPU": 1.0}]
    assert engine_plan(settings(placement="actors").pair, TWO_GPUS).group == {"CPU": 0.75, "GPU": 2.0}


def test_no_more_groups_than_trials() -> None:
    few = Settings(search={"trials": 1, "concurrent": 4})
    assert search_plan(few, TWO_GPUS).copies == 1


def test_shortfall_names_need_holding_and_remedy() -> None:
    plan = search_plan(settings(placement="actors", threads=4), LAPTOP)
    with pytest.raises(ClusterError) as caught:
        require(plan, LAPTOP)
    assert str(caught.value) == (
        "a trial: CPU=4 (trial CPU=1, target CPU=2, draft CPU=1) but the cluster has CPU=2; "
        "lower --pair.threads, use --pair.placement in-process or add nodes"
    )


def test_missing_gpus_are_named() -> None:
    plan = engine_plan(settings(placement="actors", device="cuda").pair, [{"CPU": 8.0, "GPU": 1.0}])
    with pytest.raises(ClusterError, match=r"GPU=2 .* but the cluster has GPU=1; .*--pair\.device cpu"):
        require(plan, [{"CPU": 8.0, "GPU": 1.0}])
    with pytest.raises(ClusterError, match=r"but the cluster has GPU=0"):
        require(serve_plan(settings(device="cuda:0"), LAPTOP), LAPTOP)


def test_one_process_cannot_be_spread_over_nodes() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 2.0}]
    plan = Plan("a trial", (Bundle("trial", 3.0),))
    assert shortfalls(plan, nodes) == ["a trial: CPU=3 (trial CPU=3) but no single node has trial CPU=3"]
    spread = Plan("a trial", (Bundle("target", 2.0), Bundle("draft", 2.0)))
    assert shortfalls(spread, nodes) == []
