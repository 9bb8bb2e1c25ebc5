"""Register a verifier as challenger; make it champion if it is as good as strict and faster than the champion.

    python -m jobs.promote --verifier-checkpoint /path/to/verifier
    python -m jobs.promote --verifier-checkpoint models:/diversed-arithmetic-arithmetic/3

Both must be shown with 95% intervals on the test prompts: quality non-inferior to strict's (`evaluate.margin`), and a
higher predicted speed-up than the champion's on the same prompts (without a champion: above 1). The reasons are shown,
logged, and kept as tags of the registered version.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from diversed.errors import ConfigError
from diversed.settings import Placement, Settings
from jobs._main import job
from jobs._stages import screen

if TYPE_CHECKING:
    from rich.console import Console

    from diversed.models import Pair
    from diversed.tracking import TrackedRun, Tracker
    from diversed.tuning.promotion import Promotion

__all__ = ["main", "promote_and_log"]


def promote(settings: Settings) -> None:
    from contextlib import nullcontext

    from diversed.cluster import connect
    from diversed.models import load_pair, set_threads
    from diversed.tracking import Tracker, verifier_files

    if settings.verifier.checkpoint is None:
        raise ConfigError(
            "verifier.checkpoint is not given; name the verifier to promote with --verifier-checkpoint FOLDER"
        )
    console = screen()
    set_threads(settings.pair.threads)
    pair = load_pair(settings.pair)
    tracker = Tracker(settings)
    files = verifier_files(settings, settings.verifier.checkpoint)
    cluster = connect() if settings.pair.placement is Placement.ACTORS else nullcontext()
    with files as verifier, cluster, tracker.run(f"promote {settings.label}", tags={"stage": "promote"}) as run:
        promote_and_log(
            settings, pair, verifier, tracker, run, settings.output / "promotions" / settings.label, console
        )


def promote_and_log(
    settings: Settings,
    pair: "Pair",
    verifier: Path,
    tracker: "Tracker",
    run: "TrackedRun",
    folder: Path,
    console: "Console",
) -> "Promotion":
    """The decision on `verifier`, shown and logged; `folder` keeps the results on the test prompts."""
    from diversed.tuning.promotion import promote as decide_on

    promotion = decide_on(settings, pair, verifier, tracker.registry, run, folder, console)
    for line in promotion.lines():
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return promotion


main = job("Register a verifier as challenger and decide whether it becomes champion.")(promote)

if __name__ == "__main__":
    sys.exit(main())
