"""The loop: exactness, case by case (`test_case_NN` follow the numbers of the project's list of known faults).

Tiny random models in float32; equalities are token for token. Chi-square thresholds are the .9999 quantile under fixed
seeds.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from diversed.decoding import Request, build_engine
from diversed.errors import ConfigError, RequestError
from diversed.models import load_pair
from diversed.settings import DecodeSettings, DrafterKind, Method, PairSettings
from diversed.verification import RULES, Kind, Laws, emitted_law, rule_of

Generate = Callable[..., Any]
VOCAB = 16


def tokens(generations: Any) -> list[list[int]]:
    return [generation.tokens for generation in generations]


def head(features: torch.Tensor) -> torch.Tensor:
    """A weight that varies from position to position."""
    return torch.sigmoid(features.sum(-1))


def assert_law(drawn: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square; rare tokens are one class, the threshold is the .9999 quantile."""
    counts = torch.bincount(drawn, minlength=len(expected)).double()
    assert not bool(counts[expected == 0].any())
    likely = expected * len(drawn) >= 5
    observed = torch.cat([counts[likely], counts[~likely].sum()[None]])
    wanted = torch.cat([expected[likely], expected[~likely].sum()[None]]) * len(drawn)
    kept = wanted > 1
    statistic = float(((observed - wanted)[kept] ** 2 / wanted[kept]).sum())
    assert statistic < chi2.ppf(0.9999, int(kept.sum()) - 1)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_strict_greedy_equals_autoregressive_greedy_and_the_model_itself(
    tiny_pair: Any, prompts: Any, generate: Generate, batch: int
) -> None:
    expected = []
    model = tiny_pair().target
    for prompt in prompts:
        ids = torch.tensor([prompt])
        for _ in range(24):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        expected.append(ids[0, len(prompt) :].tolist())
    assert tokens(generate(tiny_pair(), prompts, "autoregressive", 0.0, batch)) == expected
    assert tokens(generate(tiny_pair(), prompts, "strict", 0.0, batch)) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_weight_one_is_strict_and_weight_zero_accepts_all(
    tiny_pair: Any, prompts: Any, generate: Generate, temperature: float
) -> None:
    strict = generate(tiny_pair(), prompts, "strict", temperature)
    assert tokens(generate(tiny_pair(), prompts, "static", temperature, weight=1.0)) == tokens(strict)
    ones = generate(tiny_pair(), prompts, "diversed", temperature, head=lambda f: torch.ones(f.shape[:-1]))
    assert tokens(ones) == tokens(strict)
    draft_only = generate(tiny_pair(), prompts, "draft-only", temperature)
    assert all(generation.accepted == generation.drafted for generation in draft_only)
    assert tokens(generate(tiny_pair(), prompts, "static", temperature, weight=0.0)) == tokens(draft_only)


@pytest.mark.parametrize("cap", [1.0, 1.0 + 1e-12])
def test_cap_one_is_strict(tiny_pair: Any, prompts: Any, generate: Generate, cap: float) -> None:
    strict = tokens(generate(tiny_pair(), prompts, "strict"))
    assert tokens(generate(tiny_pair(), prompts, "static", weight=0.2, cap=cap)) == strict


def test_case_05_draft_equals_target_accepts_all_at_any_weight(tiny_pair: Any, generate: Generate) -> None:
    """Planted fault: no fallback where `(p-q)+` vanishes gives NaN or rejections. 1000 rounds over three weights."""
    rounds = 0
    for weight in (0.0, 0.5, 1.0):
        for generation in generate(tiny_pair(same=True), [[3, 4]] * 16, "static", new=126, weight=weight):
            assert generation.accepted == generation.drafted
            assert bool(torch.isfinite(generation.p_T).all())
            rounds += generation.rounds
    assert rounds >= 1000


@pytest.mark.parametrize("batch", [1, 8])
def test_case_09_the_draft_cache_gets_the_last_token_of_an_accepted_block(
    tiny_pair: Any, prompts: Any, generate: Generate, batch: int
) -> None:
    """Planted fault: without x_N in the draft's cache its next proposals are wrong. 200 rounds, exactly 100%."""
    generations = generate(tiny_pair(same=True), prompts, "strict", 0.0, batch, new=160)
    assert sum(generation.rounds for generation in generations) >= 200
    assert all(generation.accepted == generation.drafted for generation in generations)


def test_case_10_a_rejection_rolls_back_exactly_one_block(tiny_pair: Any, generate: Generate) -> None:
    """Planted fault: a cache rolled back too far or too little decays acceptance or corrupts the output."""
    pair = tiny_pair()
    prompt = [[3, 4, 5]]
    autoregressive = generate(pair, prompt, "autoregressive", 0.0, new=210)
    settings = DecodeSettings(method=Method.STRICT, temperature=0.0, batch_size=1, draft_length=5)
    engine = build_engine(pair, settings)
    widths: list[int] = []
    original = engine.target.slots.forward  # type: ignore[attr-defined]

    def counting(rows: Any, tokens_BN: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        widths.append(tokens_BN.shape[1])
        return original(rows, tokens_BN, *args, **kwargs)

    engine.target.slots.forward = counting  # type: ignore[attr-defined]
    strict = engine.generate([Request.of(prompt[0], 210, 0, settings)])
    assert tokens(strict) == tokens(autoregressive)
    rejected = strict[0].accepted_R < strict[0].drafted_R
    assert int(rejected.sum()) > 50  # a bad draft, as the case wants it
    assert bool(
        (strict[0].drafted_R[1:-1][rejected[:-2]] > 0).all()
    )  # (the last round may have no budget left to draft)
    assert max(widths[1:]) <= 6  # target positions per round (the first call reads the prompt)
    # Proposals made after many rollbacks are those of a draft that read the same text afresh.
    text = prompt[0] + strict[0].tokens
    fresh = generate(pair, [text[:153]], "strict", 0.0, new=57)
    assert fresh[0].tokens == text[153:210]
    early, late = strict[0].accepted_R[:50].double(), strict[0].accepted_R[-50:].double()
    spread = float(torch.cat([early, late]).std()) * (2 / 50) ** 0.5
    assert abs(float(early.mean() - late.mean())) < 4 * spread + 0.05


@pytest.mark.parametrize(("method", "same"), [("autoregressive", False), ("strict", False), ("strict", True)])
def test_case_12_eos_ends_the_output_wherever_it_falls(
    tiny_pair: Any, prompts: Any, generate: Generate, method: str, same: bool
) -> None:
    """Planted fault: generation goes on after an EOS accepted inside a block. Every token of the free run becomes EOS
    in turn, so EOS is first, middle and last of a block, a replacement and a bonus."""
    free = generate(tiny_pair(same), prompts[:4], method, new=12)
    kinds = set()
    for row, generation in enumerate(free):
        for eos in sorted(set(generation.tokens)):
            at = generation.tokens.index(eos)
            stopped = generate(tiny_pair(same, eos=(eos,)), prompts[:4], method, new=12)[row]
            assert stopped.tokens == generation.tokens[: at + 1]
            assert stopped.finish_reason == "stop"
            assert stopped.accepted <= stopped.drafted
            kinds.add(Kind(int(stopped.kind_T[-1])))
    expected = {
        "autoregressive": {Kind.BONUS},
        "strict": {Kind.ACCEPTED, Kind.BONUS} if same else set(Kind),
    }
    assert kinds == expected[method]


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("new", [1, 2, 5, 6, 7])
def test_case_14_max_new_tokens_is_exact(
    tiny_pair: Any, prompts: Any, generate: Generate, new: int, batch: int
) -> None:
    """Planted fault: a block emits past the budget. Budgets around N = 5, and a mixed batch."""
    for method in ("autoregressive", "strict", "draft-only"):
        generations = generate(tiny_pair(), prompts, method, batch=batch, new=new)
        assert [len(generation.tokens) for generation in generations] == [new] * len(prompts)
        assert {generation.finish_reason for generation in generations} == {"length"}


def test_case_14_budgets_may_differ_within_a_batch(tiny_pair: Any, prompts: Any) -> None:
    settings = DecodeSettings(method=Method.STATIC, batch_size=4)
    budgets = [1, 2, 5, 6, 7, 30, 3, 12]
    engine = build_engine(tiny_pair(), settings)
    requests = [Request.of(p, b, i, settings) for i, (p, b) in enumerate(zip(prompts, budgets, strict=True))]
    assert [len(generation.tokens) for generation in engine.generate(requests)] == budgets


def test_case_15_eos_as_the_last_allowed_token_is_a_stop(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    """Planted fault: finish_reason "length" although the model ended by itself at the very last token."""
    free = generate(tiny_pair(), prompts, "strict", 0.0, new=6)  # greedy: a shorter budget changes no token
    for row, generation in enumerate(free):
        eos = generation.tokens[-1]
        first = generation.tokens.index(eos)
        stopped = generate(tiny_pair(eos=(eos,)), prompts, "strict", 0.0, new=first + 1)[row]
        assert stopped.finish_reason == "stop"
        assert stopped.tokens == generation.tokens[: first + 1]


@pytest.mark.parametrize("method", ["autoregressive", "strict", "static", "diversed"])
def test_case_17_the_same_request_gives_the_same_tokens_alone_and_in_a_batch(
    tiny_pair: Any, prompts: Any, generate: Generate, method: str
) -> None:
    """Planted fault: one generator shared by the rows of a batch."""
    weigh = head if method == "diversed" else None
    batched = generate(tiny_pair(), prompts, method, batch=8, head=weigh)
    assert tokens(generate(tiny_pair(), prompts, method, batch=8, head=weigh)) == tokens(batched)
    assert tokens(generate(tiny_pair(), prompts, method, batch=1, head=weigh)) == tokens(batched)
    assert tokens(generate(tiny_pair(), prompts, method, batch=3, head=weigh)) == tokens(batched)


@pytest.mark.parametrize("method", ["autoregressive", "strict", "static", "diversed"])
def test_case_18_a_batch_equals_the_single_runs(tiny_pair: Any, prompts: Any, generate: Generate, method: str) -> None:
    """Planted fault: rows that accept different numbers share one length. Greedy, float32, mixed prompt lengths."""
    weigh = head if method == "diversed" else None
    batched = generate(tiny_pair(), prompts, method, 0.0, batch=4, head=weigh)
    singles = [generate(tiny_pair(), [prompt], method, 0.0, batch=1, head=weigh)[0] for prompt in prompts]
    assert tokens(batched) == tokens(singles)
    for one, other in zip(batched, singles, strict=True):
        assert one.accepted_R.tolist() == other.accepted_R.tolist()


@pytest.mark.parametrize("method", ["strict", "static", "draft-only", "diversed"])
def test_case_21_counts_add_up(tiny_pair: Any, prompts: Any, generate: Generate, method: str) -> None:
    """Planted fault: acceptance outside 0..1, or emitted tokens that no round accounts for."""
    weigh = head if method == "diversed" else None
    for generation in generate(tiny_pair(eos=(2,)), prompts, method, head=weigh):
        kinds = torch.bincount(generation.kind_T, minlength=4).tolist()
        assert kinds[0] == 0
        assert kinds[Kind.ACCEPTED] == generation.accepted
        assert sum(kinds) == len(generation.tokens)
        assert 0 <= generation.accepted <= generation.verified <= generation.drafted
        assert bool((generation.accepted_R <= generation.drafted_R).all())
        assert int(generation.drafted_R.max()) <= 5
        assert kinds[Kind.REPLACEMENT] + kinds[Kind.BONUS] in (generation.rounds, generation.rounds - 1)
        assert generation.verified == kinds[Kind.ACCEPTED] + kinds[Kind.REPLACEMENT]


def test_noise_does_not_depend_on_the_draft_schedule(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    """With draft = target all is accepted, and positions that stay drafted under both lengths keep their draw."""
    one = generate(tiny_pair(same=True), prompts, "strict", draft_length=2, new=3)
    two = generate(tiny_pair(same=True), prompts, "strict", draft_length=5, new=3)
    assert tokens(one) == tokens(two)


@pytest.mark.parametrize(
    ("method", "decode"),
    [
        ("autoregressive", {}),
        ("strict", {}),
        ("static", {"weight": 0.4}),
        ("strict", {"top_k": 5}),
        ("strict", {"top_p": 0.8}),
        ("static", {"weight": 0.4, "top_k": 5, "temperature": 0.7}),
    ],
)
def test_the_engine_emits_the_exact_law(
    tiny_pair: Any, generate: Generate, method: str, decode: dict[str, Any]
) -> None:
    """First and second token of 4000 requests against the law computed from the models' own logits."""
    pair, prompt, n = tiny_pair(), [3, 7, 4], 4000
    temperature = decode.pop("temperature", 1.0)
    generations = generate(pair, [prompt] * n, method, temperature, batch=500, new=2, **decode)
    first = torch.tensor(tokens(generations))[:, 0]

    def law(model: Any, ids: list[int]) -> torch.Tensor:
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        logits = model(torch.tensor([ids])).logits[:, -1]
        logits = TemperatureLogitsWarper(temperature)(None, logits)
        if "top_k" in decode:
            logits = TopKLogitsWarper(decode["top_k"])(None, logits)
        if "top_p" in decode:
            logits = TopPLogitsWarper(decode["top_p"])(None, logits)
        return logits.softmax(-1)[0].double()

    weight = decode.get("weight", 1.0)

    def mixture(ids: list[int]) -> torch.Tensor:
        return weight * law(pair.target, ids) + (1 - weight) * law(pair.draft, ids)

    assert_law(first, mixture(prompt))
    common = int(first.mode().values)
    second = torch.tensor(tokens(generations))[first == common][:, 1]
    assert_law(second, law(pair.target, [*prompt, common]))  # the budget leaves it no draft: its law is the target's


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("method", "parameters"),
    [("lossy", {"alpha": 0.4}), ("token-v1", {"alpha": 0.1}), ("opt", {"alpha": 0.2}), ("cactus", {"delta": 0.3})],
)
def test_baselines_emit_their_exact_law(
    tiny_pair: Any, generate: Generate, method: str, parameters: dict[str, float], temperature: float
) -> None:
    """4000 first tokens against the law computed from the models' own logits, with p0 and q0 before temperature."""
    pair, prompt, n = tiny_pair(), [3, 7, 4], 4000
    generations = generate(pair, [prompt] * n, method, temperature, batch=500, new=2, parameters=parameters)
    logits = [model(torch.tensor([prompt])).logits[0, -1].double() for model in (pair.target, pair.draft)]
    p, q = ((each / temperature).softmax(-1) for each in logits)
    p0, q0 = (each.softmax(-1) for each in logits)
    rule = rule_of(DecodeSettings(method=Method(method), parameters=parameters))
    _, out = emitted_law(rule, Laws(p, q, torch.tensor([0]), 1.0, p0, q0))
    assert_law(torch.tensor(tokens(generations))[:, 0], out)


@pytest.mark.parametrize("method", list(RULES))
def test_baselines_answer_alike_alone_and_in_a_batch(
    tiny_pair: Any, prompts: Any, generate: Generate, method: str
) -> None:
    pair = tiny_pair(eos=(2,))
    for temperature in (0.8, 0.0):
        batched = generate(pair, prompts[:4], method, temperature, new=10)
        assert tokens(batched) == tokens(generate(pair, prompts[:4], method, temperature, new=10, batch=1))


PROCESSED = [{"top_k": 5}, {"top_p": 0.8}, {"temperature": 0.7}, {"repetition_penalty": 1.3}, {"min_p": 0.1}]


@pytest.mark.parametrize("sampling", PROCESSED, ids=str)
def test_case_01_the_ratio_has_the_law_that_the_token_was_drawn_from(
    tiny_pair: Any, generate: Generate, sampling: dict[str, Any]
) -> None:
    """Planted fault: a filter is applied to one side only. 20,000 first tokens against the processed p, computed here
    from the target's logits."""
    pair, prompt, n = tiny_pair(), [3, 7, 4, 7], 20_000
    logits_V = pair.target(torch.tensor([prompt])).logits[0, -1].double() / sampling.get("temperature", 1.0)
    if "repetition_penalty" in sampling:
        seen = sorted(set(prompt))
        logits_V[seen] = torch.where(logits_V[seen] > 0, logits_V[seen] / 1.3, logits_V[seen] * 1.3)
    p_V = logits_V.softmax(-1)
    order = p_V.argsort(descending=True)
    kept = torch.ones(VOCAB, dtype=torch.bool)
    if "top_k" in sampling:
        kept[order[5:]] = False
    if "top_p" in sampling:
        kept[order[p_V[order].cumsum(0) - p_V[order] >= 0.8]] = False
    if "min_p" in sampling:
        kept = p_V >= 0.1 * p_V.max()
    p_V = p_V * kept / p_V[kept].sum()
    generations = generate(pair, [prompt] * n, "strict", batch=2500, new=2, **sampling)
    assert 0.1 < sum(generation.accepted for generation in generations) / n < 0.99
    assert_law(torch.tensor([generation.tokens[0] for generation in generations]), p_V)


def test_the_law_holds_in_bfloat16(tiny_pair: Any, generate: Generate) -> None:
    """Models in bfloat16, probabilities in float32: 20,000 first tokens against the bfloat16 target's own law."""
    pair, prompt, n = tiny_pair(), [3, 7, 4], 20_000
    pair.target, pair.draft = (copy.deepcopy(model).bfloat16() for model in (pair.target, pair.draft))
    for method, weight in (("strict", 1.0), ("static", 0.4)):
        generations = generate(pair, [prompt] * n, method, batch=2500, new=2, weight=weight)
        assert generations[0].p_T.dtype == torch.float32
        p_V, q_V = (
            model(torch.tensor([prompt])).logits[0, -1].double().softmax(-1) for model in (pair.target, pair.draft)
        )
        drawn = torch.tensor([generation.tokens[0] for generation in generations])
        assert_law(drawn, weight * p_V + (1 - weight) * q_V)


def test_case_02_prompt_lookup_emits_the_exact_law(tiny_pair: Any, generate: Generate) -> None:
    """Planted fault: a soft q for a draft that does not draw."""
    pair, prompt, n = tiny_pair(), [3, 7, 4, 3, 7, 4, 3], 4000
    generations = generate(pair, [prompt] * n, "strict", batch=500, new=2, drafter=DrafterKind.PROMPT_LOOKUP)
    assert all(generation.drafted == 1 for generation in generations)
    p_V = pair.target(torch.tensor([prompt])).logits[0, -1].double().softmax(-1)
    assert_law(torch.tensor([generation.tokens[0] for generation in generations]), p_V)


def test_features_are_the_vectors_that_feed_the_lm_heads(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    pair = tiny_pair()
    for prompt, generation in zip(prompts, generate(pair, prompts, "static", collect=True), strict=True):
        ids = torch.tensor([prompt + generation.tokens])
        judged = generation.kind_T != Kind.BONUS
        for model, part in ((pair.draft, slice(0, 32)), (pair.target, slice(32, 64))):
            hidden = model.model(ids).last_hidden_state[0, len(prompt) - 1 : -1]
            torch.testing.assert_close(generation.features_TD[judged][:, part], hidden[judged], atol=2e-5, rtol=1e-4)
        p = pair.target(ids).logits.softmax(-1)[0, len(prompt) - 1 : -1]
        q = pair.draft(ids).logits.softmax(-1)[0, len(prompt) - 1 : -1]
        index = torch.tensor(generation.tokens)[:, None]
        torch.testing.assert_close(generation.p_T, p.gather(1, index)[:, 0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(generation.q_T[judged], q.gather(1, index)[judged, 0], atol=1e-5, rtol=1e-4)
        tv = 0.5 * (p - q).abs().sum(-1)
        torch.testing.assert_close(generation.tv_T[judged], tv[judged], atol=1e-5, rtol=1e-4)
        assert generation.mask_T.tolist() == judged.float().tolist()


def test_features_are_not_collected_unless_asked_for(tiny_pair: Any, prompts: Any, generate: Generate) -> None:
    assert all(generation.features_TD is None for generation in generate(tiny_pair(), prompts, "diversed", head=head))


def test_stream_gives_the_same_tokens_and_frees_its_row(tiny_pair: Any, prompts: Any) -> None:
    settings = DecodeSettings(method=Method.STATIC, batch_size=2)
    engine = build_engine(tiny_pair(), settings)
    requests = [Request.of(prompt, 20, seed, settings) for seed, prompt in enumerate(prompts)]
    expected = engine.generate(requests)
    for request, whole in zip(requests, expected, strict=True):
        pieces = list(engine.stream(request))
        assert [token for piece, _ in pieces for token in piece] == whole.tokens
        assert pieces[-1][1] is not None
        assert pieces[-1][1].tokens == whole.tokens
        assert all(generation is None for _, generation in pieces[:-1])
    abandoned = engine.stream(requests[0])
    next(abandoned)
    abandoned.close()
    assert tokens(engine.generate(requests)) == tokens(expected)


def test_an_error_inside_a_model_leaves_the_engine_usable(
    tiny_pair: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DecodeSettings(method=Method.STRICT, batch_size=4)
    engine = build_engine(tiny_pair(), settings)
    requests = [Request.of(prompt, 12, seed, settings) for seed, prompt in enumerate(prompts)]
    expected = tokens(engine.generate(requests))
    calls = iter(range(100))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise RuntimeError("planted")
        return original(*args, **kwargs)

    original = engine.target.verify
    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "verify", failing)
        with pytest.raises(RuntimeError, match="planted"):
            engine.generate(requests)
    assert tokens(engine.generate(requests)) == expected


def test_growing_caches_keep_running_rows(tiny_pair: Any, prompts: Any) -> None:
    """A long request joins while short ones run: the caches grow under them."""
    settings = DecodeSettings(method=Method.STRICT, temperature=0.0, batch_size=2)
    budgets = [8, 4, 90, 30, 120]
    requests = [Request.of(p, b, i, settings) for i, (p, b) in enumerate(zip(prompts, budgets, strict=False))]
    together = build_engine(tiny_pair(), settings).generate(requests)
    alone = [build_engine(tiny_pair(), settings).generate([request])[0] for request in requests]
    assert tokens(together) == tokens(alone)


def test_bad_requests_are_refused_before_anything_runs(tiny_pair: Any) -> None:
    engine = build_engine(tiny_pair(), DecodeSettings(method=Method.STRICT))
    with pytest.raises(RequestError, match="prompt: has no token"):
        engine.generate([Request((), 4, 0)])
    with pytest.raises(RequestError, match="max_new_tokens = 0"):
        engine.generate([Request((3,), 0, 0)])
    with pytest.raises(RequestError, match="200 tokens \\+ max_new_tokens 57 = 257 exceed the target's context of 256"):
        engine.generate([Request((3,) * 200, 57, 0)])
    with pytest.raises(ConfigError, match="needs a verifier"):
        build_engine(tiny_pair(), DecodeSettings(method=Method.DIVERSED))
    assert len(engine.generate([Request((3,) * 200, 56, 0)])[0].tokens) == 56


# -- the real pairs -----------------------------------------------------------------------------------------------


def equivalences(pair: Any, texts: list[str], new: int, generate: Generate) -> None:
    """Strict greedy == autoregressive greedy at batch 1 and 8, w = 1 == strict, draft == target accepts all."""
    ids = [pair.encode(text) for text in texts]
    expected = tokens(generate(pair, ids, "autoregressive", 0.0, batch=1, new=new))
    for batch in (1, 8):
        assert tokens(generate(pair, ids, "autoregressive", 0.0, batch, new=new)) == expected
        assert tokens(generate(pair, ids, "strict", 0.0, batch, new=new)) == expected
    strict = generate(pair, ids, "strict", 1.0, new=new)
    assert tokens(generate(pair, ids, "static", 1.0, weight=1.0, new=new)) == tokens(strict)
    pair.__dict__["draft"] = pair.target
    same = generate(pair, ids, "strict", 1.0, new=new)
    assert all(generation.accepted == generation.drafted for generation in same)


def test_equivalences_on_the_arithmetic_pair(generate: Generate) -> None:
    from diversed.settings import TaskSettings
    from diversed.tasks import Split, get_task

    task = TaskSettings(max_new_tokens=60, test_size=16)
    texts = [example.prompt for example in get_task("arithmetic").examples(task, Split.TEST, 0)]
    equivalences(load_pair(PairSettings(name="arithmetic")), texts, 60, generate)


@pytest.mark.smollm2
@pytest.mark.timeout(1800)
def test_equivalences_on_smollm2(smollm2_cache: Any, generate: Generate) -> None:
    texts = [
        "The capital of France is",
        "Once upon a time, in a village by the sea,",
        "def fibonacci(n):",
        "1, 2, 3,",
    ] * 2
    equivalences(
        load_pair(PairSettings(name="smollm2")), [f"{t} {'and ' * i}" for i, t in enumerate(texts)], 32, generate
    )
