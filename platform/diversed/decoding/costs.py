"""What a round costs: measured once for a pair on a device, then a prediction for any block efficiency.

    predicted speed-up = block efficiency * t_AR / (t_target(N + 1) + N * t_draft)         (method.md 7)

Times are of the roles' own calls at batch 1, so they hold the forwards with sampling and judging, but not the loop.
"""

import hashlib
import itertools
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import torch

from diversed.artifacts import write_json_atomic
from diversed.decoding.roles import DraftInput, LocalDrafter, LocalTarget, Sampling, VerifyInput
from diversed.errors import ConfigError
from diversed.models import Pair
from diversed.settings import Method
from diversed.verification import Rule

__all__ = ["Costs", "predicted_speedup", "profile_costs"]

logger = logging.getLogger(__name__)

CONTEXT = 64  # tokens before the measured step
WARMUP = 3  # calls of each kind that are not counted
REPEATS = 15  # interleaved calls of each kind, at least; the median counts
SECONDS = 2.0  # of measuring, at least: what else the machine does comes and goes
FORWARDS = 2  # raised when the engine's forwards take another time: what was measured before does not count
PROFILED = range(1, 9)  # draft lengths that are always in the profile, so that most questions share one measurement


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds per call at batch 1."""

    t_autoregressive: float  # one token of the target alone
    t_target: dict[int, float]  # scoring and judging n tokens in one forward
    t_draft: float  # one drafted token
    device: str
    threads: int

    def round_time(self, draft_length: int) -> float:
        """Seconds of a round of `draft_length` drafted tokens; ConfigError if that length was not profiled."""
        if draft_length + 1 not in self.t_target:
            raise ConfigError(
                f"draft_length = {draft_length}: not in the profile, which has {sorted(self.t_target)} target tokens"
            )
        return self.t_target[draft_length + 1] + draft_length * self.t_draft


def predicted_speedup(block_efficiency: float, draft_length: int, costs: Costs) -> float:
    """Speed-up over autoregressive decoding that the costs predict."""
    return block_efficiency * costs.t_autoregressive / costs.round_time(draft_length)


def profile_costs(pair: Pair, draft_lengths: Iterable[int], folder: Path) -> Costs:
    """The pair's costs for `draft_lengths` and all common ones.

    Measured once for a pair, device and number of threads, and kept in `folder`: all who ask get the same numbers.
    """
    device = torch.cuda.get_device_name(pair.device) if pair.device.type == "cuda" else platform.machine()
    lengths = {1, *(length + 1 for length in (*PROFILED, *draft_lengths))}
    words = None if pair.draft_words_K is None else len(pair.draft_words_K)
    key = json.dumps(
        [
            FORWARDS,
            pair.identity,
            words,
            pair.compiled,
            str(pair.dtype),
            device,
            torch.get_num_threads(),
            torch.__version__,
        ],
        sort_keys=True,
    )
    path = folder / f"costs-{hashlib.blake2b(key.encode(), digest_size=6).hexdigest()}.json"
    if path.is_file():
        values = json.loads(path.read_text())
        values["t_target"] = {int(n): seconds for n, seconds in values["t_target"].items()}
        if lengths <= set(values["t_target"]):
            measured = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
            logger.info("forward costs were measured at %s; delete %s to measure again", f"{measured:%F %T}", path)
            return Costs(**values)
        lengths |= set(values["t_target"])
    costs = _measure(pair, sorted(lengths), device)
    write_json_atomic(path, asdict(costs))
    return costs


@torch.inference_mode()
def _measure(pair: Pair, lengths: Sequence[int], device: str) -> Costs:
    drafter = LocalDrafter(pair.draft, pair.vocab_size, (), False, pair.draft_words_K, pair.compiled)
    target = LocalTarget(pair.target, pair.vocab_size, Rule(Method.STRICT, 1.0), None, False, pair.compiled)
    prompt_BK = np.random.default_rng(0).integers(0, pair.vocab_size, (1, CONTEXT))
    for role in (drafter, target):
        role.reserve(1, CONTEXT + max(lengths) + 1)
        role.prefill(slice(0, 1), prompt_BK[:, :-1], 0)
    longest = max(max(lengths) - 1, 1)
    sampling = Sampling()
    u_BM = torch.full((1, longest + 1), 0.5, dtype=torch.float64)
    starts_B, last_B1, one_B = np.array([CONTEXT - 1]), prompt_BK[:, -1:].copy(), np.array([1])

    def draft(length: int) -> DraftInput:
        return DraftInput(last_B1, one_B, starts_B, np.array([length]), u_BM, sampling)

    def judge(n: int) -> Callable[[], object]:
        block = VerifyInput(last_B1, one_B, starts_B, u_BM, u_BM, sampling)
        proposal = drafter.propose(draft(n - 1)) if n > 1 else None
        return lambda: target.verify(block, proposal)

    calls: dict[str, Callable[[], object]] = {f"target {n}": judge(n) for n in lengths}
    calls["draft"] = lambda: drafter.propose(draft(longest))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in itertools.count():
        if repeat == WARMUP:
            begin = time.perf_counter()
        elif repeat >= WARMUP + REPEATS and time.perf_counter() - begin >= SECONDS:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if pair.device.type == "cuda":
                torch.cuda.synchronize(pair.device)
            if repeat >= WARMUP:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return Costs(
        t_autoregressive=medians["target 1"],
        t_target={n: medians[f"target {n}"] for n in lengths},
        t_draft=medians["draft"] / longest,
        device=device,
        threads=torch.get_num_threads(),
    )
