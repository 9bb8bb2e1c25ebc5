"""Which variants a grid stands for, how they are named, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from diversed.errors import ConfigError
from diversed.evaluation.compare import Results
from diversed.evaluation.grid import cells, grid, matched_static, static_variant
from diversed.evaluation.metrics import ExampleResult
from diversed.settings import Method, Settings
from diversed.verifier import Head


def no_head(checkpoint: str) -> Any:
    raise AssertionError(f"{checkpoint} was loaded")


def of(settings: Settings, **evaluate: Any) -> list[tuple[str, str]]:
    changed = settings.updated({f"evaluate.{name}": value for name, value in evaluate.items()})
    return [(variant.cell, variant.label) for variant in grid(changed, lambda _: Head(32, 32))]


def test_the_default(settings: Settings) -> None:
    head = Head(32, 32)
    changes = {"decode.cap": 2.0, "decode.top_p": 0.9, "verifier.checkpoint": "models:/x@champion"}
    variants = grid(settings.updated(changes), lambda _: head)
    assert [v.label for v in variants] == ["autoregressive", "strict", "static w=0.5", "static w=0.2", "diversed"]
    assert [v.cell for v in variants] == ["T1-N0", *["T1-N3"] * 4]
    assert [v.decode.method.value for v in variants] == ["autoregressive", "strict", "static", "static", "diversed"]
    assert [v.decode.weight for v in variants[2:4]] == [0.5, 0.2]
    assert [v.decode.cap for v in variants[1:]] == [float("inf")] * 3 + [2.0]  # the cap is DIVERSED's
    assert {v.decode.top_p for v in variants} == {0.9}
    assert [v.head for v in variants] == [None] * 4 + [head]
    assert len(grid(settings, no_head)) == 4  # no checkpoint, no DIVERSED


def test_methods_are_spread_over_values_and_cells(settings: Settings) -> None:
    found = of(
        settings,
        methods=["strict", "truncated", "lossy:alpha=0.3/0.5:beta=1/2", "typical:fallback=sample:repaired=yes"],
        temperatures=[0.5, 1],
        draft_lengths=[3, 5],
    )
    labels = ["strict", *(f"lossy alpha={a} beta={b}" for a in (0.3, 0.5) for b in (1, 2))]
    labels.append("typical fallback=sample repaired")
    assert found[: len(labels) + 1] == [
        ("T1-N3", "strict"),
        ("T1-N0", "truncated"),
        *(("T1-N3", label) for label in labels[1:]),
    ]
    assert {cell for cell, _ in found} == {"T1-N3", "T1-N5", "T0.5-N3", "T0.5-N5", "T1-N0", "T0.5-N0"}
    assert len(found) == len(set(found)) == 4 * len(labels) + 2


def test_the_settings_own_cell_is_the_first(settings: Settings) -> None:
    changed = settings.updated({"evaluate.temperatures": [0, 1], "evaluate.draft_lengths": [5, 3]})
    assert [(d.temperature, d.draft_length) for d in cells(changed)] == [(1, 3), (0, 5), (0, 3), (1, 5)]
    assert [(d.temperature, d.draft_length) for d in cells(settings)] == [(1, 3)]


def test_several_verifiers(settings: Settings) -> None:
    methods = [
        "strict",
        "diversed:checkpoint=/a/one",
        "diversed:checkpoint=/b/two:cap=2",
        "diversed:checkpoint=/a/one:cap=2",
    ]
    assert [label for _, label in of(settings, methods=methods)] == [
        "strict", "diversed (one)", "diversed cap=2 (two)", "diversed cap=2 (one)",
    ]  # fmt: skip
    assert of(settings, methods=["diversed:checkpoint=seed 1=/a/epoch-003"]) == [("T1-N3", "diversed (seed 1)")]


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["lossy:beta"], "'lossy:beta': 'beta' is no field=value"),
        (["lossy:alpha="], "is no field=value"),
        (
            ["lossy:gamma=1"],
            "'lossy:gamma=1': gamma: not a parameter of method 'lossy'; it has alpha, beta",
        ),
        (["lossy:alpha=3"], "evaluate.methods: 'lossy:alpha=3': alpha = 3.0: must be a number from -1 to 1"),
        (["static:weight=2"], "'static:weight=2': Input should be less than or equal to 1"),
        (["strict", "strict"], "'strict' occurs twice"),
        (["static:weight=0.5/.50"], "'static w=0.5' occurs twice"),
        (["strict:repaired=yes"], "needs no repair"),
        (["lossy:checkpoint=/x"], "only diversed has a checkpoint"),
    ],
)
def test_refused(settings: Settings, methods: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(settings, methods=methods)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_matched_static(settings: Settings, make_result: Callable[..., ExampleResult]) -> None:
    """Acceptance .6 (strict), .7 (w=.5), .8 (w=.2), 1 (w=0): .9 lies half way between the last two, at w = .1."""
    variants = grid(settings.updated({"verifier.checkpoint": "x"}), lambda _: Head(32, 32))
    decode = settings.decode

    def accepting(share: float) -> list[ExampleResult]:
        return [make_result("a", accepted=round(1000 * share), verified=1000)]

    def found(share: float) -> str | None:
        shares = {"autoregressive": 0, "strict": 0.6, "static w=0.5": 0.7, "static w=0.2": 0.8, "diversed": share}
        results: Results = {(v.cell, v.label): accepting(shares[v.label]) for v in variants}
        variant = matched_static(decode, results, variants)
        return None if variant is None else variant.label

    assert found(0.9) == "static w=0.1"
    assert found(0.75) == "static w=0.35"
    assert found(0.8) is None  # was run
    assert found(0.55) is None  # stricter than strict
    assert matched_static(decode, {}, [v for v in variants if v.decode.method is not Method.DIVERSED]) is None
    assert static_variant(decode, 0.1).decode.weight == 0.1
