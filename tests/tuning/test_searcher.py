"""Spaces and the searcher over them, without a cluster; tests/jobs/test_tune_verifier.py has one."""

from pathlib import Path

import pytest

from diversed.errors import ConfigError
from diversed.settings import Settings, load_settings
from diversed.tuning.candidates import Candidate
from diversed.tuning.search import _searcher
from tune_spaces import load_space

SETTINGS = Settings().updated({"train.lam": 0.1, "train.learning_rate": 2e-2, "search.trials": 8})


def incumbent(score: float) -> Candidate:
    return Candidate("train", Path("verifier"), {}, 3, {"score": score})


def suggestions(searcher, count: int, value: float = 1.0) -> list[dict]:
    found = []
    for number in range(count):
        found.append(searcher.suggest(str(number)))
        searcher.on_trial_complete(str(number), {"score": value, "training_iteration": 1})
    return found


@pytest.mark.parametrize("lam", [0.0, 0.1, 7.0])
def test_the_default_space_holds_its_first_point_and_all_it_suggests(lam):
    settings = SETTINGS.updated({"train.lam": lam, "decode.draft_length": 4})
    space = load_space(settings)
    assert space.holds(space.first)
    assert space.first["decode.draft_length"] == 4
    for point in suggestions(_searcher(settings, space, None), 8):
        assert space.holds(point)
        settings.updated(point)  # every suggestion is valid settings


def test_a_search_begins_at_the_settings_themselves():
    space = load_space(SETTINGS)
    first, second = suggestions(_searcher(SETTINGS, space, None), 2)
    assert (
        first
        == space.first
        == {
            "train.lam": 0.1,
            "train.learning_rate": 2e-2,
            "decode.draft_length": 5,
            "verifier.initial_weight": 0.5,
        }
    )
    assert second != first


def test_a_trained_incumbent_is_told_and_not_tried_again():
    space = load_space(SETTINGS)
    searcher = _searcher(SETTINGS, space, incumbent(2.5))
    assert [(trial.params, trial.value) for trial in searcher._ot_study.trials] == [(space.first, 2.5)]
    assert space.first not in suggestions(searcher, 4)


def test_the_same_seed_suggests_the_same_points():
    space = load_space(SETTINGS)
    one, two = (suggestions(_searcher(SETTINGS, space, None), 6) for _ in range(2))
    other = suggestions(_searcher(SETTINGS.updated({"seed": 1}), space, None), 6)
    assert one == two
    assert one != other


def test_the_searchers_state_survives_a_kill(tmp_path):
    """After save and restore in another process the suggestions go on as if nothing had happened."""
    space = load_space(SETTINGS)
    whole = suggestions(_searcher(SETTINGS, space, None), 6)
    searcher = _searcher(SETTINGS, space, None)
    begun = suggestions(searcher, 3)
    searcher.save(str(tmp_path / "state"))
    resumed = _searcher(SETTINGS, space, None)
    resumed.restore(str(tmp_path / "state"))
    rest = []
    for number in range(3, 6):
        rest.append(resumed.suggest(str(number)))
        resumed.on_trial_complete(str(number), {"score": 1.0, "training_iteration": 1})
    assert begun + rest == whole


def test_all_draft_lengths_of_a_space_are_profiled():
    from ray import tune

    space = load_space(SETTINGS.updated({"decode.draft_length": 4}))
    assert space.draft_lengths(4) == [3, 4, 5, 7]
    integers = type(space)({"decode.draft_length": tune.randint(2, 5)}, {})
    assert integers.draft_lengths(7) == [2, 3, 4, 7]
    assert type(space)({}, {}).draft_lengths(5) == [5]


def test_an_unknown_space_is_refused_with_those_that_exist():
    settings = load_settings(["--search.space", "defualt"])
    with pytest.raises(ConfigError, match=r"search\.space = 'defualt'.*there are: default"):
        load_space(settings)
