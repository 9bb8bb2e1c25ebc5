"""Which candidate is chosen, and what is said when none may be."""

import json
from pathlib import Path

from diversed.tuning.candidates import Candidate, select


def candidate(name: str, score: float, reason: str = "", **changes) -> Candidate:
    report = {
        "score": score,
        "feasible": float(not reason),
        "speedup_predicted": 3.0,
        "token_acceptance": 0.9,
        "quality": 0.8,
        "quality_difference": -0.01,
        "reason": reason,
    }
    return Candidate(name, Path("verifiers") / name, changes, 2, report)


def test_the_fastest_feasible_candidate_is_best():
    outcome = select([candidate("a", 1.5), candidate("b", 2.5), candidate("c", 2.0), candidate("d", -0.1, "loops")])
    assert outcome.best.name == "b"
    assert outcome.closest.name == "d"
    assert "best is b, epoch 2: predicted speed-up 3.00" in outcome.describe()


def test_the_earlier_of_equals_is_best():
    assert select([candidate("a", 2.0), candidate("b", 2.0)]).best.name == "a"


def test_without_a_feasible_candidate_the_closest_is_named_with_its_reason():
    outcome = select(
        [candidate("a", -0.4, "too bad"), candidate("b", -0.02, "hardly too bad"), candidate("c", -1.3, "loops")]
    )
    assert outcome.best is None
    assert outcome.closest.name == "b"
    assert outcome.describe().startswith("no feasible candidate; the closest is b, epoch 2")
    assert outcome.describe().endswith("infeasible: hardly too bad")


def test_no_candidate_at_all():
    assert select([]).describe() == "no candidate at all"


def test_rows_rank_the_infeasible_last():
    outcome = select([candidate("a", -0.4, "x", **{"train.lam": 0.1}), candidate("b", 1.2, **{"train.lam": 0.2})])
    assert [row["candidate"] for row in outcome.rows()] == ["b", "a"]
    assert outcome.rows()[0]["train.lam"] == 0.2
    assert outcome.table().row_count == 2


def test_a_candidate_survives_json():
    one = candidate("a", 1.5, **{"decode.draft_length": 7})
    assert Candidate.of(json.loads(json.dumps(one.record()))) == one
