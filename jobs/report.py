"""Make the report of a recorded evaluation again, and put it into README.

    python -m jobs.report FOLDER                         # tables and figure beside the records
    python -m jobs.report FOLDER --readme README.md      # and README's results block, with a copy of the figure

FOLDER is what `python -m jobs.evaluate` printed last. Nothing is run: the numbers come from the recorded files alone.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from diversed.errors import DiversedError
from jobs._stages import screen


def report(arguments: argparse.Namespace) -> None:
    from diversed.evaluation.report import update_readme, write_report
    from diversed.evaluation.tables import console_table, markdown

    comparison = write_report(arguments.folder)[0]
    screen().print(console_table(comparison))
    if arguments.readme is not None:
        figures = arguments.readme.parent / arguments.figures
        figures.mkdir(parents=True, exist_ok=True)
        for suffix in ("png", "svg"):
            shutil.copyfile(arguments.folder / f"pareto.{suffix}", figures / f"{comparison.label}.{suffix}")
        link = (arguments.figures / f"{comparison.label}.png").as_posix()
        update_readme(arguments.readme, markdown(comparison, link))
        print(f"wrote {arguments.readme} and {figures / comparison.label}.png, .svg")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a recorded evaluation")
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
