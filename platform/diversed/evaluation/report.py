"""What an evaluation says, made from its recorded files alone: one comparison, its tables and README's results block.

<run folder>/run.yaml            settings and provenance
<run folder>/results/*.jsonl     per-example results of each method (`compare`)
<run folder>/speed.json          raw times and the cost model's factor (`speed`)
<run folder>/comparison.json, results.md, pareto.png, pareto.svg      written here
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from diversed.artifacts import write_json_atomic, write_text_atomic
from diversed.errors import ConfigError, DataError
from diversed.evaluation.compare import Recorded, read_results
from diversed.evaluation.figure import pareto_figure, save_figure
from diversed.evaluation.gate import quality_gate
from diversed.evaluation.intervals import Bootstrap, Estimate
from diversed.evaluation.metrics import paired, summarise
from diversed.evaluation.rows import Comparison, MethodRow
from diversed.evaluation.speed import HF_ASSISTED, HF_GENERATE, read_speed, summarise_speed
from diversed.evaluation.tables import markdown
from diversed.settings import Method, Settings, from_record

__all__ = ["build_comparison", "read_comparison", "update_readme", "write_report"]

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
LOSSY = (Method.STATIC, Method.DIVERSED, Method.DRAFT_ONLY)  # autoregressive and strict have one law
COMPARISON, RESULTS, PARETO = "comparison.json", "results.md", "pareto"


def write_report(folder: Path) -> Comparison:
    """Aggregate a run folder's recorded files and write the four report files beside them."""
    comparison = build_comparison(folder)
    write_json_atomic(folder / COMPARISON, comparison.record())
    write_text_atomic(folder / RESULTS, markdown(comparison, f"{PARETO}.png"))
    save_figure(pareto_figure(comparison), folder / PARETO)
    return comparison


def read_comparison(folder: Path) -> Comparison:
    """What `write_report` left in a run folder; DataError if it did not."""
    path = folder / COMPARISON
    try:
        return Comparison.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: not a comparison of this version: {error}; give the folder of an evaluation"
        ) from error


def build_comparison(folder: Path) -> Comparison:
    """All numbers of a run folder; the same files give the same numbers. DataError if it is not one."""
    run = _read_run(folder)
    settings = from_record(run["settings"])
    bootstrap = Bootstrap(settings.evaluate.resamples, settings.seed)
    files = sorted((folder / "results").glob("*.jsonl"))
    recorded = {item.header["label"]: item for item in map(read_results, files)}
    if Method.STRICT not in recorded:
        raise DataError(f"{folder}: no results of strict verification; give the folder of an evaluation")
    timed = read_speed(folder / "speed.json") if (folder / "speed.json").is_file() else None
    speeds = summarise_speed(timed, bootstrap) if timed is not None else {}
    rows = []
    for label in sorted(recorded, key=lambda label: _rank(recorded[label])):
        factor = timed["costs"]["speedup_per_block"] if timed is not None else None
        rows.append(_row(recorded, label, settings, bootstrap, speeds.get(label, {}), factor))
    peers = [label for label in (HF_GENERATE, HF_ASSISTED) if label in speeds]
    rows += [MethodRow(label, None, None, None, {}, {}, None, speeds[label]) for label in peers]
    return Comparison(settings.label, run["evaluation"]["metric"], _origin(run, settings, recorded, timed), rows)


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
    if factor is not None and header["method"] != Method.AUTOREGRESSIVE:
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
        weight=header["decode"]["weight"] if header["method"] == Method.STATIC else None,
        summary=summary,
        against_strict=against[Method.STRICT],
        against_autoregressive=against[Method.AUTOREGRESSIVE],
        gate=quality_gate(results, strict, settings.evaluate, bootstrap) if header["method"] in LOSSY else None,
        speed=numbers,
    )


def _rank(recorded: Recorded) -> tuple[int, float, str]:
    """Order of a table: autoregressive, strict, static from the strictest on, DIVERSED."""
    header = recorded.header
    order = [Method.AUTOREGRESSIVE, Method.STRICT, Method.STATIC, Method.DRAFT_ONLY, Method.DIVERSED]
    return order.index(Method(header["method"])), -float(header["decode"]["weight"]), header["label"]


def _origin(
    run: Mapping[str, Any], settings: Settings, recorded: Mapping[str, Recorded], timed: Mapping[str, Any] | None
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
        "pair": run["evaluation"]["pair"],
        "head": next((header["head"] for header in headers if header.get("head")), None),
        "seed": settings.seed,
        "temperature": settings.decode.temperature,
        "draft_length": settings.decode.draft_length,
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
    except (OSError, yaml.YAMLError) as error:
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
