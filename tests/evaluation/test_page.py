"""The page from comparisons made by hand: verdicts, words, tables, figures. Nothing is decoded here."""

import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from diversed.errors import DataError
from diversed.evaluation.curves import ORDER, Outcome, detectable, families
from diversed.evaluation.intervals import Estimate
from diversed.evaluation.metrics import MethodSummary
from diversed.evaluation.page import Verdict, page, page_markdown, read_published, verdicts
from diversed.evaluation.page_figures import STYLES
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

N = 100
PUBLISHED: dict[str, Any] = {
    "source": "the paper",
    "notes": ["Orderings only."],
    "pairs": {"llama": ["big llama", "small llama"]},
    "cells": [
        {"pair": "llama", "temperature": 1.0, "method": "strict", "gsm8k": [44.6, 67], "xsum": None},
        {"pair": "llama", "temperature": 1.0, "method": "speccascade", "gsm8k": [61.53, 66.5]},
        {"pair": "llama", "temperature": 0.0, "method": "strict", "gsm8k": [71.25, 80]},
        {"pair": "llama", "temperature": 1.0, "method": "diversed", "xsum": [70.53, 7.23]},
    ],
    "transfer_T1": {"llama": {"xsum_on_gsm8k": [72.57, 62]}},
}


def about(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half, N)


def row(
    label: str,
    method: str,
    accepts: float | None,
    quality: float,
    parameters: dict[str, float | str] | None = None,
    half: float = 0.05,
    speed: dict[str, Estimate] | None = None,
) -> MethodRow:
    metrics = {"quality": about(quality, half), "truncated": about(0.07)}
    if accepts is not None:
        metrics |= {"token_acceptance": about(accepts), "acceptance_rate": about(accepts - 0.2)}
        metrics |= {"mean_weight": about(0.4), "block_efficiency": about(3.14)}
    against = {"quality": Estimate(quality - 0.5, quality - 0.55, quality - 0.45, N)} if method != "strict" else {}
    summary = MethodSummary(label, N, metrics, [4, 3, 3] if accepts is not None else [9])
    return MethodRow(label, method, parameters or {}, summary, against, {}, None, speed or {})


def comparison(*rows: MethodRow, label: str = "tiny-gsm8k", metric: str = "accuracy", **origin: Any) -> Comparison:
    known = {
        "date": "2026-11-30T12:00:00+00:00", "git_commits": ["0123456789abcdef"], "git_dirty": False,
        "machine": "abacus", "command": ["/usr/bin/python", "-m", "jobs.evaluate"], "seed": 0, "temperature": 1.0,
        "draft_length": 5, "max_new_tokens": 60, "speed": None, "run_id": "run-a",
    }  # fmt: skip
    return Comparison(label, metric, known | origin, list(rows))


STRICT = row("strict", "strict", 0.6, 0.50)
STATIC = row("static w=0.5", "static", 0.8, 0.30, {"weight": 0.5})
GRID = [
    row("autoregressive", "autoregressive", None, 0.52),
    STRICT,
    STATIC,
    row("static w=0.9", "static", 0.64, 0.46, {"weight": 0.9}),
    row("lossy alpha=0.5", "lossy", 0.65, 0.45, {"alpha": 0.5}),
    row("opt alpha=0.5", "opt", 0.75, 0.35, {"alpha": 0.5}),
    row("diversed", "diversed", 0.7, 0.60),
    row("diversed (seed1)", "diversed", 0.71, 0.58),
]


def tables(markdown: str) -> list[list[str]]:
    """The tables of a Markdown text, each as its lines."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n?)+", markdown, flags=re.MULTILINE)]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("quality", "half", "outcome"),
        [
            (0.60, 0.05, Outcome.ABOVE),  # from 0.55, over 0.45
            (0.505, 0.05, Outcome.ABOVE),
            (0.495, 0.05, Outcome.LEVEL),
            (0.31, 0.05, Outcome.LEVEL),  # up to 0.36, over 0.35
            (0.29, 0.05, Outcome.BELOW),
        ],
    )
    def test_between_two_points(self, quality: float, half: float, outcome: Outcome) -> None:
        """Half way from strict's 0.50 to the ensemble's 0.30 the curve is at 0.40, from 0.35 to 0.45."""
        verdict = verdicts(comparison(STRICT, STATIC, row("diversed", "diversed", 0.7, quality, half=half)))[1]
        assert (verdict.rule, verdict.outcome) == ("static w=0.5", outcome)
        assert verdict.quality is not None
        assert (verdict.quality.value, verdict.quality.low, verdict.quality.high) == pytest.approx((0.40, 0.35, 0.45))

    def test_a_rule_that_never_accepts_as_much(self) -> None:
        found = {verdict.rule: verdict for verdict in verdicts(comparison(*GRID))}
        assert found["lossy alpha=0.5"] == Verdict("lossy alpha=0.5", Outcome.NEVER, about(0.65), None)
        assert found["strict"].outcome is Outcome.NEVER
        assert list(found) == [
            "strict",
            "static",
            "lossy alpha=0.5",
            "opt alpha=0.5",
        ]  # one for each rule, none for autoregressive

    def test_an_end_that_accepts_as_much_up_to_the_intervals(self) -> None:
        """0.70 +- 0.01 and 0.685 +- 0.01 are not told apart."""
        near = row("lossy alpha=0.5", "lossy", 0.685, 0.45, {"alpha": 0.5})
        verdict = verdicts(comparison(STRICT, near, row("diversed", "diversed", 0.7, 0.60)))[1]
        assert (verdict.outcome, verdict.quality) == (Outcome.ABOVE, about(0.45, 0.05))

    def test_a_curve_that_begins_above(self) -> None:
        ours = row("diversed", "diversed", 0.7, 0.60)
        verdict = verdicts(comparison(row("draft-only", "draft-only", 1.0, 0.1), ours))[0]
        assert (verdict.outcome, verdict.quality) == (Outcome.ABOVE, about(0.1, 0.05))

    def test_the_better_of_two_points_with_that_acceptance(self) -> None:
        rows = [row(f"lossy alpha={a}", "lossy", 0.7, q, {"alpha": a}) for a, q in ((0.4, 0.58), (0.5, 0.2))]
        verdict = verdicts(comparison(STRICT, *rows, row("diversed", "diversed", 0.7, 0.60)))[1]
        assert verdict.outcome is Outcome.LEVEL

    def test_a_seed(self) -> None:
        found = verdicts(comparison(*GRID), "diversed (seed1)")
        assert found[1].quality is not None
        assert found[1].quality.value == pytest.approx(0.39)
        assert verdicts(comparison(*GRID), "diversed (seed7)") == []
        assert verdicts(comparison(STRICT, STATIC)) == []

    @pytest.mark.parametrize(
        ("rows", "answer"),
        [
            ([STATIC], "Yes, above each that accepts as much."),
            ([STATIC, row("lossy alpha=0.5", "lossy", 0.8, 0.65, {"alpha": 0.5})], "Not shown."),
            ([STATIC, row("lossy alpha=0.5", "lossy", 0.71, 0.80, {"alpha": 0.5})], "No."),
            ([], "No other rule accepts as much."),
        ],
    )
    def test_the_answer_in_words(self, rows: list[MethodRow], answer: str) -> None:
        text = page_markdown([comparison(STRICT, *rows, row("diversed", "diversed", 0.7, 0.60))])
        assert f"- **tiny-gsm8k, T = 1, N = 5: {answer}** DIVERSED accepts 70.0" in text
        assert "Never accept as much: strict (at most 60.0%)." in text

    def test_without_diversed(self) -> None:
        assert "no acceptance of DIVERSED to compare at" in page([comparison(STRICT, STATIC)])


def test_families() -> None:
    """By rule and fixed parameters, in the order of the one that varies."""
    rows = [
        row("static w=0.2 cap=2", "static", 0.7, 0.4, {"weight": 0.2, "cap": 2.0}),
        row("static w=0.5", "static", 0.8, 0.3, {"weight": 0.5}),
        row("static w=0.9", "static", 0.6, 0.4, {"weight": 0.9}),
        row("typical fallback=sample repaired", "typical", 0.7, 0.4, {"fallback": "sample", "repaired": "yes"}),
        row("typical fallback=sample", "typical", 0.7, 0.4, {"fallback": "sample"}),
        row("trt-llm delta=0.6 top=2", "trt-llm", 0.7, 0.4, {"delta": 0.6, "top": 2.0}),
        row("trt-llm delta=0.6 top=10", "trt-llm", 0.7, 0.4, {"delta": 0.6, "top": 10.0}),
        row("cactus", "cactus", 0.7, 0.4),
        row("cactus delta=1", "cactus", 0.9, 0.4, {"delta": 1.0}),
        row("diversed (seed1)", "diversed", 0.7, 0.6),
        row("diversed", "diversed", 0.8, 0.6),
    ]
    found = {family.label: [member.label for member in family.rows] for family in families(comparison(*rows))}
    assert list(found.items()) == [
        ("static", ["static w=0.9", "static w=0.5"]),
        ("static w=0.2 cap=2", ["static w=0.2 cap=2"]),
        ("cactus", ["cactus", "cactus delta=1"]),
        ("typical fallback=sample", ["typical fallback=sample"]),
        ("typical fallback=sample repaired", ["typical fallback=sample repaired"]),
        ("trt-llm delta=0.6", ["trt-llm delta=0.6 top=2", "trt-llm delta=0.6 top=10"]),
        ("diversed", ["diversed", "diversed (seed1)"]),
    ]


def test_every_method_has_its_place_and_its_look() -> None:
    assert sorted(ORDER) == sorted(Method)
    assert set(STYLES) == set(Method)
    assert len(set(STYLES.values())) == len(STYLES)


def test_what_n_can_show() -> None:
    """An interval of +-5 points reaches 1.96 standard errors: 80% power asks for 0.84 more of them, 7.1 points."""
    assert detectable(comparison(*GRID)) == pytest.approx([0.05 * (1.959964 + 0.841621) / 1.959964] * 7, rel=1e-5)
    told = "n = 100: 7.1 points of accuracy (median over 7 methods; 7.1 to 7.1)"
    assert told in page([comparison(*GRID)])
    assert told in page_markdown([comparison(*GRID)])


class TestTables:
    def test_numbers_are_those_of_the_estimates(self) -> None:
        """The full table, number by number, in both forms."""
        speed = {"speedup_measured": about(2.0, 0.25), "speedup_predicted": about(1.5, 0.125)}
        text = comparison(STRICT, row("diversed", "diversed", 0.7, 0.6, speed=speed))
        line = next(line for line in page_markdown([text]).splitlines() if line.startswith("| **diversed** | 60.0"))
        assert cells(line)[1:9] == [
            "60.0<br><sub>55.0–65.0</sub>", "+10.0<br><sub>+5.0 – +15.0</sub>", "70.0<br><sub>69.0–71.0</sub>",
            "50.0<br><sub>49.0–51.0</sub>", "–", "3.14<br><sub>3.13–3.15</sub>", "2.00<br><sub>1.75–2.25</sub>",
            "1.50<br><sub>1.38–1.62</sub>",
        ]  # fmt: skip
        assert cells(line)[9:] == ["–"] * 6 + ["7.0<br><sub>6.0–8.0</sub>", "–", "–"]
        html_line = next(
            line
            for line in page([text]).splitlines()
            if line.startswith('<tr class="diversed first"') and "+10.0" in line
        )
        told = [cell.replace("<br><sub>", "<small>").replace("</sub>", "</small>") for cell in cells(line)[1:]]
        assert re.findall(r"<td>(.*?)</td>", html_line) == told

    def test_paper_layout(self) -> None:
        """Tasks across; a method that one task lacks has a dash there."""
        other = comparison(
            STRICT, row("diversed", "diversed", 0.9, 0.2), label="tiny-xsum", metric="rouge2", run_id="run-b"
        )
        text = page_markdown([comparison(*GRID), other])
        layout = next(table for table in tables(text) if "xsum: rouge2" in table[0])
        assert cells(layout[0]) == [
            "method", "gsm8k: acceptance, %", "gsm8k: accuracy, %", "xsum: acceptance, %", "xsum: rouge2, %",
        ]  # fmt: skip
        assert [cells(line)[0] for line in layout[2:]] == [
            "autoregressive", "strict", "static w=0.9", "static w=0.5", "lossy alpha=0.5", "opt alpha=0.5",
            "**diversed**", "**diversed (seed1)**",
        ]  # fmt: skip
        assert cells(layout[8])[1:] == [
            "50.0<br><sub>49.0–51.0</sub>", "60.0<br><sub>55.0–65.0</sub>", "70.0<br><sub>69.0–71.0</sub>",
            "20.0<br><sub>15.0–25.0</sub>",
        ]  # fmt: skip
        assert cells(layout[9])[3:] == ["–", "–"]
        assert "**tiny, T = 1, N = 5** (MLflow run: gsm8k run-a, xsum run-b)" in text

    def test_every_table_names_its_runs(self) -> None:
        grid = [
            comparison(*GRID, run_id="run-a"),
            comparison(*GRID, label="tiny-xsum", trained_on="gsm8k", run_id="run-b"),
        ]
        titles = re.findall(r"^\*\*.*\n\n\|", page_markdown(grid), flags=re.MULTILINE)
        assert len(titles) == 7  # provenance, layout, transfer, all numbers and verdicts of two cells
        assert all("run-a" in title or "run-b" in title for title in titles[1:])
        provenance = tables(page_markdown(grid))[0]
        assert "run-a" in provenance[2]
        assert "run-b" in provenance[3]

    def test_provenance(self) -> None:
        cell = comparison(*GRID, git_dirty=True, folder="/home/me/runs/evaluate-7", head="f00dcafe" * 4)
        del cell.origin["run_id"]
        text = page([cell])
        for needed in (
            "2026-11-30", "0123456789ab with local changes", "abacus", "not recorded", "evaluate-7", "f00dcafef00d",
            "<code>python -m jobs.evaluate</code>", "tiny-gsm8k, T = 1, N = 5",
        ):  # fmt: skip
            assert needed in text
        assert "/home/" not in text
        assert "/usr/" not in text

    def test_columns_are_the_same_in_each_line(self) -> None:
        grid = [
            comparison(*GRID),
            comparison(*GRID, label="tiny-xsum", trained_on="gsm8k"),
            comparison(STRICT, temperature=0.0, label="tiny-xsum"),
        ]
        found = tables(page_markdown(grid, PUBLISHED))
        assert len(found) == 9
        for table in found:
            assert len({len(cells(line)) for line in table}) == 1
            assert re.fullmatch(r"\|---\|(--:\|)+", table[1])

    def test_two_runs_of_one_cell_have_two_names(self) -> None:
        text = page_markdown([comparison(*GRID), comparison(*GRID, seed=1, run_id="run-b")])
        assert "## tiny-gsm8k, T = 1, N = 5 (1)\n" in text
        assert "## tiny-gsm8k, T = 1, N = 5 (2)\n" in text

    def test_timed_only(self) -> None:
        peer = MethodRow("HF generate", None, {}, None, {}, {}, None, {"speedup_measured": about(0.9)})
        line = next(line for line in page_markdown([comparison(*GRID, peer)]).splitlines() if "HF generate" in line)
        assert [cell for cell in cells(line) if cell != "–"] == ["HF generate", "0.90<br><sub>0.89–0.91</sub>"]


class TestPublished:
    def test_beside_ours(self) -> None:
        for text in (page([comparison(*GRID)], PUBLISHED), page_markdown([comparison(*GRID)], PUBLISHED)):
            assert "published numbers of other pairs (llama = big llama + small llama)" in text
            assert "compare orderings only" in text
            assert "published, llama: strict" in text
            assert "71.25" not in text  # another temperature
            assert "70.53" not in text  # another task
        layout = next(
            table for table in tables(page_markdown([comparison(*GRID)], PUBLISHED)) if "accuracy" in table[0]
        )
        lines = [cells(line) for line in layout[2:]]
        labels = [line[0] for line in lines]
        assert lines[labels.index("*published, llama: strict*")][1:] == ["44.6", "67"]
        assert labels.index("*published, llama: strict*") == labels.index("strict") + 1
        assert labels.index("*published, llama: speccascade*") == labels.index("opt alpha=0.5") + 1
        assert 'class="published"' in page([comparison(*GRID)], PUBLISHED)

    def test_only_when_given(self) -> None:
        assert "published" not in page_markdown([comparison(*GRID)])
        assert "44.6" not in page([comparison(*GRID)])
        assert 'class="published' not in page([comparison(*GRID)])

    def test_the_reference_can_be_read(self, shared: Path) -> None:
        published = read_published(shared / "reference/paper_tables.json")
        text = page_markdown([comparison(*GRID)], published)
        assert "| *published, qwen3: strict* | 59.58 | 91 |" in text
        assert "Contradictions" in text

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not JSON", "Expecting value"),
            ("[]", "no list 'cells'"),
            ('{"cells": 3}', "no list 'cells'"),
            ('{"cells": [{"pair": "llama"}]}', r"cells\[0\] lacks a pair, a method or a temperature"),
            ('{"cells": [{"pair": "llama", "method": "strict", "temperature": "hot"}]}', r"cells\[0\] lacks"),
            ('{"cells": [], "pairs": {"llama": 3}}', "pairs does not have a list for each pair"),
            ('{"cells": [], "transfer_T1": {"llama": [1, 2]}}', "transfer_T1 does not have a dict for each pair"),
            (
                json.dumps({"cells": [{"pair": "a", "temperature": 1, "method": "strict", "gsm8k": [1, "2"]}]}),
                r"cells\[0\].gsm8k = \[1, '2'\] is not \[acceptance, quality\]",
            ),
            ('{"cells": [], "transfer_T1": {"llama": {"a_on_b": 7}}}', r"transfer_T1.llama.a_on_b = 7 is not"),
        ],
    )
    def test_a_file_that_is_something_else(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "tables.json"
        path.write_text(text)
        with pytest.raises(DataError, match=message) as error:
            read_published(path)
        assert str(error.value).startswith(f"{path}: ")
        assert str(error.value).endswith("; give the paper_tables.json of the reference")
        assert "\n" not in str(error.value)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="No such file"):
            read_published(tmp_path / "none.json")


def test_transfer() -> None:
    own = comparison(STRICT, row("diversed", "diversed", 0.9, 0.5), trained_on="gsm8k")
    foreign = comparison(STRICT, row("diversed", "diversed", 0.8, 0.4), trained_on="xsum", run_id="run-b")
    text = page_markdown([own, foreign], PUBLISHED)
    table = next(table for table in tables(text) if table[0].startswith("| trained on |"))
    assert [cells(line) for line in table] == [
        ["trained on", "used on gsm8k: acceptance, %", "used on gsm8k: accuracy, %"],
        ["---", "--:", "--:"],
        ["gsm8k", "70.0<br><sub>69.0–71.0</sub>", "50.0<br><sub>45.0–55.0</sub>"],
        ["xsum", "60.0<br><sub>59.0–61.0</sub>", "40.0<br><sub>35.0–45.0</sub>"],
        ["*published, llama: xsum*", "72.57", "62"],
    ]
    assert "gsm8k on gsm8k run-a, xsum on gsm8k run-b" in text
    assert "trained on" not in page_markdown([own])


class Balanced(HTMLParser):
    """Every element is closed in turn; ids and what refers to them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            if name in ("href", "xlink:href") and tag != "link":
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text() -> str:
    """A page with two draft lengths, with and without times."""
    speed = {"speedup_measured": about(2.0, 0.25), "speedup_predicted": about(1.5)}
    timed = [*GRID[:-2], row("diversed", "diversed", 0.7, 0.6, speed=speed)]
    grid = [comparison(*timed), comparison(*timed, draft_length=3), comparison(*GRID, label="tiny-xsum")]
    return page(grid, PUBLISHED)


class TestHtml:
    def test_it_is_well_formed_and_fetches_nothing(self, text: str) -> None:
        document = Balanced(text)
        assert [name for name, times in Counter(document.ids).items() if times > 1] == []
        assert document.references
        assert {reference.lstrip("#") for reference in document.references} <= set(document.ids)
        assert all(reference.startswith("#") for reference in document.references)
        for fetches in ("http:", "https:", "<script", "<img", "<iframe", " src=", "@import"):
            assert fetches not in text

    def test_figures(self, text: str) -> None:
        captions = [unescape(caption) for caption in re.findall(r"<figcaption>([^<]*)</figcaption>", text)]
        assert captions == [
            "By draft length: acceptance",
            "By draft length: block efficiency",
            "By draft length: speed-up",
            "By draft length: quality",
            *[
                "Quality against token acceptance",
                "Quality against measured speed-up",
                "Normalised time against acceptance: 1 / measured speed-up, lower is faster",
                "Acceptance against the weight: static ensembles, and DIVERSED at its mean w = 0.40",
                "Accepted tokens per round: strict, the static ensemble that accepts nearest to DIVERSED, DIVERSED",
            ]
            * 2,
            "Quality against token acceptance",
            "Acceptance against the weight: static ensembles, and DIVERSED at its mean w = 0.40",
            "Accepted tokens per round: strict, the static ensemble that accepts nearest to DIVERSED, DIVERSED",
        ]
        assert text.count('<svg role="img"') == len(captions) + 3 * len(families(comparison(*GRID)))
        assert ">token acceptance, %</text>" in text
        assert "var(--ink)" in text
        assert not re.search("#010101|#fefefe", text)

    def test_a_predicted_time_is_said_to_be_one(self) -> None:
        cell = comparison(STRICT, row("diversed", "diversed", 0.7, 0.6, speed={"speedup_predicted": about(2.0)}))
        text = page([cell])
        assert "1 / predicted speed-up" in text
        assert "measured speed-up" not in text
        assert "autoregressive's (predicted)</text>" in unescape(text)

    def test_the_nearest_static_is_shown_by_name(self, text: str) -> None:
        assert ">static w=0.9</text>" in text  # 0.64 is nearer to 0.70 than 0.80 is
        assert ">static w=0.5</text>" not in text

    def test_same_comparisons_same_bytes(self) -> None:
        assert page([comparison(*GRID)]) == page([comparison(*GRID)])
        assert page_markdown([comparison(*GRID)]) == page_markdown([comparison(*GRID)])

    def test_hostile_words(self) -> None:
        """Labels, parameters, runs and commands that would be markup, or mathematics to matplotlib."""
        evil = '</th><script>alert(1)</script> | $\\frac{ `x` & "y" [z](javascript:0)'
        rows = [
            STRICT,
            row(evil, "lossy", 0.7, 0.4, {"fallback": evil}),
            row("static " + evil, "static", 0.72, 0.4, {"weight": 0.5}),
            row("diversed", "diversed", 0.7, 0.6),
        ]
        cell = comparison(
            *rows, label=f"{evil}-{evil}", metric=evil, run_id=evil, command=[evil], machine=evil, head=evil
        )
        text = page([cell], PUBLISHED | {"source": evil})
        Balanced(text)
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        marked = page_markdown([cell], PUBLISHED | {"source": evil})
        assert "<script" not in re.sub("`` .* ``", "", marked)
        assert not re.search(r"(?<!\\)\]\(javascript", re.sub("`` .* ``", "", marked))
        for table in tables(marked):
            assert len({len(cells(line)) for line in table}) == 1

    def test_nothing_to_show(self) -> None:
        with pytest.raises(DataError, match="no comparison"):
            page([])
