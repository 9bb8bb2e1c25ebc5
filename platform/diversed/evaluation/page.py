"""One page of a whole grid of comparisons, for a reviewer who trusts nothing: tables, figures, verdicts, provenance.

As HTML or as Markdown: both say the same, but only the HTML has figures.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from statistics import median
from string import Template
from typing import Any

from diversed.artifacts import shown_command
from diversed.errors import DataError
from diversed.evaluation.blocks import (
    Block,
    Bullets,
    Cell,
    Contents,
    Heading,
    Pictures,
    Prose,
    Row,
    Table,
    html,
    markdown,
)
from diversed.evaluation.curves import Outcome, Verdict, detectable, diverseds, families, metric, verdicts
from diversed.evaluation.intervals import Estimate
from diversed.evaluation.page_figures import cell_pictures, length_pictures, swatches
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.settings import Method

__all__ = ["Verdict", "page", "page_markdown", "read_published", "verdicts"]

TITLE = "DIVERSED against every other rule"
NOTHING = "–"
KEYS = ("pair", "method", "temperature")  # of a published cell; the rest are tasks
SPECCASCADE = (Method.CHOW, Method.DIFF, Method.OPT, Method.TOKEN_V1, Method.TOKEN_V2, Method.TOKEN_V3)


def page(comparisons: Sequence[Comparison], published: Mapping[str, Any] | None = None, about: str = "") -> str:
    """One HTML file that fetches nothing; the same comparisons give the same bytes. DataError without any."""
    blocks = _blocks(comparisons, published, about)
    template = Template((resources.files("diversed") / "evaluation" / "page.html").read_text(encoding="utf-8"))
    return template.substitute(title=escape(TITLE), body="\n".join(html(block, blocks) for block in blocks))


def page_markdown(
    comparisons: Sequence[Comparison], published: Mapping[str, Any] | None = None, about: str = ""
) -> str:
    """The page's words and tables. DataError without any comparison."""
    written = [markdown(block) for block in _blocks(comparisons, published, about)]
    return "\n\n".join(text for text in written if text) + "\n"


def read_published(path: Path) -> dict[str, Any]:
    """The paper's tables, `paper_tables.json`; DataError for a file that is something else."""
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
        wrong = _what_is_wrong(tables)
    except (OSError, ValueError) as error:
        wrong = str(error)
    if wrong:
        raise DataError(f"{path}: {wrong}; give the paper_tables.json of the reference")
    return dict(tables)


def _what_is_wrong(tables: Any) -> str:
    """Empty for the paper's tables."""
    if not isinstance(tables, dict) or not isinstance(tables.get("cells"), list):
        return "no list 'cells'"
    for name in ("pairs", "transfer_T1"):
        kind = list if name == "pairs" else dict
        group = tables.get(name, {})
        if not isinstance(group, dict) or not all(isinstance(value, kind) for value in group.values()):
            return f"{name} does not have a {kind.__name__} for each pair"
    numbers: dict[str, Any] = {}
    for number, cell in enumerate(tables["cells"]):
        if (
            not isinstance(cell, dict)
            or not {"pair", "method"} <= cell.keys()
            or not _is_number(cell.get("temperature"))
        ):
            return f"cells[{number}] lacks a pair, a method or a temperature"
        numbers |= {f"cells[{number}].{name}": value for name, value in cell.items() if name not in KEYS}
    for pair, transfers in _transfers(tables).items():
        numbers |= {f"transfer_T1.{pair}.{name}": value for name, value in transfers.items()}
    for name, value in numbers.items():
        is_two = isinstance(value, list) and len(value) == 2 and all(v is None or _is_number(v) for v in value)
        if value is not None and not is_two:
            return f"{name} = {value!r} is not [acceptance, quality]"
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _transfers(published: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    transfers: Mapping[str, Mapping[str, Any]] = published.get("transfer_T1", {})
    return transfers


def _blocks(comparisons: Sequence[Comparison], published: Mapping[str, Any] | None, about: str) -> list[Block]:
    if not comparisons:
        raise DataError("no comparison to make a page of; give the folder of at least one evaluation")
    names = _names(comparisons)
    blocks: list[Block] = [
        Heading(TITLE, level=1),
        *([Prose(about)] if about else []),
        Prose(_what(comparisons)),
        Contents(),
        Heading("What was run", anchor="run"),
        _provenance(names),
        Bullets(_commands(names)),
        Heading("Does DIVERSED lie above every other rule's curve?", anchor="verdicts"),
        Prose(
            "Each rule is a curve of quality over token acceptance, through its measured points and strict, its limit."
            " Where DIVERSED accepts as much, the curve and its 95% bounds are interpolated. Above: DIVERSED's lower"
            " bound is over the curve's upper one; below: its upper one is under the curve's lower one. A paired test"
            " would separate more. A rule that ends at DIVERSED's acceptance up to the intervals, or begins above it,"
            " is compared at that end. In brackets is the rule's own quality, %."
        ),
        Bullets([answer for comparison, name in names for answer in _answers(comparison, name)]),
        Heading("What so many prompts can show", anchor="power"),
        Prose(
            "How large a true difference from strict must be to be seen in 4 of 5 such evaluations (80% power,"
            " two-sided 5%), from the intervals of the paired differences. What is smaller is often missed: then not"
            " separated does not mean equal."
        ),
        Bullets([item for comparison, name in names for item in _power(comparison, name)]),
        *_paper_layout(comparisons, published),
        *_transfer(comparisons, published),
        *_lengths(comparisons),
    ]
    for number, (comparison, name) in enumerate(names):
        blocks += [
            Heading(name, anchor=f"cell-{number}"),
            Pictures(
                partial(cell_pictures, comparison, f"cell{number}"), partial(swatches, comparison, f"cell{number}")
            ),
            _full(comparison),
            *_verdict_table(comparison),
        ]
    return blocks


# -- what was run --------------------------------------------------------------------------------------------------


def _pair(comparison: Comparison) -> str:
    return comparison.label.rpartition("-")[0]


def _task(comparison: Comparison) -> str:
    return comparison.label.rpartition("-")[2]


def _trained_on(comparison: Comparison) -> str:
    return str(comparison.origin.get("trained_on") or _task(comparison))


def _prompts(comparison: Comparison) -> int:
    return max((row.summary.prompts for row in comparison.methods if row.summary is not None), default=0)


def _run(comparison: Comparison) -> str:
    return str(comparison.origin.get("run_id") or "not recorded")


def _runs(comparisons: Iterable[Comparison]) -> str:
    return "MLflow run: " + ", ".join(f"{_task(comparison)} {_run(comparison)}" for comparison in comparisons)


def _where(comparison: Comparison) -> str:
    return f"T = {comparison.origin['temperature']:g}, N = {comparison.origin['draft_length']}"


def _title(comparison: Comparison) -> str:
    """The evaluation's name in its study, with what goes before others."""
    title = comparison.origin.get("title")
    return f"{title}: " if title else ""


def _names(comparisons: Sequence[Comparison]) -> list[tuple[Comparison, str]]:
    """Each comparison with a name that no other has."""
    plain = []
    for comparison in comparisons:
        trained, task = _trained_on(comparison), _task(comparison)
        elsewhere = f", trained on {trained}" if trained != task else ""
        plain.append(f"{_title(comparison)}{comparison.label}, {_where(comparison)}{elsewhere}")
    often, seen = Counter(plain), Counter[str]()
    names = []
    for comparison, name in zip(comparisons, plain, strict=True):
        seen[name] += 1
        names.append((comparison, name if often[name] == 1 else f"{name} ({seen[name]})"))
    return names


def _what(comparisons: Sequence[Comparison]) -> str:
    def listed(values: Iterable[Any]) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(values))

    temperatures = listed(f"{comparison.origin['temperature']:g}" for comparison in comparisons)
    most = max(len(comparison.methods) for comparison in comparisons)
    prompts = sorted({_prompts(comparison) for comparison in comparisons})
    return (
        f"Pair {listed(map(_pair, comparisons))}; task {listed(map(_task, comparisons))}; temperature T ="
        f" {temperatures}; draft length N = {listed(comparison.origin['draft_length'] for comparison in comparisons)}."
        f" Cells: {len(comparisons)}, with up to {most} methods and {listed(prompts)} test prompts each. Below each"
        f" number is its 95% interval, whose unit is the prompt; {NOTHING} means that there is no such number."
    )


def _provenance(names: list[tuple[Comparison, str]]) -> Table:
    columns = ["cell", "n", "methods", "MLflow run", "date", "commit", "seed", "machine", "speed", "folder", "verifier"]
    rows = []
    for comparison, name in names:
        origin = comparison.origin
        commits = ", ".join(commit[:12] for commit in origin["git_commits"]) or "unknown"
        timing, folder, head = origin.get("speed"), origin.get("folder"), origin.get("head")
        words = [
            _run(comparison),
            str(origin["date"])[:10],
            commits + (" with local changes" if origin["git_dirty"] else ""),
            str(origin["seed"]),
            str(origin["machine"]),
            f"{timing['prompts']} prompts x {timing['repeats']}" if timing else NOTHING,
            Path(folder).name if folder else NOTHING,
            str(head)[:12] if head else NOTHING,
        ]
        counts = [Cell(str(_prompts(comparison))), Cell(str(len(comparison.methods)))]
        rows.append(Row(name, counts + [Cell(word, is_words=True) for word in words]))
    return Table("Where the numbers come from", "a row for each cell; n counts prompts", columns, rows)


def _commands(names: list[tuple[Comparison, str]]) -> list[Prose]:
    """Each command once."""
    cells: dict[str, list[str]] = {}
    for comparison, name in names:
        cells.setdefault(shown_command(comparison.origin["command"]), []).append(name)
    everywhere = len(cells) == 1 and len(names) > 1
    return [Prose("", "All cells:" if everywhere else "; ".join(own) + ":", command) for command, own in cells.items()]


# -- verdicts and power --------------------------------------------------------------------------------------------


def _answers(comparison: Comparison, name: str) -> list[Prose]:
    """The question of the section, answered for one cell; further rows of DIVERSED, its seeds, in short."""
    answers: list[Prose] = []
    for row in diverseds(comparison):
        found = verdicts(comparison, row.label)
        at, quality = metric(row, "token_acceptance"), metric(row, "quality")
        if at is None or quality is None or not found:
            continue
        told = f" accepts {at.told(100, '.1f')}% with {comparison.metric} {quality.told(100, '.1f')}%."
        if not answers:
            answers.append(Prose(f" DIVERSED{told} {_rule_by_rule(found)}", f"{name}: {_answer(found)}."))
            continue
        count = Counter(verdict.outcome for verdict in found)
        counts = "; ".join(f"{outcome}: {count[outcome]}" for outcome in Outcome)
        answers.append(Prose(f" It{told} Rules by verdict: {counts}.", f"{name}, {row.label}: {_answer(found)}."))
    return answers or [Prose(" no acceptance of DIVERSED to compare at.", f"{name}:")]


def _answer(found: Sequence[Verdict]) -> str:
    outcomes = {verdict.outcome for verdict in found}
    if Outcome.BELOW in outcomes:
        return "No"
    if Outcome.LEVEL in outcomes:
        return "Not shown"
    return "Yes, above each that accepts as much" if Outcome.ABOVE in outcomes else "No other rule accepts as much"


def _rule_by_rule(found: Sequence[Verdict]) -> str:
    said = {
        Outcome.ABOVE: "It is above, beyond the intervals",
        Outcome.LEVEL: "It is not separated from",
        Outcome.BELOW: "It is below",
        Outcome.NEVER: "Never accept as much",
    }
    parts = []
    for outcome, words in said.items():
        rules = [
            f"{verdict.rule} (at most {verdict.most.value:.1%})"
            if verdict.quality is None
            else f"{verdict.rule} ({verdict.quality.told(100, '.1f')})"
            for verdict in found
            if verdict.outcome is outcome
        ]
        parts += [f"{words}: {', '.join(rules)}."] if rules else []
    return " ".join(parts)


def _verdict_table(comparison: Comparison) -> list[Table]:
    rows = diverseds(comparison)
    found = {row.label: {verdict.rule: verdict for verdict in verdicts(comparison, row.label)} for row in rows}
    if not rows or not found[rows[0].label]:
        return []
    first = rows[0].label
    columns = ["rule", "accepts at most, %", f"{comparison.metric} where {first} accepts as much, %"]
    columns += [f"verdict for {row.label}" for row in rows]
    lines = []
    for rule, verdict in found[first].items():
        outcomes = [
            Cell(found[row.label][rule].outcome if found[row.label] else NOTHING, is_words=True) for row in rows
        ]
        lines.append(Row(rule, [_cell(verdict.most, 100, ".1f"), _cell(verdict.quality, 100, ".1f"), *outcomes]))
    return [Table("Verdict on each rule", _runs([comparison]), columns, lines)]


def _power(comparison: Comparison, name: str) -> list[Prose]:
    sizes = [100 * size for size in detectable(comparison)]
    if not sizes:
        return []
    told = f"{median(sizes):.1f} points of {comparison.metric} (median over {len(sizes)} methods"
    return [Prose(f" n = {_prompts(comparison)}: {told}; {sizes[0]:.1f} to {sizes[-1]:.1f}).", f"{name},")]


# -- tables --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    pick: Callable[[MethodRow], Estimate | None]
    scale: float = 1
    form: str = ".2f"


def _full_columns(quality: str) -> list[_Column]:
    def pooled(name: str) -> Callable[[MethodRow], Estimate | None]:
        return lambda row: metric(row, name)

    return [
        _Column(f"{quality}, %", pooled("quality"), 100, ".1f"),
        _Column("minus strict, paired", lambda row: row.against_strict.get("quality"), 100, "+.1f"),
        _Column("token acceptance, %", pooled("token_acceptance"), 100, ".1f"),
        _Column("accepted / drafted, %", pooled("acceptance_rate"), 100, ".1f"),
        _Column("drafted per round", pooled("drafted_per_round")),
        _Column("block efficiency", pooled("block_efficiency")),
        _Column("speed-up, measured", lambda row: row.speed.get("speedup_measured")),
        _Column("predicted", lambda row: row.speed.get("speedup_predicted")),
        _Column("length-adjusted", lambda row: row.speed.get("speedup_length_adjusted")),
        _Column("TV(out, p)", pooled("output_tv"), form=".3f"),
        _Column("KL(out, p), nats", pooled("output_kl"), form=".3f"),
        _Column("overshoot mass, %", pooled("overshoot_mass"), 100),
        _Column("rare tokens, %", pooled("rare_share"), 100),
        _Column("frontier gap", pooled("frontier_gap"), form=".3f"),
        _Column("cut at the budget, %", pooled("truncated"), 100, ".1f"),
        _Column("empty, %", pooled("empty"), 100, ".1f"),
        _Column("looped, %", pooled("looped"), 100, ".1f"),
    ]


def _full(comparison: Comparison) -> Table:
    """All numbers of one cell."""
    columns = _full_columns(comparison.metric)
    groups = [family.rows for family in families(comparison)]
    groups += [[row] for row in comparison.methods if row.summary is None]  # timed only
    rows = []
    for group in groups:
        for row in group:
            cells = [_cell(column.pick(row), column.scale, column.form) for column in columns]
            rows.append(Row(row.label, cells, _kind(row), row is group[0]))
    titles = ["method", *(column.title for column in columns)]
    return Table(f"All numbers, n = {_prompts(comparison)} prompts", _runs([comparison]), titles, rows)


def _paper_layout(comparisons: Sequence[Comparison], published: Mapping[str, Any] | None) -> list[Block]:
    """Methods down, tasks across, each with acceptance and quality: tables 1, 6 and 7 of the paper."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        if _trained_on(comparison) == _task(comparison):  # the others have a table of their own
            group = f"{_title(comparison)}{_pair(comparison)}, {_where(comparison)}"
            groups.setdefault(group, []).append(comparison)
    if not groups:
        return []
    blocks: list[Block] = [
        Heading("In the paper's layout", anchor="paper"),
        Prose("Acceptance is accepted / drafted, as in the paper; it falls with the draft length. Quality is in %."),
    ]
    if published is not None:
        pairs = "; ".join(f"{name} = {' + '.join(models)}" for name, models in published.get("pairs", {}).items())
        notes = [str(published.get("source", "")), *map(str, published.get("notes", []))]
        blocks.append(
            Prose(
                f"Rows in grey are published numbers of other pairs ({pairs}), and say nothing about the size of ours:"
                f" compare orderings only. They come without intervals. {' '.join(filter(None, notes))}"
            )
        )
    blocks += [_layout_table(title, cells, published) for title, cells in groups.items()]
    return blocks


def _layout_table(title: str, cells: Sequence[Comparison], published: Mapping[str, Any] | None) -> Table:
    union: dict[str, MethodRow] = {}
    for comparison in cells:
        for row in comparison.methods:
            union.setdefault(row.label, row)
    ordered = families(replace(cells[0], methods=list(union.values())))
    rows = []
    for family, following in zip(ordered, [*ordered[1:], None], strict=True):
        for row in family.rows:
            numbers = [number for comparison in cells for number in _two(comparison.row(row.label))]
            rows.append(Row(row.label, numbers, _kind(row), row is family.rows[0]))
        name = _published_name(family.method)
        if published is not None and (following is None or _published_name(following.method) != name):
            rows += _published_rows(published, name, cells)
    columns = ["method"]
    for comparison in cells:
        columns += ["acceptance, %", f"{comparison.metric}, %"]
    return Table(title, _runs(cells), columns, rows, [(_task(comparison), 2) for comparison in cells])


def _published_name(method: Method) -> str:
    """The paper has one SpecCascade and does not say which of its rules that is."""
    return "speccascade" if method in SPECCASCADE else method.value


def _published_rows(published: Mapping[str, Any], name: str, cells: Sequence[Comparison]) -> list[Row]:
    rows = []
    for cell in published["cells"]:
        same = cell["method"] == name and float(cell["temperature"]) == float(cells[0].origin["temperature"])
        numbers = [cell.get(_task(comparison)) for comparison in cells]
        if same and any(numbers):
            rows.append(_published_row(f"published, {cell['pair']}: {name}", numbers))
    return rows


def _published_row(label: str, numbers: Sequence[Sequence[float | None] | None]) -> Row:
    values = [value for pair in numbers for value in pair or (None, None)]
    cells = [Cell(NOTHING if value is None else f"{value:g}") for value in values]
    return Row(label, cells, "published", first=False)


def _transfer(comparisons: Sequence[Comparison], published: Mapping[str, Any] | None) -> list[Block]:
    """DIVERSED with a verifier of one task on another."""
    groups: dict[tuple[str, float, int], list[Comparison]] = {}
    for comparison in comparisons:
        origin = comparison.origin
        groups.setdefault((_pair(comparison), origin["temperature"], origin["draft_length"]), []).append(comparison)
    tables = [
        _transfer_table(cells, published)
        for cells in groups.values()
        if any(_trained_on(comparison) != _task(comparison) for comparison in cells)
    ]
    if not tables:
        return []
    words = "DIVERSED's acceptance (accepted / drafted) and quality with a verifier of another task."
    return [Heading("Trained on one task, used on another", anchor="transfer"), Prose(words), *tables]


def _transfer_table(cells: Sequence[Comparison], published: Mapping[str, Any] | None) -> Table:
    tasks = list(dict.fromkeys(_task(comparison) for comparison in cells))
    found: dict[tuple[str, int], dict[str, Comparison]] = {}  # a second run of one cell gets a row of its own
    for comparison in cells:
        trained = _trained_on(comparison)
        times = sum(_task(comparison) in row for (name, _), row in found.items() if name == trained)
        found.setdefault((trained, times), {})[_task(comparison)] = comparison
    rows = []
    for (trained, times), row in found.items():
        ours = [next(iter(diverseds(row[task])), None) if task in row else None for task in tasks]
        numbers = [number for own in ours for number in _two(own)]
        rows.append(Row(trained + (f" ({times + 1})" if times else ""), numbers))
    if published is not None and cells[0].origin["temperature"] == 1:
        sources = dict.fromkeys(trained for trained, _ in found)
        for pair, transferred in _transfers(published).items():
            for trained in sources:
                values = [transferred.get(f"{trained}_on_{task}") for task in tasks]
                if any(values):
                    rows.append(_published_row(f"published, {pair}: {trained}", values))
    columns = ["trained on"]
    for task in tasks:
        quality = next(comparison.metric for comparison in cells if _task(comparison) == task)
        columns += ["acceptance, %", f"{quality}, %"]
    runs = "MLflow run: " + ", ".join(
        f"{_trained_on(comparison)} on {_task(comparison)} {_run(comparison)}" for comparison in cells
    )
    title = f"{_pair(cells[0])}, {_where(cells[0])}"
    return Table(title, runs, columns, rows, [(f"used on {task}", 2) for task in tasks])


def _lengths(comparisons: Sequence[Comparison]) -> list[Block]:
    """Cells that differ in the draft length only."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for comparison in comparisons:
        origin = comparison.origin
        key = (comparison.label, origin["temperature"], origin.get("max_new_tokens"), _trained_on(comparison))
        cells = groups.setdefault(key, [])
        if origin["draft_length"] not in {other.origin["draft_length"] for other in cells}:
            cells.append(comparison)
    blocks: list[Block] = []
    for number, cells in enumerate(groups.values()):
        lengths = sorted({comparison.origin["draft_length"] for comparison in cells})
        if len(lengths) > 1:
            runs = ", ".join(f"N = {comparison.origin['draft_length']} {_run(comparison)}" for comparison in cells)
            lead = f"{cells[0].label}, T = {cells[0].origin['temperature']:g}."
            blocks += [
                Prose(f" MLflow run: {runs}.", lead),
                Pictures(partial(length_pictures, cells, f"length{number}")),
            ]
    return [Heading("By draft length", anchor="lengths"), *blocks] if blocks else []


def _two(row: MethodRow | None) -> list[Cell]:
    """Acceptance and quality, as the paper's tables have them."""
    return [_cell(None if row is None else metric(row, name), 100, ".1f") for name in ("acceptance_rate", "quality")]


def _kind(row: MethodRow) -> str:
    return "diversed" if row.method == Method.DIVERSED else ""


def _cell(estimate: Estimate | None, scale: float, form: str) -> Cell:
    return Cell(NOTHING) if estimate is None else Cell(*estimate.cell(scale, form))
