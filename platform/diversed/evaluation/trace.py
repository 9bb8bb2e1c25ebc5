"""A generation token by token, as the viewer shows it: from what the engine recorded and the request's own noise."""

from collections.abc import Mapping

from diversed.decoding import Generation
from diversed.evaluation.viewer import TokenTrace, Trace
from diversed.models import Detokenizer, Pair
from diversed.settings import DecodeSettings, Method
from diversed.verification import AUDIT, Kind

__all__ = ["trace_of"]

WEIGHTED = (Method.STATIC, Method.DIVERSED)  # rules that have a weight on the target
OUTPUT, BEST = AUDIT.index("output_probability"), AUDIT.index("best_probability")


def trace_of(
    pair: Pair, generation: Generation, decode: DecodeSettings, prompt: str, facts: Mapping[str, str]
) -> Trace:
    """`generation` was made by `decode`'s rule from `prompt`, audited. ValueError if it was not audited.

    An accepted token is "relaxed" where strict verification would have rejected it with the same random number: where
    `u >= p/q`, or, at temperature 0, where it is not the target's best token.
    """
    if generation.audit_TA is None:
        raise ValueError("a trace needs an audited generation")
    request = generation.request
    greedy = request.temperature == 0
    coins = request.noise_T3[:, 1].tolist()
    pieces, rounds = _pieces(pair, generation), _rounds(generation)
    numbers = zip(
        generation.kind_T.tolist(),
        *(getattr(generation, f"{name}_T").tolist() for name in ("p", "q", "tv", "w")),
        generation.audit_TA[:, OUTPUT].tolist(),
        generation.audit_TA[:, BEST].tolist(),
        strict=True,
    )
    drafted = generation.drafted_R.tolist()
    tokens = []
    for i, (kind, p, q, tv, w, out, best) in enumerate(numbers):
        judged = kind != Kind.BONUS
        strict_keeps = p >= best if greedy else coins[i] * q < p
        names = {
            Kind.ACCEPTED: "accepted" if strict_keeps else "relaxed",
            Kind.REPLACEMENT: "replaced",
            Kind.BONUS: "bonus" if drafted[rounds[i]] else "target",
        }
        tokens.append(
            TokenTrace(
                text=pieces[i],
                kind=names[Kind(kind)],
                round=rounds[i],
                p=p,
                q=q if judged else None,
                tv=tv if judged else None,
                w=w if judged and decode.method in WEIGHTED else None,
                overshoot=out / p if p > 0 and out == out and not greedy else None,
            )
        )
    parameters = f", N = {decode.draft_length}" if decode.method.drafts else ""
    title = f"{decode.method}{parameters}, T = {request.temperature:g}"
    return Trace(title, prompt, tokens, dict(facts))


def _pieces(pair: Pair, generation: Generation) -> list[str]:
    """The text that each token adds; a token without text that ends the output is shown by its name."""
    tokenizer = pair.tokenizer
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in generation.tokens]
    if pieces:
        pieces[-1] += detokenizer.finish()
    return [
        str(tokenizer.convert_ids_to_tokens(token)) if not piece and token in pair.eos_ids else piece
        for token, piece in zip(generation.tokens, pieces, strict=True)
    ]


def _rounds(generation: Generation) -> list[int]:
    """The number of each token's round: a round emits what it accepted and one token more."""
    numbers = [number for number, n in enumerate(generation.accepted_R.tolist()) for _ in range(n + 1)]
    return numbers[: len(generation.tokens)]
