"""What an evaluation says, made from its recorded files alone: one comparison, its tables and README's results block.

<run folder>/run.yaml            settings and provenance
<run folder>/results/*/*.jsonl   per-sample results of each method, by cell (`compare`)
<run folder>/speed.json          raw times and the cost model's factors (`speed`)
<run folder>/comparisons.json, numbers.csv, results.md, report.html, pareto.png, pareto.svg      written here
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from diversed.artifacts import write_json_atomic, write_text_atomic
from diversed.errors import ConfigError, DataError
from diversed.evaluation.compare import Recorded, cell_name, read_results
from diversed.evaluation.curves import ORDER
from diversed.evaluation.figure import pareto_figure, save_figure
from diversed.evaluation.gate import quality_gate
from diversed.evaluation.grid import cells
from diversed.evaluation.intervals import Bootstrap, Estimate
from diversed.evaluation.metrics import paired, summarise
from diversed.evaluation.page import page, page_markdown
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.evaluation.speed import HF_ASSISTED, HF_GENERATE, read_speed, summarise_speed
from diversed.evaluation.tables import markdown, table_rows
from diversed.settings import DecodeSettings, Method, Settings, from_record

__all__ = ["build_comparisons", "read_comparisons", "update_readme", "write_page", "write_report"]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
LOSSLESS = (Method.AUTOREGRESSIVE, Method.STRICT)  # they have one law
COMPARISONS, NUMBERS, RESULTS, PAGE, PARETO = "comparisons.json", "numbers.csv", "results.md", "report.html", "pareto"


def write_report(folder: Path) -> list[Comparison]:
    """Aggregate a run folder's recorded files and write the report files beside them; one comparison per cell."""
    comparisons = build_comparisons(folder)
    write_json_atomic(folder / COMPARISONS, [comparison.record() for comparison in comparisons])
    write_text_atomic(folder / NUMBERS, _csv(comparisons))
    write_text_atomic(folder / RESULTS, markdown(comparisons[0], f"{PARETO}.png"))
    write_text_atomic(folder / PAGE, page(comparisons))
    save_figure(pareto_figure(comparisons[0]), folder / PARETO)
    return comparisons


def write_page(
    path: Path, comparisons: Sequence[Comparison], published: Mapping[str, Any] | None, about: str = ""
) -> None:
    """One page of comparisons of any evaluations: HTML at `path`, its tables as Markdown beside it. `about` is what a
    reader should know first."""
    write_text_atomic(path, page(comparisons, published, about))
    write_text_atomic(path.with_suffix(".md"), page_markdown(comparisons, published, about))


def read_comparisons(folder: Path) -> list[Comparison]:
    """What `write_report` left in a run folder; DataError if it did not."""
    path = folder / COMPARISONS
    try:
        return [Comparison.of(record) for record in json.loads(path.read_text(encoding="utf-8"))]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; give the folder of an evaluation") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: no comparisons of this version: {error}; give the folder of an evaluation") from error


def build_comparisons(folder: Path) -> list[Comparison]:
    """All numbers of a run folder, per cell, that of `decode` first; the same files give the same numbers. DataError if
    it is not one."""
    run = _read_run(folder)
    settings = from_record(run["settings"])
    recorded: dict[str, dict[str, Recorded]] = {}  # by cell and label
    for path in sorted((folder / "results").glob("*/*.jsonl")):
        item = read_results(path)
        recorded.setdefault(item.header["cell"], {})[item.header["label"]] = item
    timed = read_speed(folder / "speed.json") if (folder / "speed.json").is_file() else None
    comparisons = []
    for decode in cells(settings):
        here = recorded.get(cell_name(decode.temperature, decode.draft_length), {})
        if Method.STRICT not in here:
            raise DataError(f"{folder}: no results of strict verification; give the folder of an evaluation")
        here = recorded.get(cell_name(decode.temperature, 0), {}) | here
        comparisons.append(_comparison(run, folder, settings, decode, here, timed))
    return comparisons


def _comparison(
    run: Mapping[str, Any],
    folder: Path,
    settings: Settings,
    decode: DecodeSettings,
    recorded: Mapping[str, Recorded],
    timed: Mapping[str, Any] | None,
) -> Comparison:
    bootstrap = Bootstrap(settings.evaluate.resamples, settings.seed)
    factor = timed["costs"]["speedup_per_block"][str(decode.draft_length)] if timed is not None else None
    cell = (decode.temperature, decode.draft_length)
    is_timed = timed is not None and cell == (timed["temperature"], timed["draft_length"])
    speeds = summarise_speed(timed, bootstrap) if timed is not None and is_timed else {}
    labels = sorted(recorded, key=lambda label: _rank(recorded[label]))
    rows = [_row(recorded, label, settings, bootstrap, speeds.get(label, {}), factor) for label in labels]
    peers = [label for label in (HF_GENERATE, HF_ASSISTED) if label in speeds]
    rows += [MethodRow(label, None, {}, None, {}, {}, None, speeds[label]) for label in peers]
    origin = _origin(run, folder, settings, decode, recorded, timed if is_timed else None)
    return Comparison(settings.label, run["evaluation"]["metric"], origin, rows)


def _csv(comparisons: Sequence[Comparison]) -> str:
    """Every number of every cell but times, which no two runs share: the same samples give the same bytes."""
    buffer = io.StringIO()
    columns = ["pair_task", "temperature", "draft_length", "method", "metric", "value", "low", "high", "n"]
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for comparison in comparisons:
        cell = {name: comparison.origin[name] for name in ("temperature", "draft_length")}
        untimed = replace(comparison, methods=[replace(row, speed={}) for row in comparison.methods if row.summary])
        for row in table_rows(untimed):
            writer.writerow({"pair_task": comparison.label, **cell, **row})
    return buffer.getvalue()


def _row(
    recorded: Mapping[str, Recorded],
    label: str,
    settings: Settings,
    bootstrap: Bootstrap,
    speed: Mapping[str, Estimate],
    factor: float | None,
) -> MethodRow:
    results, header = recorded[label].results, recorded[label].header
    summary = summarise(results, bootstrap)
    numbers = dict(speed)
    if factor is not None and Method(header["method"]).drafts:
        numbers["speedup_predicted"] = predicted = summary.metrics["block_efficiency"].scaled(factor)
        if "speedup_measured" in numbers:  # the prediction is taken as exact here: its interval is much the narrower
            numbers["measured_over_predicted"] = numbers["speedup_measured"].scaled(1 / predicted.value)
    against = {}
    for baseline in (Method.STRICT, Method.AUTOREGRESSIVE):
        is_other = baseline in recorded and baseline != label
        against[baseline] = paired(results, recorded[baseline].results, bootstrap) if is_other else {}
    strict = recorded[Method.STRICT].results
    return MethodRow(
        label=label,
        method=header["method"],
        parameters=_parameters(header["method"], header["decode"]),
        summary=summary,
        against_strict=against[Method.STRICT],
        against_autoregressive=against[Method.AUTOREGRESSIVE],
        gate=None if header["method"] in LOSSLESS else quality_gate(results, strict, settings.evaluate, bootstrap),
        speed=numbers,
    )


def _parameters(method: str, decode: Mapping[str, Any]) -> dict[str, float | str]:
    """What was set of the rule's parameters."""
    parameters: dict[str, float | str] = dict(decode.get("parameters", {}))
    if method == Method.STATIC:
        parameters["weight"] = decode["weight"]
    if method in (Method.STATIC, Method.DIVERSED) and decode.get("cap", "inf") != "inf":
        parameters["cap"] = decode["cap"]
    if decode.get("repaired"):
        parameters["repaired"] = "yes"
    return parameters


def _rank(recorded: Recorded) -> tuple[int, float, str]:
    """Order of a table: by method, of static ensembles the strictest first."""
    header = recorded.header
    method = Method(header["method"])
    weight = -float(header["decode"]["weight"]) if method is Method.STATIC else 0.0
    return ORDER.index(method), weight, header["label"]


def _origin(
    run: Mapping[str, Any],
    folder: Path,
    settings: Settings,
    decode: DecodeSettings,
    recorded: Mapping[str, Recorded],
    timed: Mapping[str, Any] | None,
) -> dict[str, Any]:
    headers = [item.header for item in recorded.values()] + ([dict(timed)] if timed is not None else [])
    provenance = run["provenance"]
    timing = None
    if timed is not None:
        kept = ("scope", "device", "threads", "placement", "dtype", "repeats", "warmup", "costs")
        timing = {name: timed[name] for name in kept} | {"prompts": len(timed["prompts"])}
    return {
        "date": max(header["date"] for header in headers),
        "git_commits": sorted({header["git_commit"] for header in headers if header["git_commit"]}),
        "git_dirty": provenance["git_dirty"],
        "machine": f"{provenance['device']}, {provenance['cpus']} CPUs ({settings.pair.threads} per model process)",
        "command": provenance["command"],
        "folder": folder.name,
        "run_id": run["evaluation"].get("run_id"),
        "title": run["evaluation"].get("title"),
        "trained_on": run["evaluation"].get("trained_on"),
        "pair": run["evaluation"]["pair"],
        "head": next((header["head"] for header in headers if header.get("head")), None),
        "seed": settings.seed,
        "temperature": decode.temperature,
        "draft_length": decode.draft_length,
        "samples": settings.evaluate.samples,
        "cap": "off" if settings.decode.cap == float("inf") else settings.decode.cap,
        "max_new_tokens": settings.task.max_new_tokens,
        "margin": settings.evaluate.margin,
        "resamples": settings.evaluate.resamples,
        "speed": timing,
    }


def _read_run(folder: Path) -> dict[str, Any]:
    path = folder / "run.yaml"
    try:
        run = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; give the folder of an evaluation") from error
    except yaml.YAMLError as error:
        raise DataError(f"{path}: {error}; give the folder of an evaluation") from error
    if not isinstance(run, dict) or not {"settings", "provenance", "evaluation"} <= run.keys():
        raise DataError(f"{path}: not an evaluation's record; give the folder of an evaluation")
    return run


def update_readme(readme: Path, block: str) -> None:
    """Replace what stands between the two result markers of `readme`; ConfigError unless each is there once."""
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{readme}: {error.strerror}; give an existing file") from error
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in old + after or END in before + after:
        raise ConfigError(f"{readme}: put one line {BEGIN} and below it one line {END} where the results belong")
    write_text_atomic(readme, f"{before}{BEGIN}\n{block.strip()}\n{END}{after}")
