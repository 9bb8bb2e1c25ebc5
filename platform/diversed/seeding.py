"""One root seed; everything random derives from it by name, never by order of execution."""

import hashlib

__all__ = ["derive_seed"]


def derive_seed(root: int, *keys: str | int) -> int:
    """A 63-bit seed for `keys`, e.g. `derive_seed(root, task, method, example_id, repeat)`.

    Stable across processes and machines (unlike `hash()`); different keys give independent streams.
    """
    text = "\x1f".join([str(root), *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
