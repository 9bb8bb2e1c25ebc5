"""The training loop: rollouts by the engine, one learner step (or a few), a checkpoint each epoch.

    <folder>/latest.json            which epoch's folder is the newest whole one
    <folder>/epoch-001/             a verifier folder (verifier.safetensors, config.json, run.yaml, command.txt) that
        optimizer.safetensors       also holds what training needs to go on
        trainer.json                epoch, update, the settings that matter, the epoch's report and curves

Nothing random is carried from epoch to epoch (all seeds derive from names), so a run that was interrupted and taken up
again goes the same way as one that was not.
"""

import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError

from diversed.artifacts import replace_folder, write_bytes_atomic, write_json_atomic, write_run_record
from diversed.decoding import Engine, Weigh
from diversed.errors import CheckpointError, DataError, DiversedError
from diversed.models import Pair
from diversed.seeding import derive_seed
from diversed.settings import DecodeSettings, Features, Settings, flatten
from diversed.tasks import Example, Split, Task
from diversed.training.learner import Batch, losses
from diversed.training.rollouts import Pool, batch_of, requests_for, results_of, rollout_decode, training_seed
from diversed.verifier import DECISIVE, Head, VerifierCard, load_verifier, save_verifier

__all__ = ["EngineFactory", "Trainer", "latest_checkpoint", "learning_rate"]

LATEST, OPTIMIZER, STATE = "latest.json", "optimizer.safetensors", "trainer.json"
HEADLINE = ("reward", "token_acceptance", "block_efficiency", "mean_weight", "truncated", "empty", "looped")


class EngineFactory(Protocol):
    """Makes the engine; `diversed.cluster.engine_for` or `diversed.decoding.build_engine` with the pair bound."""

    def __call__(self, decode: DecodeSettings, head: Weigh | None, collect: bool) -> Engine: ...


def learning_rate(update: int, updates: int, peak: float, warmup: int) -> float:
    """Rate of `update` (from 0) out of `updates`: linear warm-up to `peak`, then a cosine that ends at 0."""
    if update < warmup:
        return peak * (update + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup)))


def latest_checkpoint(folder: Path) -> Path:
    """The newest whole epoch folder (a verifier folder) of a training folder; CheckpointError if there is none."""
    pointer = folder / LATEST
    if not pointer.is_file():
        raise CheckpointError(f"training folder {folder}: no epoch was finished; train there first")
    return folder / str(_read_json(pointer)["folder"])


class Trainer:
    """One training run. `head` is the object that the engine weighs with, so the engine sees each update."""

    def __init__(
        self, settings: Settings, pair: Pair, task: Task, engines: EngineFactory, console: Console | None = None
    ) -> None:
        """`console` shows a bar (on a terminal) and a line per epoch; None shows nothing.

        DataError if a training prompt leaves no room for `task.max_new_tokens`.
        """
        self.settings, self.pair, self.task, self.engines = settings, pair, task, engines
        self.console = console or Console(quiet=True)
        self.examples = task.examples(settings.task, Split.TRAIN, settings.seed)
        self._check_lengths()
        self.head = Head(pair.draft_dim, pair.target_dim, settings.verifier.initial_weight).to(pair.device)
        self._restrict(settings.verifier.features)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.train.learning_rate)
        self.update = 0  # optimiser batches so far
        self.updates: list[dict[str, float]] = []  # curves of the newest epoch, a row per update
        self.report: dict[str, float] = {}  # of the newest epoch

    @property
    def updates_per_epoch(self) -> int:
        """The last one may have fewer prompts than the others."""
        return math.ceil(len(self.examples) / self.settings.train.prompts_per_update)

    @property
    def identity(self) -> dict[str, Any]:
        """All that the trajectory depends on; models by their content, wherever they lie."""
        settings = self.settings.record()
        models = {name: self.pair.identity[name] for name in DECISIVE}
        return {
            "seed": settings["seed"],
            "pair": {**models, "dtype": settings["pair"]["dtype"]},
            "task": settings["task"],
            "decode": rollout_decode(self.settings).model_dump(mode="json", exclude={"cap", "weight"}),
            "initial_weight": settings["verifier"]["initial_weight"],
            "features": settings["verifier"]["features"],
            "train": settings["train"],
        }

    def _restrict(self, features: Features) -> None:
        """Weights of a model that does not count get no gradient, and stay where they begin, at 0."""
        if features is Features.BOTH:
            return
        counts_D = torch.zeros_like(self.head.weight_D)
        draft_dim = self.pair.draft_dim
        counts_D[slice(0, draft_dim) if features is Features.DRAFT else slice(draft_dim, None)] = 1
        self.head.weight_D.register_hook(lambda gradient_D: gradient_D * counts_D)

    @property
    def key(self) -> str:
        """12 hexadecimal digits of `identity`: names this run's folder and its MLflow run."""
        return hashlib.blake2b(json.dumps(self.identity, sort_keys=True).encode(), digest_size=6).hexdigest()

    def epochs(self, folder: Path) -> Iterator[dict[str, float]]:
        """Train, one report per epoch, each after its checkpoint is in `folder`.

        With `settings.resume` the epochs that `folder` already has are not repeated. CheckpointError if they were
        trained with other settings or another pair.
        """
        done = self._restore(folder) if self.settings.resume else 0
        if done == self.settings.train.epochs:
            return
        engine = self.engines(rollout_decode(self.settings), self.head, True)
        try:
            for epoch in range(done + 1, self.settings.train.epochs + 1):
                self._epoch(engine, epoch)
                self._save(folder, epoch)
                shown = "  ".join(f"{name} {self.report[name]:.3f}" for name in HEADLINE if name in self.report)
                seconds = self.report["seconds_rollouts"] + self.report["seconds_learner"]
                line = f"epoch {epoch}/{self.settings.train.epochs}: {shown}  {seconds:.1f} s"
                self.console.print(line, highlight=False, soft_wrap=True)
                yield dict(self.report)
        finally:
            engine.close()

    def _check_lengths(self) -> None:
        for example in self.examples:
            length = len(self.pair.encode(example.prompt, self.settings.task.chat_template))
            if length + self.settings.task.max_new_tokens > self.pair.context:
                raise DataError(
                    f"training prompt {example.id}: {length} tokens + task.max_new_tokens = "
                    f"{self.settings.task.max_new_tokens} exceed the pair's context of {self.pair.context}; "
                    "lower --task.max-prompt-words or --task.max-new-tokens"
                )

    # -- one epoch -----------------------------------------------------------------------------------------------

    def _epoch(self, engine: Engine, epoch: int) -> None:
        """All prompts once, in an order of the epoch's own."""
        order = random.Random(derive_seed(training_seed(self.settings), self.settings.task.name, "order", epoch))
        examples = order.sample(self.examples, len(self.examples))
        size, K = self.settings.train.prompts_per_update, self.settings.train.rollouts
        pool, self.updates = Pool(), []
        with self._bar() as bar:
            shown = bar.add_task(f"epoch {epoch}/{self.settings.train.epochs}", total=len(examples) * K)
            for start in range(0, len(examples), size):

                def progress(finished: int, before: int = start * K) -> None:
                    bar.update(shown, completed=before + finished)

                self.updates.append(self._update(engine, examples[start : start + size], epoch, pool, progress))
        seconds = {name: sum(row[name] for row in self.updates) for name in ("seconds_rollouts", "seconds_learner")}
        last = {name: self.updates[-1][name] for name in ("learning_rate", "gradient_norm")}
        self.report = {"epoch": epoch, "update": self.update, **pool.metrics(), **last, **seconds}

    def _update(
        self, engine: Engine, examples: Sequence[Example], epoch: int, pool: Pool, progress: Callable[[int], None]
    ) -> dict[str, float]:
        """Rollouts of `examples`, then the optimiser's steps on them; one row of the curves."""
        start = time.perf_counter()
        generations = engine.generate(requests_for(examples, self.settings, self.pair, epoch), progress)
        results = results_of(generations, examples, self.settings, self.pair, self.task)
        batch = batch_of(generations, results, self.settings.train.rollouts)
        pool.add(results, batch)
        middle = time.perf_counter()
        learned = self._learn(batch.to(self.pair.device))
        end = time.perf_counter()
        of_update = Pool()
        of_update.add(results, batch)
        return {
            "update": self.update,
            **of_update.metrics(),
            **learned,
            "seconds_rollouts": middle - start,
            "seconds_learner": end - middle,
        }

    def _learn(self, batch: Batch) -> dict[str, float]:
        """`train.passes` steps on one batch; numbers of the first one, which is the on-policy one."""
        train = self.settings.train
        rate = learning_rate(self.update, train.epochs * self.updates_per_epoch, train.learning_rate, train.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        first: dict[str, float] = {}
        for _ in range(train.passes):
            loss = losses(self.head, batch, train.lam, train.clip_ratio if train.passes > 1 else None)
            self.optimizer.zero_grad()
            loss.total.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), train.clip_norm)
            if not norm.isfinite():
                raise DiversedError(
                    f"training diverged at update {self.update + 1}: the gradient's norm is {float(norm)}; "
                    f"lower train.learning_rate = {train.learning_rate:g}"
                )
            self.optimizer.step()
            first = first or {
                "loss": loss.total.item(),
                "policy_loss": loss.policy.item(),
                "gradient_norm": norm.item(),
            }
        self.update += 1
        return {**first, "learning_rate": rate}

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rollouts"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self, folder: Path, epoch: int) -> None:
        name = f"epoch-{epoch:03d}"
        with replace_folder(folder / name) as new:
            save_verifier(new, self.head, VerifierCard.of(self.settings, self.pair))
            write_run_record(new, self.settings, pair=self.pair.identity)
            write_bytes_atomic(new / OPTIMIZER, safetensors.torch.save(self._optimizer_tensors()))
            state = {
                "epoch": epoch,
                "update": self.update,
                "identity": self.identity,
                "report": self.report,
                "updates": self.updates,
            }
            write_json_atomic(new / STATE, state)
        write_json_atomic(folder / LATEST, {"folder": name, "epoch": epoch})

    def _restore(self, folder: Path) -> int:
        """Take up the newest checkpoint of `folder`; how many epochs are done."""
        if not (folder / LATEST).is_file():
            return 0
        checkpoint = latest_checkpoint(folder)
        state = _read_json(checkpoint / STATE)
        there, here = flatten(state["identity"]), flatten(self.identity)
        different = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
        if different:
            raise CheckpointError(
                f"training folder {folder}: its run has {different[0]} = {there.get(different[0])!r}, this one "
                f"{here.get(different[0])!r}; give another folder, or --no-resume to start over"
            )
        head, _ = load_verifier(checkpoint, self.pair)
        self.head.load_state_dict(head.state_dict())
        self._load_optimizer(checkpoint / OPTIMIZER)
        self.update, self.report, self.updates = state["update"], state["report"], state["updates"]
        self.console.print(f"resumed after epoch {state['epoch']} of {checkpoint}", highlight=False, soft_wrap=True)
        return int(state["epoch"])

    def _optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"{name}.{key}": value.detach().cpu()
            for name, parameter in self.head.named_parameters()
            for key, value in self.optimizer.state[parameter].items()
        }

    def _load_optimizer(self, path: Path) -> None:
        try:
            tensors = safetensors.torch.load(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"training state {path}: cannot be read: {error}; give --no-resume") from error
        names = [name for name, _ in self.head.named_parameters()]
        keys = ("step", "exp_avg", "exp_avg_sq")
        if tensors.keys() != {f"{name}.{key}" for name in names for key in keys}:
            raise CheckpointError(f"training state {path}: holds {sorted(tensors)}; give --no-resume to start over")
        state = {i: {key: tensors[f"{name}.{key}"] for key in keys} for i, name in enumerate(names)}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"training state {path}: cannot be read: {error}; give --no-resume to start over"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"training state {path}: holds {type(value).__name__}; give --no-resume to start over")
    return value
