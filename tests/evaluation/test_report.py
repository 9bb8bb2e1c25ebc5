"""Reports from a synthetic recorded run: numbers, tables, README, figure. Nothing is decoded here."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.image import imread
from rich.console import Console

from diversed.artifacts import write_run_record
from diversed.errors import ConfigError, DataError
from diversed.evaluation.figure import pareto_figure
from diversed.evaluation.metrics import ExampleResult
from diversed.evaluation.report import build_comparisons, read_comparisons, update_readme, write_report
from diversed.evaluation.rows import Comparison
from diversed.evaluation.tables import console_table, headlines, markdown, table_rows
from diversed.settings import Settings
from jobs.report import main as report_job

N = 400
# label, method, w, right answers, accepted of 8 judged tokens, emitted tokens per 4 rounds, seconds per prompt
METHODS: list[tuple[str, str, float, int, int, int, float]] = [
    ("autoregressive", "autoregressive", 0.5, 352, 0, 4, 0.40),
    ("strict", "strict", 0.5, 350, 5, 12, 0.30),
    ("static w=0.9", "static", 0.9, 330, 6, 13, 0.28),
    ("static w=0.3", "static", 0.3, 180, 7, 18, 0.21),
    ("static w=0.12", "static", 0.12, 130, 8, 20, 0.20),
    ("diversed", "diversed", 0.5, 349, 8, 20, 0.16),
]


@pytest.fixture
def run_folder(tmp_path: Path, make_result: Callable[..., ExampleResult]) -> Path:
    """What `run_evaluation` leaves behind before the report is made."""
    folder = tmp_path / "run"
    settings = Settings(output=tmp_path, pair={"name": "arithmetic"}, evaluate={"resamples": 200})
    write_run_record(folder, settings, evaluation={"metric": "accuracy", "pair": {"name": "arithmetic"}})
    (folder / "results" / "T1-N5").mkdir(parents=True)
    for label, method, w, right, accepted, tokens, _ in METHODS:
        header = {
            "fingerprint": label, "label": label, "cell": "T1-N5", "method": method, "decode": {"weight": w},
            "head": "abc" if method == "diversed" else None, "prompts": N, "seconds": 1.0,
            "git_commit": "0123456789abcdef", "date": "2026-11-29T12:00:00+00:00",
        }  # fmt: skip
        drafted = 0 if method == "autoregressive" else 20
        results = [
            make_result(
                f"p{i}", label=label, quality=float(i < right), tokens=tokens, rounds=4, drafted=drafted,
                accepted=accepted, verified=8 if drafted else 0,
            )
            for i in range(N)
        ]  # fmt: skip
        lines = [header, *(result.record() for result in results)]
        name = label.replace(" ", "-").replace("=", "")
        (folder / "results" / "T1-N5" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    timed = {label: (tokens, seconds) for label, _, _, _, _, tokens, seconds in METHODS if label != "static w=0.9"}
    timed |= {"HF generate": (4, 0.5), "HF assisted (strict)": (12, 0.6)}
    record = {
        "scope": "wall clock, one prompt at a time", "fingerprint": "x", "date": "2026-11-29T12:05:00+00:00",
        "git_commit": "0123456789abcdef", "device": "cpu", "threads": 1, "placement": "in-process", "dtype": "float32",
        "repeats": 2, "prompts": ["p0", "p1", "p2"],
        "warmup": {"generations_left_out_per_method": 2, "seconds": {}}, "costs": {"speedup_per_block": {"5": 0.5}},
        "temperature": 1.0, "draft_length": 5,
        "tokens": {label: [[tokens] * 2] * 3 for label, (tokens, _) in timed.items()},
        "seconds": {label: [[seconds] * 2] * 3 for label, (_, seconds) in timed.items()},
    }  # fmt: skip
    (folder / "speed.json").write_text(json.dumps(record))
    return folder


def test_numbers(run_folder: Path) -> None:
    comparison = build_comparisons(run_folder)[0]
    assert [row.label for row in comparison.methods] == [label for label, *_ in METHODS] + [
        "HF generate",
        "HF assisted (strict)",
    ]
    diversed = comparison.row("diversed")
    assert diversed is not None
    assert diversed.summary is not None
    assert diversed.gate is not None
    assert diversed.summary.metrics["quality"].value == pytest.approx(349 / 400)
    assert diversed.summary.metrics["token_acceptance"].value == 1.0
    assert diversed.summary.metrics["block_efficiency"].value == 5.0
    assert diversed.against_strict["quality"].value == pytest.approx(-1 / 400)
    assert diversed.against_autoregressive["quality"].value == pytest.approx(-3 / 400)
    assert diversed.against_strict["block_efficiency"].value == pytest.approx(20 / 12)
    assert diversed.gate.passed
    assert diversed.speed["speedup_predicted"].value == 2.5
    assert diversed.speed["speedup_measured"].value == pytest.approx((20 / 0.16) / (4 / 0.4))
    assert diversed.speed["measured_over_predicted"].value == pytest.approx(12.5 / 2.5)
    assert diversed.speed["speedup_over_hf"].value == pytest.approx((20 / 0.16) / (4 / 0.5))
    strict = comparison.row("strict")
    assert strict is not None
    assert (strict.gate, strict.against_strict) == (None, {})
    relaxed = comparison.row("static w=0.3")
    assert relaxed is not None
    assert relaxed.gate is not None
    assert not relaxed.gate.passed
    autoregressive = comparison.row("autoregressive")
    assert autoregressive is not None
    assert "speedup_predicted" not in autoregressive.speed
    assert autoregressive.gate is None
    assert comparison.origin["git_commits"] == ["0123456789abcdef"]
    assert comparison.origin["date"] == "2026-11-29T12:05:00+00:00"


def test_same_files_same_bytes(run_folder: Path) -> None:
    write_report(run_folder)
    names = ["comparisons.json", "numbers.csv", "results.md", "report.html", "pareto.png", "pareto.svg"]
    before = [(run_folder / name).read_bytes() for name in names[:5]]
    write_report(run_folder)
    assert [(run_folder / name).read_bytes() for name in names[:5]] == before
    assert read_comparisons(run_folder) == build_comparisons(run_folder)
    assert sorted(path.name for path in run_folder.iterdir()) == sorted(
        ["command.txt", "results", "run.yaml", "speed.json", *names]
    )


def test_an_evaluation_without_speed_or_head(run_folder: Path) -> None:
    (run_folder / "speed.json").unlink()
    (run_folder / "results" / "T1-N5" / "diversed.jsonl").unlink()
    comparison = write_report(run_folder)[0]
    assert headlines(comparison) == []
    assert "tokens/s" in markdown(comparison, "x.png")
    assert len(pareto_figure(comparison).axes) == 1


def test_markdown(run_folder: Path, tmp_path: Path) -> None:
    text = markdown(build_comparisons(run_folder)[0], "figures/pareto.png")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(METHODS) + 2
    assert len({line.count("|") for line in rows}) == 1
    assert rows[-3].startswith("| **diversed** | 87.2<br><sub>83.6–90.2</sub> | -0.2<br><sub>")
    assert rows[-2].startswith("| HF generate | – | – |")
    for needed in (
        "n = 400",
        "2026-11-29",
        "`0123456789ab`",
        "3 prompts x 2 interleaved",
        "figures/pareto.png",
        "200 bootstrap",
    ):
        assert needed in text
    assert str(tmp_path) not in text
    assert "/bin/" not in text  # the interpreter's path on this machine


def test_headlines(run_folder: Path) -> None:
    comparison = build_comparisons(run_folder)[0]
    told = "\n".join(headlines(comparison))
    assert "DIVERSED accepts 100.0 [100.0, 100.0]% of the judged tokens" in told
    assert "its accuracy minus strict's is -0.2 [" in told
    assert "(w = 0.12: 100.0%) changes strict's quality by -55.0 [" in told
    assert "12.50 [12.50, 12.50]x this platform's own autoregressive loop" in told
    assert "15.62 [15.62, 15.62]x Hugging Face `generate`" in told
    assert "predicts no gain" not in told


def test_case_23_a_predicted_loss_is_said(run_folder: Path) -> None:
    """Planted fault: no word about a prediction below 1."""
    record = json.loads((run_folder / "speed.json").read_text())
    record["costs"]["speedup_per_block"] = {"5": 0.19}
    (run_folder / "speed.json").write_text(json.dumps(record))
    assert "The cost model predicts no gain" in headlines(build_comparisons(run_folder)[0])[-1]


def test_console_table_fits_a_terminal(run_folder: Path) -> None:
    for width in (100, 160):
        console = Console(file=StringIO(), width=width)
        console.print(console_table(build_comparisons(run_folder)[0]))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert max(map(len, lines)) <= width
        assert any("diversed" in line and "87.2" in line for line in lines)
        assert any("quality not shown equal" in line for line in lines) or width == 100


def test_table_rows(run_folder: Path) -> None:
    rows = table_rows(build_comparisons(run_folder)[0])
    keyed = {(row["method"], row["metric"]): row for row in rows}
    assert len(keyed) == len(rows)
    assert keyed["diversed", "quality_against_strict"]["n"] == N
    assert keyed["HF generate", "tokens_per_second"]["value"] == pytest.approx(8)
    assert set(rows[0]) == {"method", "metric", "value", "low", "high", "n"}


def test_figure(run_folder: Path) -> None:
    write_report(run_folder)
    height, width, _ = imread(run_folder / "pareto.png").shape
    assert 1200 <= width <= 1800
    assert height < width
    figure = pareto_figure(build_comparisons(run_folder)[0])
    acceptance, speed = figure.axes
    assert acceptance.get_xlabel() == "acceptance of judged tokens, %"
    assert speed.get_xlabel() == "measured speed-up over autoregressive"
    assert [text.get_text() for text in acceptance.texts] == ["0.12", "0.3", "0.9", "autoregressive"]
    assert [text.get_text() for text in speed.texts] == ["0.12", "0.3"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "static ensemble, by w", "autoregressive", "strict", "DIVERSED",
    ]  # fmt: skip
    assert "<svg" in (run_folder / "pareto.svg").read_text()


def test_readme_block_is_replaced(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n\n<!-- results:begin -->\nold\n<!-- results:end -->\n\nMore.\n")
    update_readme(readme, "| new |\n")
    update_readme(readme, "| newer |\n")
    assert readme.read_text() == "# Title\n\n<!-- results:begin -->\n| newer |\n<!-- results:end -->\n\nMore.\n"


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        "<!-- results:begin -->",
        "<!-- results:end --> <!-- results:begin -->",
        "<!-- results:begin --> <!-- results:begin --> <!-- results:end -->",
        "<!-- results:begin --> <!-- results:end --> <!-- results:end -->",
    ],
)
def test_readme_without_its_markers(tmp_path: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(ConfigError, match=r"README\.md: put one line <!-- results:begin -->"):
        update_readme(readme, "new")
    assert readme.read_text() == text


def test_report_job(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("<!-- results:begin -->\n<!-- results:end -->\n")
    assert report_job([str(run_folder), "--readme", str(readme), "--figures", "docs"]) == 0
    assert "![Quality against acceptance and speed](docs/arithmetic-arithmetic.png)" in readme.read_text()
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == [
        "arithmetic-arithmetic.png",
        "arithmetic-arithmetic.svg",
    ]
    assert "diversed" in capsys.readouterr().out


def test_report_job_on_records_of_benchmarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, page = tmp_path / "engine.json", tmp_path / "page.md"
    record.write_text("{}")
    for arguments, said in [
        (["--page", "page.html"], "give records only, and --page FILE.md"),
        ([], "give records only, and --page FILE.md"),
        ([str(tmp_path), "--page", str(page)], "give records only, and --page FILE.md"),
        (["--page", str(page)], "not a benchmark's record"),
    ]:
        assert report_job([str(record), *arguments]) == 2
        assert said in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.parametrize("remove", ["run.yaml", "results/T1-N5/strict.jsonl"])
def test_report_job_on_a_folder_that_is_none(run_folder: Path, capsys: pytest.CaptureFixture[str], remove: str) -> None:
    (run_folder / remove).unlink()
    assert report_job([str(run_folder)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "give the folder of an evaluation" in error


def test_no_comparison_yet(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"comparisons\.json"):
        read_comparisons(tmp_path)


def test_comparison_survives_json(run_folder: Path) -> None:
    comparison = build_comparisons(run_folder)[0]
    record: Any = json.loads(json.dumps(comparison.record(), allow_nan=False))
    assert Comparison.of(record) == comparison
    assert yaml.safe_load((run_folder / "run.yaml").read_text())["evaluation"]["metric"] == "accuracy"
