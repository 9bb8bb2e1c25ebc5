"""Generated texts token by token, as one HTML page: who wrote each token, and how far the rule bent the target's law.

The page is made of escaped text here; its own script only moves numbers of a token into a panel. It loads nothing.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from math import isinf
from string import Template

__all__ = ["TokenTrace", "Trace", "trace_page"]

# In the order of the legend. What marks a kind, besides these words, is a class of the same name in viewer.html.
KINDS = {
    "accepted": "accepted, by strict too",
    "relaxed": "accepted, not by strict",
    "replaced": "replaces a rejected draft",
    "bonus": "bonus after the drafts",
    "target": "the target's own step",
}
JUDGED = ("accepted", "relaxed", "replaced")
TENTHS = 10  # the scale's colours
TOP = 5
LONG = 16  # characters of a token that may need more than a line of a narrow screen
NOISE = 1e-3  # an overshoot this near to 1 is arithmetic's, not the rule's
UNKNOWN = "–"
BLANKS = {" ": "sp", "\t": "tab", "\n": "nl"}
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in BLANKS}  # HTML has no control characters


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """One emitted token. Relaxed and accepted differ in what strict would have done with the same random number."""

    text: str
    kind: str  # "accepted", "relaxed", "replaced", "bonus", or "target": a step without a drafter
    round: int  # from 0
    p: float  # the target's probability of the token
    q: float | None  # the draft's; None where nothing was drafted
    tv: float | None  # TV(p, q) at the position
    w: float | None  # weight on the target; None where the rule has none
    overshoot: float | None  # out(x)/p(x): how many times likelier the rule emits it than the target would


@dataclass(frozen=True, slots=True)
class Trace:
    """One generation, and what a reader should know about it."""

    title: str
    prompt: str
    tokens: list[TokenTrace]
    facts: dict[str, str]


def trace_page(traces: Sequence[Trace]) -> str:
    """The page, the same bytes for the same traces."""
    template = Template((resources.files("diversed.evaluation") / "viewer.html").read_text(encoding="utf-8"))
    scale = "".join(
        f'<i class="t" style="background:var(--w{tenth})">{tenth / TENTHS:.1f}</i>' for tenth in range(TENTHS)
    )
    body = [_section(number, trace) for number, trace in enumerate(traces)] or ["<p>There is no text to show.</p>"]
    if len(traces) > 1:
        links = (f'<li><a href="#text-{i}">{escape(trace.title)}</a></li>' for i, trace in enumerate(traces))
        body.insert(0, f'<nav aria-label="texts"><ul>{"".join(links)}</ul></nav>')
    return template.substitute(scale=scale, body="\n".join(body))


def _section(number: int, trace: Trace) -> str:
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in trace.facts.items()
    )
    parts = [
        f'<section id="text-{number}" aria-labelledby="title-{number}">',
        f'<h2 id="title-{number}">{escape(trace.title)}</h2>',
        f'<dl class="facts">{facts}</dl>' if facts else "",
        f'<details open><summary>prompt</summary><div class="prompt">{_visible(trace.prompt)}</div></details>',
        f"<p>{_summary(trace.tokens)}</p>",
        _legend(trace.tokens),
        _text(number, trace.tokens),
        _most_overshooting(number, trace.tokens),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _summary(tokens: Sequence[TokenTrace]) -> str:
    if not tokens:
        return "The generation holds no token."
    kinds, rounds = Counter(token.kind for token in tokens), len({token.round for token in tokens})
    judged = sum(kinds[kind] for kind in JUDGED)
    line = f"<b>{len(tokens)}</b> tokens in <b>{rounds}</b> rounds, <b>{len(tokens) / rounds:.2f}</b> a round."
    if not judged:
        return f"{line} No token was judged."
    return (
        f"{line} Of <b>{judged}</b> judged tokens <b>{_share(judged - kinds['replaced'], judged)}</b> were accepted;"
        f" <b>{_share(kinds['relaxed'], judged)}</b> only because the rule is relaxed."
    )


def _legend(tokens: Sequence[TokenTrace]) -> str:
    """Every mark, with how many tokens bear it."""
    counts, items = Counter(token.kind for token in tokens), []
    for kind, words in KINDS.items():
        share = _share(counts[kind], len(tokens))
        items.append(f'<li><span class="t {kind}">abc</span> {words}: <b>{counts[kind]}</b> ({share})</li>')
    return f'<ul class="kinds" aria-label="kinds of tokens">{"".join(items)}</ul>'


def _text(number: int, tokens: Sequence[TokenTrace]) -> str:
    if not tokens:
        return ""
    parts = []
    for place, token in enumerate(tokens):
        if place and token.round != tokens[place - 1].round:
            parts.append('<i class="cut"></i>')
        if token.text[:1] in BLANKS:
            parts.append("<wbr>")
        parts.append(_span(f"token-{number}-{place}", token, first=place == 0))
    return f'<div class="text" role="group" aria-label="text, token by token" translate="no">{"".join(parts)}</div>'


def _span(name: str, token: TokenTrace, *, first: bool) -> str:
    """A token, with what the panel shows of it. Tab stops at the first; from there the page's script goes on.

    A line may end before a short token, not after its leading space.
    """
    marks = f"t {token.kind} long" if len(token.text) > LONG else f"t {token.kind}"
    shown = {**_numbers(token), "kind": KINDS[token.kind], "round": str(token.round)}
    data = " ".join(f'data-{key}="{value}"' for key, value in shown.items())
    return (
        f'<span class="{marks}" id="{name}" tabindex="{0 if first else -1}" role="button"'
        f' aria-label="{escape(_label(token.text))}" {data}{_background(token.w)}>{_visible(token.text)}</span>'
    )


def _background(w: float | None) -> str:
    if w is None:
        return ""
    return f' style="background:var(--w{min(max(int(w * TENTHS), 0), TENTHS - 1)})"'


def _most_overshooting(number: int, tokens: Sequence[TokenTrace]) -> str:
    """The tokens that the rule emits most above the target's law, each a link to its place."""
    over = [(token.overshoot, i) for i, token in enumerate(tokens) if token.overshoot and token.overshoot > 1 + NOISE]
    if not over:
        return ""
    rows = []
    for _, i in sorted(over, key=lambda pair: (-pair[0], pair[1]))[:TOP]:
        numbers = _numbers(tokens[i])
        cells = "".join(f"<td>{numbers[name]}</td>" for name in ("overshoot", "p", "q", "w"))
        link = f'<a class="t long" href="#token-{number}-{i}">{_visible(tokens[i].text)}</a>'
        rows.append(f"<tr><td>{link}</td>{cells}</tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("token", "out/p", "p", "q", "w"))
    return (
        "<h3>Most above the target's law</h3>\n"
        f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _visible(text: str) -> str:
    """The text, escaped. Newlines, tabs and spaces at a line's begin get marks, which are not copied with the text."""
    if not text:
        return '<i class="none"></i>'
    return re.sub(
        r"(?m)^ +|\t|\n",
        lambda blanks: "".join(f'<i class="{BLANKS[blank]}">{blank}</i>' for blank in blanks[0]),
        escape(text.translate(PICTURES)),
    )


def _label(text: str) -> str:
    """A token's name, in one line."""
    return f"“{text.translate(PICTURES | {9: '⇥', 10: '↵'})}”" if text else "empty token"


def _numbers(token: TokenTrace) -> dict[str, str]:
    overshoot = _number(token.overshoot)
    return {
        "p": _number(token.p),
        "q": _number(token.q),
        "tv": _number(token.tv),
        "w": _number(token.w),
        "overshoot": overshoot if token.overshoot is None else f"{overshoot}×",
    }


def _number(value: float | None) -> str:
    """Three digits; what is rare keeps its power of ten: 3e-7."""
    if value is None:
        return UNKNOWN
    return "∞" if isinf(value) else re.sub(r"e([+-])0*", lambda sign: f"e{sign[1].strip('+')}", f"{value:.3g}")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else UNKNOWN
