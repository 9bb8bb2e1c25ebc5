"""Traces from real generations: every kind of token once, and that strict's would-be verdict is strict's."""

from pathlib import Path

import pytest
import torch

from diversed.decoding import Generation, Request, build_engine
from diversed.evaluation.trace import trace_of
from diversed.models import Pair, load_pair
from diversed.settings import DecodeSettings, PairSettings, load_settings
from diversed.verification import Kind
from diversed.verifier import Head, VerifierCard, save_verifier
from jobs import trace as trace_job

PROMPT = "Tom has 3 apples and buys 4 more. How many apples?\n"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(PairSettings(device="cpu"))


def generation_of(pair: Pair, decode: DecodeSettings, seed: int = 3, audited: bool = True) -> Generation:
    engine = build_engine(pair, decode, lambda features: torch.full(features.shape[:-1], 0.2))
    request = Request.of(pair.encode(PROMPT), 60, seed, decode, audited)
    return engine.generate([request])[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["diversed", "static", "lossy", "typical", "strict"])
def test_a_trace(pair: Pair, method: str, temperature: float) -> None:
    parameters: dict[str, float | str] = {"lossy": {"alpha": 0.99}, "typical": {"epsilon": 0.001}}.get(method, {})  # type: ignore[assignment]
    values = {"method": method, "weight": 0.2, "draft_length": 4, "temperature": temperature, "parameters": parameters}
    decode = DecodeSettings(**values)  # type: ignore[arg-type]
    generation = generation_of(pair, decode)
    trace = trace_of(pair, generation, decode, PROMPT, {"seed": "3"})
    assert "".join(token.text for token in trace.tokens).removesuffix("<eos>") == pair.decode(generation.tokens)
    assert trace.title == f"{method}, N = 4, T = {temperature:g}"
    counts = {kind: sum(token.kind == kind for token in trace.tokens) for kind in ("accepted", "relaxed", "replaced")}
    assert counts["accepted"] + counts["relaxed"] == generation.accepted
    assert counts["replaced"] == int((generation.kind_T == Kind.REPLACEMENT).sum())
    assert (counts["relaxed"] == 0) == (method == "strict")
    assert [token.round for token in trace.tokens] == sorted(token.round for token in trace.tokens)
    assert trace.tokens[-1].round == generation.rounds - 1
    for token in trace.tokens:
        assert (token.q is None) == (token.tv is None) == (token.kind in ("bonus", "target"))
        assert (token.w is None) == (method not in ("diversed", "static") or token.q is None)
        assert (token.overshoot is None) == (temperature == 0)
        if token.overshoot is not None and token.w is not None:  # an ensemble's out is v
            assert token.overshoot * token.p == pytest.approx(0.2 * token.p + 0.8 * (token.q or 0), rel=1e-4)


def test_autoregressive_steps_have_nothing_drafted(pair: Pair) -> None:
    decode = DecodeSettings(method="autoregressive")  # type: ignore[arg-type]
    trace = trace_of(pair, generation_of(pair, decode), decode, PROMPT, {})
    assert {token.kind for token in trace.tokens} == {"target"}
    assert [token.round for token in trace.tokens] == list(range(len(trace.tokens)))
    assert trace.title == "autoregressive, T = 1"


def test_only_what_was_audited_can_be_traced(pair: Pair) -> None:
    decode = DecodeSettings(method="strict")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="audited"):
        trace_of(pair, generation_of(pair, decode, audited=False), decode, PROMPT, {})


def test_an_audit_changes_no_token_and_is_for_those_who_ask(pair: Pair) -> None:
    """Of two rows of one batch, one asks."""
    decode = DecodeSettings(method="static", batch_size=2)  # type: ignore[arg-type]
    requests = [Request.of(pair.encode(PROMPT), 40, 5, decode, audited) for audited in (False, True)]
    first, second = build_engine(pair, decode).generate(requests)
    assert first.audit_TA is None
    assert second.audit_TA is not None
    assert first.tokens == second.tokens
    assert torch.equal(first.p_T, second.p_T)


def test_job(tmp_path: Path, pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    save_verifier(
        tmp_path / "head", Head(pair.draft_dim, pair.target_dim, 0.3), VerifierCard.of(load_settings([]), pair)
    )
    arguments = ["--output", str(tmp_path / "out"), "--pair.device", "cpu", "--trace.prompts", "2"]
    assert trace_job.main([*arguments, "--verifier-checkpoint", str(tmp_path / "head")]) == 0
    page = Path(capsys.readouterr().out.removeprefix("page: ").strip())
    html = page.read_text()
    assert html.count("<section ") == 2
    assert "diversed, N = 7, T = 1" in html
    assert trace_job.main([*arguments, "--method", "lossy", "--decode.parameters", "alpha=0.9"]) == 0
    assert "lossy, N = 7" in Path(capsys.readouterr().out.removeprefix("page: ").strip()).read_text()
    assert trace_job.main(arguments) == 2  # DIVERSED without a verifier
    assert "needs a verifier" in capsys.readouterr().err
