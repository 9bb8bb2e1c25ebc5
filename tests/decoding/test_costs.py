"""The cost profile: one measurement for all who ask, widened when someone asks for more."""

from pathlib import Path
from typing import Any

import pytest

from diversed.decoding import costs
from diversed.decoding.costs import Costs, predicted_speedup, profile_costs
from diversed.errors import ConfigError
from diversed.models import load_pair
from diversed.settings import PairSettings


def test_all_who_ask_get_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "SECONDS", 0.0)
    pair = load_pair(PairSettings())
    first = profile_costs(pair, [3], tmp_path)
    assert min(first.t_autoregressive, first.t_draft, *first.t_target.values()) > 0
    assert set(first.t_target) == {1, *range(2, 10)}
    measured: list[list[int]] = []

    def measure(_pair: Any, lengths: list[int], _device: str) -> Costs:
        measured.append(lengths)
        return Costs(1.0, dict.fromkeys(lengths, 2.0), 0.5, "a", 1)

    monkeypatch.setattr(costs, "_measure", measure)
    assert profile_costs(pair, [7], tmp_path) == first
    wider = profile_costs(pair, [12], tmp_path)
    assert measured == [[*range(1, 10), 13]]
    assert profile_costs(pair, [5], tmp_path) == wider
    assert len(list(tmp_path.iterdir())) == 1


def test_a_round_costs_one_verification_and_n_drafts() -> None:
    profile = Costs(t_autoregressive=8.0, t_target={1: 8.0, 6: 10.0}, t_draft=1.0, device="a", threads=1)
    assert predicted_speedup(5.0, 5, profile) == pytest.approx(5 * 8 / 15)
    with pytest.raises(ConfigError, match=r"draft_length = 4: not in the profile, which has \[1, 6\] target tokens"):
        profile.round_time(4)
