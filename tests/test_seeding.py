"""Seeds derive from names: stable everywhere, and different for different names."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from diversed.seeding import derive_seed


def test_pinned_values() -> None:
    """Recorded runs depend on these: a change here is a change of all results."""
    assert derive_seed(0) == 4_761_921_975_702_974_394
    assert derive_seed(0, "arithmetic", "common", "test-7", 3) == 8_210_802_715_254_119_500


def test_same_in_another_process_with_another_hash_seed(repository: Path) -> None:
    code = "from diversed.seeding import derive_seed; print(derive_seed(1, 'a', 2))"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(repository / "platform"), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert int(done.stdout) == derive_seed(1, "a", 2)


@given(root=st.integers(0, 2**63), keys=st.lists(st.integers() | st.text(st.characters(codec="ascii")), max_size=4))
def test_range_is_63_bits(root: int, keys: list[int | str]) -> None:
    assert 0 <= derive_seed(root, *keys) < 2**63


def test_kinds_and_grouping_of_keys_matter() -> None:
    seeds = [
        derive_seed(0, 1, 2),
        derive_seed(0, 12),
        derive_seed(0, "1", "2"),
        derive_seed(0, "1", 2),
        derive_seed(0, "12"),
        derive_seed(0, "2", "1"),
        derive_seed(1, 1, 2),
        derive_seed(0),
    ]
    assert len(set(seeds)) == len(seeds)


def test_bits_are_fair() -> None:
    """Each of the 63 bits over 4,096 consecutive repeats; |z| > 5.5 in any of them has probability below 3e-6."""
    count = 4096
    seeds = [derive_seed(0, "task", repeat) for repeat in range(count)]
    for bit in range(63):
        ones = sum(seed >> bit & 1 for seed in seeds)
        assert abs(ones - count / 2) < 5.5 * count**0.5 / 2, f"bit {bit}: {ones} of {count}"
