"""Suites of the benchmark: `engine`, this platform's loop against Hugging Face's and against its own floor; `batch`,
the loop against itself in larger batches; `startup`, fresh processes. Seeds, prompts, threads and dtype are common.

The suite `learner` is `diversed.training.benchmark`, `numerics` is `diversed.evaluation.numerics`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from rich.console import Console
from torch import Tensor

from diversed.decoding import Engine, Generation, Proposal, Request, VerifyInput, build_engine
from diversed.errors import ConfigError, DataError
from diversed.evaluation.benchmark import (
    WARMUPS,
    Report,
    Row,
    Sample,
    Spread,
    Turn,
    interleave,
    rates,
    ratio,
    seconds_of,
)
from diversed.evaluation.compare import prompt_seed
from diversed.evaluation.floor import Floor
from diversed.evaluation.peers import NOTHING, HuggingFace, Tally
from diversed.evaluation.processes import STAGES, Footprint, run_process, run_stage, without_eos
from diversed.evaluation.speed import HF_ASSISTED, HF_GENERATE
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, Method, Placement, Settings
from diversed.tasks import Example
from diversed.verification import Verdict

__all__ = [
    "HF_ENSEMBLE",
    "add_memory",
    "batch_report",
    "check_benchmark",
    "engine_report",
    "measure_batch",
    "measure_engine",
    "measure_startup",
    "startup_report",
]

HF_ENSEMBLE = "HF assisted (ensemble)"
WAVES = 4  # requests per row of a batch: rows that finish are replaced, and the tail, when none is left, counts less

WARMED_UP = f"{WARMUPS} warm-up turns of each contestant are left out of all numbers"
ONE_ROW = (
    "one row accepts nothing: strict; every acceptance coin of one row says no, so it drafts and is judged like the "
    "others and emits one token a round; rows run to max_new_tokens without EOS; rounds count from the second (the "
    "first reads the prompts) to the last in which every row is sure to be active"
)

ENGINE_COLUMNS = {
    "N": "tokens drafted per round",
    "tokens_per_second": "emitted tokens, EOS included, over seconds; of every method alike",
    "token_acceptance": "accepted / judged draft tokens, counted in the timed runs (Hugging Face's too)",
    "block_efficiency": "tokens per target forward",
    "over_hf_generate": f"tokens per second over {HF_GENERATE}",
    "over_hf_assisted": f"tokens per second over Hugging Face's assisted generation with the same rule: {HF_ASSISTED} "
    f"for strict and DIVERSED, {HF_ENSEMBLE} for the static ensemble of that weight",
    "at_equal_acceptance": "rounds per second over the same peer: what is left if both accepted the same share",
    "floor_over_measured": "seconds of the model forwards alone, over seconds of the generation that they are of, both "
    "measured in one turn; 1 is no overhead",
}
STARTUP_COLUMNS = {
    "seconds": "median of the whole process; " + "; ".join(f"{stage}: {what}" for stage, what in STAGES.items()),
    "over_libraries": "seconds over those of a process that only imports torch and transformers",
}
BATCH_COLUMNS = {
    "rows": "rows decoded together",
    "tokens_per_second": "emitted tokens over seconds, tail included",
    "block_efficiency": "tokens per target forward of a row",
    "over_batch_1": "tokens per second over the same method's at batch 1",
    "slowdown": "seconds per round with one row that accepts nothing, over those of the same rounds and rows without",
    "peak_over_computed": "peak resident memory while decoding, over weights + caches computed from their shapes",
    "without_imports": "the same, what the process held before it loaded the models taken off the peak",
}


def check_benchmark(settings: Settings) -> None:
    """ConfigError for settings under which nothing can be compared."""
    if settings.pair.placement is not Placement.IN_PROCESS:
        raise ConfigError(
            f"pair.placement = {settings.pair.placement.value!r}: the benchmark measures the loop in this process; "
            "give in-process"
        )
    shortest = 2 * (settings.decode.draft_length + 1) + 1  # two rounds of all rows, and one that ends them
    if settings.task.max_new_tokens < shortest:
        raise ConfigError(
            f"task.max_new_tokens = {settings.task.max_new_tokens}: too few rounds to time; give {shortest} or more"
        )
    if not 0 < settings.decode.weight < 1:
        raise ConfigError(
            f"decode.weight = {settings.decode.weight:g}: the static ensemble is compared with Hugging Face's, which "
            "takes a weight between 0 and 1, both excluded"
        )


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The prompts of a repetition and the requests made of them; a request's seed depends on its prompt, repetition and
    copy, hence not on who continues it."""

    settings: Settings
    examples: Sequence[Example]
    ids: Sequence[Sequence[int]]

    @classmethod
    def of(cls, settings: Settings, pair: Pair, examples: Sequence[Example]) -> "_Prompts":
        wanted = settings.benchmark.prompts
        if len(examples) < wanted:
            raise DataError(
                f"benchmark.prompts = {wanted}: there are {len(examples)} test prompts; lower it, or raise "
                "--task.test-size"
            )
        chosen = examples[:wanted]
        return cls(settings, chosen, [pair.encode(each.prompt, settings.task.chat_template) for each in chosen])

    def request(self, decode: DecodeSettings, repetition: int, item: int) -> Request:
        """The `item`th request; past the last prompt they begin again, with other seeds."""
        copy, at = divmod(item, len(self.ids))
        seed = derive_seed(prompt_seed(self.settings, self.examples[at], repetition), copy)
        return Request.of(list(self.ids[at]), self.settings.task.max_new_tokens, seed, decode)


def _tally(generation: Generation) -> Tally:
    return Tally(
        len(generation.tokens), generation.rounds, generation.drafted, generation.accepted, generation.verified
    )


def _decode(settings: Settings, method: Method, **changes: Any) -> DecodeSettings:
    """The cap is a parameter of DIVERSED's alone here."""
    cap = settings.decode.cap if method is Method.DIVERSED else float("inf")
    return settings.decode.model_copy(update={"method": method, "cap": cap, **changes})


# -- engine ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Own:
    """This platform's engine at batch 1, and the floor under each of its generations."""

    prompts: _Prompts
    pair: Pair
    decode: DecodeSettings
    engine: Engine
    floor: Floor

    @classmethod
    def of(cls, prompts: _Prompts, pair: Pair, decode: DecodeSettings, head: torch.nn.Module | None) -> "_Own":
        engine = build_engine(pair, decode.model_copy(update={"batch_size": 1}), head)
        return cls(prompts, pair, decode, engine, Floor(engine))

    def run(self, repetition: int, item: int) -> Sample:
        request = self.prompts.request(self.decode, repetition, item)
        out: list[Generation] = []
        seconds = seconds_of(lambda: out.extend(self.engine.generate([request])), self.pair.device)
        return Sample(seconds, _tally(out[0]))

    def replay(self, repetition: int, item: int) -> Sample:
        """The same generation once more, and its forwards alone. Before both comes the same generation, recorded, not
        timed: neither finds the machine's caches and predictors in another state than the other."""
        with self.floor.recording():
            (generation,) = self.engine.generate([self.prompts.request(self.decode, repetition, item)])
        whole = self.run(repetition, item).seconds
        return Sample(seconds_of(self.floor.replay, self.pair.device), _tally(generation), whole)


@dataclass(frozen=True, slots=True)
class _Peer:
    """Hugging Face's `generate`."""

    prompts: _Prompts
    pair: Pair
    decode: DecodeSettings
    peer: HuggingFace

    def run(self, repetition: int, item: int) -> Sample:
        request = self.prompts.request(self.decode, repetition, item)
        out: list[Tally] = []

        def generate() -> None:
            out.append(self.peer.generate(request.prompt_ids, request.max_new_tokens, request.seed)[1])

        return Sample(seconds_of(generate, self.pair.device), out[0])


def measure_engine(
    settings: Settings, pair: Pair, examples: Sequence[Example], head: torch.nn.Module | None, console: Console
) -> Report:
    """Batch 1: every method of ours with its floor, in turns with Hugging Face's three ways.

    With a `head`, DIVERSED at each of `benchmark.draft_lengths`; the others at `decode.draft_length`.
    """
    prompts = _Prompts.of(settings, pair, examples)
    decode = settings.decode
    own = {method.value: _decode(settings, method) for method in (Method.AUTOREGRESSIVE, Method.STRICT)}
    own[f"{Method.STATIC.value} w={decode.weight:g}"] = _decode(settings, Method.STATIC)
    if head is not None:
        own |= {
            f"{Method.DIVERSED.value} N={length}": _decode(settings, Method.DIVERSED, draft_length=length)
            for length in sorted(set(settings.benchmark.draft_lengths))
        }
    peers = {
        HF_GENERATE: HuggingFace(pair, decode, assisted=False),
        HF_ASSISTED: HuggingFace(pair, decode, assisted=True),
        HF_ENSEMBLE: HuggingFace(pair, decode, assisted=True, ensemble_weight=decode.weight),
    }
    engines = {
        label: _Own.of(prompts, pair, each, head if each.method is Method.DIVERSED else None)
        for label, each in own.items()
    }
    turns = {label: _Peer(prompts, pair, decode, peer).run for label, peer in peers.items()}
    for label, engine in engines.items():
        turns[label] = engine.run
        turns[_floor_of(label)] = engine.replay
    try:
        samples = interleave(turns, settings.benchmark.prompts, settings.benchmark.repetitions, console, "engine")
    finally:
        for engine in engines.values():
            engine.engine.close()
    lengths = {
        label: None if each.method is Method.AUTOREGRESSIVE else each.draft_length for label, each in own.items()
    }
    lengths |= {HF_GENERATE: None, HF_ASSISTED: decode.draft_length, HF_ENSEMBLE: decode.draft_length}
    report = engine_report(samples, lengths)
    report.about["prompts"] = [example.id for example in prompts.examples]
    return report


def engine_report(samples: dict[str, list[Sample]], lengths: dict[str, int | None]) -> Report:
    """Table and record of `samples` by label (those of floors included), given each label's N."""
    rows: list[Row] = []
    for label, length in lengths.items():
        mine = samples[label]
        total = sum((sample.tally for sample in mine), NOTHING)
        row: Row = {
            "name": label,
            "N": length,
            "tokens_per_second": Spread.of(rates(mine)).median,
            "token_acceptance": total.accepted / total.verified if total.verified else None,
            "block_efficiency": total.tokens / total.rounds,
            "over_hf_generate": ratio(rates(mine), rates(samples[HF_GENERATE])),
        }
        if length is not None and not label.startswith("HF"):
            peer = samples[HF_ENSEMBLE if label.startswith(Method.STATIC.value) else HF_ASSISTED]
            row["over_hf_assisted"] = ratio(rates(mine), rates(peer))
            # DIVERSED may draft another number of tokens per round than the peer: its rounds are not the peer's.
            if length == lengths[HF_ASSISTED]:
                row["at_equal_acceptance"] = ratio(rates(mine, "rounds"), rates(peer, "rounds"))
        if (floor := samples.get(_floor_of(label))) is not None:
            row["floor_over_measured"] = ratio([each.seconds for each in floor], [each.whole for each in floor])
        rows.append(row)
    about: dict[str, Any] = {"warmup": WARMUPS, "scope": "wall clock, one prompt at a time"}
    remarks = [WARMED_UP]
    if (best := _best_length(rows)) is not None:
        about["best_draft_length"] = best
        remarks.append(f"DIVERSED's best N is {best}: the highest median over {HF_GENERATE} in these very repetitions")
    return Report(ENGINE_COLUMNS, {"engine, batch 1": rows}, _plain(samples), about, remarks)


def _best_length(rows: Sequence[Row]) -> int | None:
    """DIVERSED's N with the highest median over HF generate; None without DIVERSED."""
    medians = {
        row["N"]: spread.median
        for row in rows
        if str(row["name"]).startswith(Method.DIVERSED.value) and isinstance(spread := row["over_hf_generate"], Spread)
    }
    best = max(medians, key=lambda length: medians[length], default=None)
    return best if isinstance(best, int) else None


def _floor_of(label: str) -> str:
    return f"{label}, forwards alone"


def _plain(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    return {
        label: [{"seconds": each.seconds, "whole": each.whole, **asdict(each.tally)} for each in repetitions]
        for label, repetitions in samples.items()
    }


# -- batch -----------------------------------------------------------------------------------------------------------


def measure_batch(
    settings: Settings, pair: Pair, examples: Sequence[Example], head: torch.nn.Module | None, console: Console
) -> Report:
    """Throughput by batch size; what one row that accepts nothing costs the others.

    At batch size B, at least `WAVES` requests per row pass through the engine, the same mix of prompts at every B.
    """
    prompts = _Prompts.of(settings, pair, examples)
    methods = [Method.AUTOREGRESSIVE, Method.STRICT, *([Method.DIVERSED] if head is not None else [])]
    sizes = sorted({1, *settings.benchmark.batch_sizes})
    batches = {
        (method.value, size): _Batch.of(settings, prompts, pair, method, size, head)
        for method in methods
        for size in sizes
    }
    repetitions = settings.benchmark.repetitions
    try:
        turns = {_at(method, size): batch.run for (method, size), batch in batches.items()}
        samples = interleave(turns, 1, repetitions, console, "batch")
    finally:
        for batch in batches.values():
            batch.engine.close()
    stubborn = _Stubborn.of(settings, prompts, pair, sizes[-1])
    try:
        pair_of_turns = {"rule": stubborn.normal, "nothing": stubborn.one_accepts_nothing}
        rounds = interleave(pair_of_turns, settings.benchmark.prompts, repetitions, console, "one row")
    finally:
        stubborn.engine.close()
    report = batch_report(samples, [method.value for method in methods], sizes, rounds)
    report.about["requests_by_batch_size"] = {str(size): batches[methods[0].value, size].requests for size in sizes}
    report.about["prompts"] = [example.id for example in prompts.examples]
    return report


def batch_report(
    samples: dict[str, list[Sample]], methods: Sequence[str], sizes: Sequence[int], rounds: dict[str, list[Sample]]
) -> Report:
    """Tables and record of throughput `samples` and of `rounds`: seconds and rounds of a batch of `sizes[-1]` rows with
    the `rule` for all of them, and with one row that accepts `nothing`."""
    rows: list[Row] = []
    for method in methods:
        for size in sizes:
            mine = samples[_at(method, size)]
            total = sum((sample.tally for sample in mine), NOTHING)
            rows.append(
                {
                    "name": _at(method, size),
                    "rows": size,
                    "tokens_per_second": Spread.of(rates(mine)).median,
                    "block_efficiency": total.tokens / total.rounds,
                    "over_batch_1": ratio(rates(mine), rates(samples[_at(method, 1)])),
                }
            )
    slowdown: Row = {
        "name": "one row accepts nothing",
        "rows": sizes[-1],
        "slowdown": ratio(rates(rounds["rule"], "rounds"), rates(rounds["nothing"], "rounds")),
    }
    about = {
        "warmup": WARMUPS,
        "scope": "wall clock, continuous batching",
    }
    tables = {"throughput": rows, "one row accepts nothing": [slowdown]}
    return Report(BATCH_COLUMNS, tables, _plain(samples) | _plain(rounds), about, [WARMED_UP, ONE_ROW])


def add_memory(report: Report, footprint: Footprint) -> None:
    """Put the memory of concurrent long requests into a report of the batch suite."""
    report.tables["memory"] = [
        {
            "name": f"{footprint.requests} requests of {footprint.tokens} tokens",
            "peak_mb": footprint.peak / 1e6,
            "weights_mb": footprint.weights / 1e6,
            "caches_mb": footprint.caches / 1e6,
            "imports_mb": footprint.imports / 1e6,
            "peak_over_computed": footprint.peak / (footprint.weights + footprint.caches),
            "without_imports": (footprint.peak - footprint.imports) / (footprint.weights + footprint.caches),
        }
    ]
    report.about["memory"] = asdict(footprint)


def _at(method: str, size: int) -> str:
    return f"{method}, batch {size}"


@dataclass(frozen=True, slots=True)
class _Batch:
    """An engine of `rows` rows, and how many requests pass through it."""

    prompts: _Prompts
    pair: Pair
    decode: DecodeSettings
    engine: Engine
    requests: int

    @classmethod
    def of(
        cls, settings: Settings, prompts: _Prompts, pair: Pair, method: Method, rows: int, head: torch.nn.Module | None
    ) -> "_Batch":
        decode = _decode(settings, method, batch_size=rows)
        waves = -(-WAVES * rows // len(prompts.ids))  # each prompt as often as every other
        engine = build_engine(pair, decode, head if method is Method.DIVERSED else None)
        return cls(prompts, pair, decode, engine, waves * len(prompts.ids))

    def run(self, repetition: int, _item: int) -> Sample:
        requests = [self.prompts.request(self.decode, repetition, item) for item in range(self.requests)]
        out: list[Generation] = []
        seconds = seconds_of(lambda: out.extend(self.engine.generate(requests)), self.pair.device)
        return Sample(seconds, sum((_tally(generation) for generation in out), NOTHING))


class _Judge:
    """A target that notes when it is asked, and lets the first row accept nothing while `refuses`."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.refuses = False
        self.asked: list[float] = []

    def verify(self, block: VerifyInput, proposal: Proposal | None) -> tuple[Verdict, Tensor | None]:
        self.asked.append(time.perf_counter())
        if self.refuses:
            coins_BN = block.coins_BN.clone()
            coins_BN[0] = 1.0  # a token is kept where its coin is below a probability
            block = replace(block, coins_BN=coins_BN)
        verdict: tuple[Verdict, Tensor | None] = self._target.verify(block, proposal)
        return verdict

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


@dataclass(frozen=True, slots=True)
class _Stubborn:
    """A full batch under the strict rule, with and without a row that accepts nothing.

    Without EOS all rows run to `max_new_tokens`. A row's tokens do not depend on its neighbours, so in both cases the
    other rows do the same work in the same rounds.
    """

    prompts: _Prompts
    decode: DecodeSettings
    engine: Engine
    judge: _Judge
    rows: int

    @classmethod
    def of(cls, settings: Settings, prompts: _Prompts, pair: Pair, rows: int) -> "_Stubborn":
        decode = _decode(settings, Method.STRICT, batch_size=rows)
        engine = build_engine(without_eos(pair), decode)
        judge = _Judge(engine.target)
        engine.target = cast("Any", judge)
        return cls(prompts, decode, engine, judge, rows)

    def normal(self, repetition: int, item: int) -> Sample:
        return self._run(repetition, item, refuses=False)

    def one_accepts_nothing(self, repetition: int, item: int) -> Sample:
        return self._run(repetition, item, refuses=True)

    def _run(self, repetition: int, item: int, refuses: bool) -> Sample:
        """Seconds and number of rounds, from the second to the last in which every row is sure to be active. `tokens`
        are those of the other rows in the whole run; `accepted` are the first row's."""
        requests = [self.prompts.request(self.decode, repetition, item * self.rows + row) for row in range(self.rows)]
        self.judge.refuses = refuses
        self.judge.asked.clear()
        first, *others = self.engine.generate(requests)
        # No row ends in fewer rounds than this. A round's end is seen as the beginning of the next one.
        certain = -(-requests[0].max_new_tokens // (self.decode.draft_length + 1))
        seconds = self.judge.asked[certain - 1] - self.judge.asked[1]
        tokens = sum(len(generation.tokens) for generation in others)
        return Sample(seconds, Tally(tokens, certain - 2, accepted=first.accepted))


# -- startup ---------------------------------------------------------------------------------------------------------


def measure_startup(settings: Settings, prompt: str, help_command: Sequence[str], console: Console) -> Report:
    """Fresh processes from start to end: imports, loading, a first generation, and a job's `--help`."""
    turns = {stage: _process(partial(run_stage, stage, settings, prompt)) for stage in STAGES}
    turns["--help"] = _process(partial(run_process, help_command))
    samples = interleave(turns, 1, settings.benchmark.repetitions, console, "startup", warmups=1)
    return startup_report(samples)


def startup_report(samples: dict[str, list[Sample]]) -> Report:
    """Table and record of the seconds of each kind of process."""
    seconds = {name: [sample.seconds for sample in repetitions] for name, repetitions in samples.items()}
    baseline = seconds[next(iter(STAGES))]
    rows: list[Row] = [
        {"name": name, "seconds": Spread.of(values).median, "over_libraries": ratio(values, baseline)}
        for name, values in seconds.items()
    ]
    about = {"warmup": 1, "scope": "wall clock of a process, from its start to its end"}
    remarks = ["the first process of each kind, which fills the system's file cache, is left out of all numbers"]
    return Report(STARTUP_COLUMNS, {"startup": rows}, {"seconds": seconds}, about, remarks)


def _process(run: Callable[[], object]) -> Turn:
    def turn(_repetition: int, _item: int) -> Sample:
        return Sample(seconds_of(run, torch.device("cpu")))

    return turn
