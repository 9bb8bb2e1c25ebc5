"""Make the reports of recorded evaluations again: nothing is run, the numbers come from the recorded files alone.

    python -m jobs.report FOLDER                              # tables, figures and page beside the records
    python -m jobs.report FOLDER --readme README.md           # and README's results block, with a copy of the figure
    python -m jobs.report FOLDER FOLDER --page all.html       # one page, and all.md, of several evaluations
    python -m jobs.report FOLDER --page all.html --paper paper_tables.json     # the paper's numbers beside them
    python -m jobs.report RECORD.json RECORD.json --page benchmarks.md         # records of jobs.benchmark

FOLDER is what `python -m jobs.evaluate` printed last, RECORD.json what `python -m jobs.benchmark` did.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from diversed.errors import ConfigError, DiversedError
from jobs._stages import screen


def report(arguments: argparse.Namespace) -> None:
    from diversed.artifacts import write_text_atomic
    from diversed.evaluation.benchmark import benchmark_page
    from diversed.evaluation.page import read_published
    from diversed.evaluation.report import update_readme, write_page, write_report
    from diversed.evaluation.tables import console_table, markdown

    records = [path for path in arguments.folders if path.suffix == ".json"]
    if records:
        if len(records) < len(arguments.folders) or arguments.page is None or arguments.page.suffix != ".md":
            raise ConfigError(f"{records[0]}: a benchmark's record; give records only, and --page FILE.md")
        write_text_atomic(arguments.page, benchmark_page(records))
        print(f"wrote {arguments.page}")
        return
    if arguments.readme is not None and len(arguments.folders) > 1:
        raise ConfigError(f"--readme {arguments.readme}: takes one evaluation; give one FOLDER")
    published = None if arguments.paper is None else read_published(arguments.paper)
    reports = [write_report(folder) for folder in arguments.folders]
    for comparisons in reports:
        screen().print(console_table(comparisons[0]))
    if arguments.page is not None:
        write_page(arguments.page, [cell for comparisons in reports for cell in comparisons], published)
        print(f"wrote {arguments.page} and {arguments.page.with_suffix('.md')}")
    if arguments.readme is not None:
        folder, comparison = arguments.folders[0], reports[0][0]
        figures = arguments.readme.parent / arguments.figures
        figures.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            shutil.copyfile(folder / f"pareto.{suffix}", figures / f"{comparison.label}.{suffix}")
        link = (arguments.figures / f"{comparison.label}.png").as_posix()
        update_readme(arguments.readme, markdown(comparison, link))
        print(f"wrote {arguments.readme} and {figures / comparison.label}.png, .svg")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="+", type=Path, help="an evaluation's folder, or all: benchmarks' records"
    )
    parser.add_argument(
        "--page", type=Path, help="an .html file for all, an .md file comes beside it; of benchmarks: an .md file"
    )
    parser.add_argument("--paper", type=Path, help="the paper's published numbers (paper_tables.json), for the page")
    parser.add_argument("--readme", type=Path, help="a file with the two result markers")
    parser.add_argument(
        "--figures",
        type=Path,
        default=Path("platform/docs/results"),
        help="folder for README's figure, relative to README",
    )
    try:
        report(parser.parse_args(argv))
    except DiversedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
