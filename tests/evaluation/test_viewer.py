"""The page of texts token by token, from traces made by hand. Nothing is decoded here."""

import math
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from diversed.evaluation.viewer import KINDS, TENTHS, TokenTrace, Trace, trace_page

VOID = {"meta", "link", "wbr"}
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\" onfocus='x'",
    "&amp;",
    "$body ${p}",
]


class Page(HTMLParser):
    """A page as a browser reads it: tags that are open when they should be, attributes, text of each element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str]]] = []
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []  # tag, attributes, pieces of text
        self.feed(page)
        self.close()
        assert self.open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.found.append((tag, dict(attrs), text))
        if tag not in VOID:
            self.open.append((tag, text))

    def handle_endtag(self, tag: str) -> None:
        opened, _ = self.open.pop()
        assert opened == tag

    def handle_data(self, data: str) -> None:
        for _, text in self.open:
            text.append(data)

    def tokens(self) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of every token of every text."""
        spans = [(attributes, "".join(text)) for tag, attributes, text in self.found if tag == "span"]
        return [(attributes, text) for attributes, text in spans if attributes.get("role") == "button"]

    def texts(self, tag: str) -> list[str]:
        return [" ".join("".join(text).split()) for name, _, text in self.found if name == tag]


def token(text: str = " a", kind: str = "accepted", round: int = 0, **numbers: float | None) -> TokenTrace:  # noqa: A002
    known = {"p": 0.5, "q": 0.25, "tv": 0.125, "w": 0.9, "overshoot": 1.0} | numbers
    return TokenTrace(text, kind, round, **known)  # type: ignore[arg-type]


def trace(*tokens: TokenTrace, title: str = "diversed, N = 7, T = 1", prompt: str = "6 + 2 =", **facts: str) -> Trace:
    return Trace(title, prompt, list(tokens), facts)


def mixed() -> Trace:
    """Ten tokens in four rounds: 4 accepted, 2 relaxed, 2 replaced, 1 bonus, 1 of the target."""
    kinds = [
        ("accepted", 0), ("relaxed", 0), ("bonus", 0), ("accepted", 1), ("accepted", 1), ("replaced", 1),
        ("accepted", 2), ("relaxed", 2), ("replaced", 2), ("target", 3),
    ]  # fmt: skip
    return trace(*(token(f" {i}", kind, turn, overshoot=1 + i / 10) for i, (kind, turn) in enumerate(kinds)))


class TestText:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_text_stays_text_wherever_it_comes_from(self, text: str) -> None:
        plain = Page(trace_page([trace(token("a", overshoot=3.0), title="t", prompt="p", a="b")]))
        hostile = Page(trace_page([trace(token(text, overshoot=3.0), title=text, prompt=text, **{text: text})]))
        assert [(tag, set(attributes)) for tag, attributes, _ in hostile.found] == [
            (tag, set(attributes)) for tag, attributes, _ in plain.found
        ]
        ((attributes, shown),) = hostile.tokens()
        assert shown == text
        assert attributes["aria-label"] == f"“{text}”"
        for tag in ("h2", "dt", "dd", "a"):
            assert " ".join(text.split()) in hostile.texts(tag)

    def test_a_copy_of_the_text_is_the_text(self) -> None:
        """Marks of blanks are drawn by the style sheet."""
        pieces = ["Let", " x", "\n", "\n    ", "", "\treturn", "  y ", "\n\n"]
        page = trace_page([trace(*(token(piece, round=i // 3) for i, piece in enumerate(pieces)))])
        assert [text for _, text in Page(page).tokens()] == pieces
        (whole,) = ["".join(t) for _, attributes, t in Page(page).found if attributes.get("class") == "text"]
        assert whole == "".join(pieces)
        assert page.count('<i class="nl">') == 4
        assert page.count('<i class="sp">') == 1 + 4 + 2
        assert page.count('<i class="none">') == 1

    def test_control_characters_are_seen(self) -> None:
        ((attributes, shown),) = Page(trace_page([trace(token("\x00\x1b\r"))])).tokens()
        assert (shown, attributes["aria-label"]) == ("␀␛␍", "“␀␛␍”")

    def test_rounds_are_parted(self) -> None:
        assert trace_page([mixed()]).count('<i class="cut">') == 3


class TestNumbers:
    def test_unknown_numbers_are_dashes(self) -> None:
        one = token(" a", "target", 4, q=None, tv=None, w=None, overshoot=None)
        ((attributes, _),) = Page(trace_page([trace(one)])).tokens()
        shown = {name: attributes[f"data-{name}"] for name in ("p", "q", "tv", "w", "overshoot", "kind", "round")}
        assert shown == {
            "p": "0.5", "q": "–", "tv": "–", "w": "–", "overshoot": "–", "kind": "the target's own step", "round": "4",
        }  # fmt: skip
        assert "style" not in attributes

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (3e-7, "3e-7"), (1.2345e-12, "1.23e-12"), (0.00012, "0.00012"), (0.123456, "0.123"), (0.0, "0"), (1.0, "1"),
            (41234.0, "4.12e4"), (1e10, "1e10"), (math.inf, "∞"),
        ],
    )  # fmt: skip
    def test_numbers_are_readable_at_every_size(self, value: float, shown: str) -> None:
        ((attributes, _),) = Page(trace_page([trace(token(p=value, overshoot=value))])).tokens()
        assert attributes["data-p"] == shown
        assert attributes["data-overshoot"] == f"{shown}×"

    def test_every_number_of_a_token_has_its_line_in_the_panel(self) -> None:
        page = Page(trace_page([trace(token())]))
        lines = {attributes["data-of"] for _, attributes, _ in page.found if "data-of" in attributes}
        ((attributes, _),) = page.tokens()
        assert lines == {name.removeprefix("data-") for name in attributes if name.startswith("data-")}

    @pytest.mark.parametrize(("w", "tenth"), [(0.0, 0), (0.0999, 0), (0.1, 1), (0.55, 5), (0.9, 9), (1.0, 9)])
    def test_the_weight_colours(self, w: float, tenth: int) -> None:
        ((attributes, _),) = Page(trace_page([trace(token(w=w))])).tokens()
        assert attributes["style"] == f"background:var(--w{tenth})"


class TestCounts:
    def test_legend_counts_every_kind(self) -> None:
        assert Page(trace_page([mixed()])).texts("li") == [
            "abc accepted, by strict too: 4 (40.0%)",
            "abc accepted, not by strict: 2 (20.0%)",
            "abc replaces a rejected draft: 2 (20.0%)",
            "abc bonus after the drafts: 1 (10.0%)",
            "abc the target's own step: 1 (10.0%)",
        ]

    def test_summary(self) -> None:
        """Judged are 4 + 2 + 2."""
        told = "10 tokens in 4 rounds, 2.50 a round. Of 8 judged tokens 75.0% were accepted; 25.0% only because"
        assert f"{told} the rule is relaxed." in Page(trace_page([mixed()])).texts("p")

    def test_autoregressive_judges_nothing(self) -> None:
        steps = trace(*(token(kind="target", round=i, q=None, w=None) for i in range(3)))
        assert "3 tokens in 3 rounds, 1.00 a round. No token was judged." in Page(trace_page([steps])).texts("p")

    def test_the_five_most_overshooting_tokens_lead_to_their_places(self) -> None:
        page = Page(trace_page([mixed()]))
        cells = page.texts("td")
        assert cells[0::5] == ["9", "8", "7", "6", "5"]
        assert cells[1::5] == ["1.9×", "1.8×", "1.7×", "1.6×", "1.5×"]
        links = [attributes["href"] for tag, attributes, _ in page.found if tag == "a"]
        assert links == [f"#token-0-{i}" for i in (9, 8, 7, 6, 5)]
        assert {link[1:] for link in links if link} <= {attributes["id"] for attributes, _ in page.tokens()}

    def test_a_rule_that_bends_nothing_has_no_such_table(self) -> None:
        page = trace_page([trace(token(overshoot=1.0000002), token(overshoot=0.3), token(overshoot=None))])
        assert "<table>" not in page


class TestPage:
    def test_same_traces_same_bytes(self) -> None:
        assert trace_page([mixed(), trace()]) == trace_page([mixed(), trace()])

    def test_nothing_to_show(self) -> None:
        assert "There is no text to show." in Page(trace_page([])).texts("p")
        page = Page(trace_page([trace()]))
        assert "The generation holds no token." in page.texts("p")
        assert page.texts("li")[0] == "abc accepted, by strict too: 0 (–)"

    def test_it_needs_no_network(self) -> None:
        page = trace_page([mixed(), mixed()])
        assert "http" not in page
        assert not re.search(r"url\(|@import|\bsrc=", page)
        links = [attributes["href"] or "" for _, attributes, _ in Page(page).found if "href" in attributes]
        assert all(link.startswith("#") or link == "data:," for link in links)

    def test_each_text_is_one_stop_of_tab(self) -> None:
        stops = [attributes["tabindex"] for attributes, _ in Page(trace_page([mixed(), mixed()])).tokens()]
        assert stops == ["0", *["-1"] * 9] * 2

    def test_several_texts_have_a_menu_and_no_name_twice(self) -> None:
        page = Page(trace_page([mixed(), mixed(), trace()]))
        names = [attributes["id"] for _, attributes, _ in page.found if "id" in attributes]
        assert len(set(names)) == len(names)
        menu = [attributes["href"] for tag, attributes, _ in page.found if tag == "a"][:3]
        assert menu == ["#text-0", "#text-1", "#text-2"]
        assert not any("title" in attributes for _, attributes, _ in page.found)


class TestStyle:
    def test_every_mark_but_the_plain_one_is_drawn(self) -> None:
        style = template()
        rules = {kind: re.search(rf"^\.{kind} {{ (border.*) }}", style, flags=re.MULTILINE) for kind in KINDS}
        drawn = [rule[1] for rule in rules.values() if rule]
        assert [kind for kind, rule in rules.items() if not rule] == ["accepted"]
        assert len(set(drawn)) == len(KINDS) - 1

    def test_text_reads_on_every_background_light_and_dark(self) -> None:
        """WCAG's contrast, and lightness that goes one way only, which every eye sees."""
        schemes = re.findall(r":root {(.*?)}", template(), flags=re.DOTALL)
        assert len(schemes) == 2
        for scheme in schemes:
            colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
            scale = [luminance(colours[f"w{tenth}"]) for tenth in range(TENTHS)]
            assert all(contrast(luminance(colours["text"]), shade) >= 4.5 for shade in scale)
            assert scale in (sorted(scale), sorted(scale, reverse=True))
            for ground in ("page", "raised"):
                for name in ("text", "muted", "link"):
                    assert contrast(luminance(colours[name]), luminance(colours[ground])) >= 4.5


def template() -> str:
    return (resources.files("diversed.evaluation") / "viewer.html").read_text(encoding="utf-8")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
