"""One runnable module per stage: `python -m jobs.<stage> --help`."""
