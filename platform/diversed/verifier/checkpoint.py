"""A verifier folder: `verifier.safetensors` (the head) and `config.json` (what it belongs to). Nothing is pickled."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from diversed.artifacts import git_commit, write_bytes_atomic, write_json_atomic
from diversed.errors import CheckpointError
from diversed.models import Pair
from diversed.settings import Settings
from diversed.verifier.head import Head

__all__ = ["DECISIVE", "VerifierCard", "import_two_row", "load_verifier", "save_verifier"]

WEIGHTS, CONFIG = "verifier.safetensors", "config.json"
FORMAT, FORMAT_VERSION = "diversed-verifier", 1
# What makes a pair the same pair. Its names do not: the same models may lie in another folder under another label.
DECISIVE = ("target_dim", "draft_dim", "vocab_size", "target_fingerprint", "draft_fingerprint")


@dataclass(frozen=True, slots=True)
class VerifierCard:
    """What a head was trained on and for; the content of `config.json`."""

    pair: dict[str, str | int]  # Pair.identity
    task: str
    lam: float
    initial_weight: float
    draft_length: int
    temperature: float  # of the rollouts
    seed: int
    git_commit: str | None
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @classmethod
    def of(cls, settings: Settings, pair: Pair) -> "VerifierCard":
        """The card of a head that `settings` trains."""
        return cls(
            pair=dict(pair.identity),
            task=settings.task.name,
            lam=settings.train.lam,
            initial_weight=settings.verifier.initial_weight,
            draft_length=settings.decode.draft_length,
            temperature=settings.train.temperature,
            seed=settings.seed,
            git_commit=git_commit(),
        )


def save_verifier(folder: Path, head: Head, card: VerifierCard) -> None:
    """Write the two files. Inside `artifacts.replace_folder` they appear together, and with the run's other files."""
    tensors = {"weight": head.weight_D.detach().cpu().contiguous(), "bias": head.bias.detach().cpu()}
    write_bytes_atomic(folder / WEIGHTS, safetensors.torch.save(tensors, {"format": FORMAT}))
    write_json_atomic(folder / CONFIG, asdict(card))


def load_verifier(folder: str | Path, pair: Pair) -> tuple[Head, VerifierCard]:
    """The head in `folder` on the pair's device.

    CheckpointError, naming the field, both values and the fix, if it was trained for other models; or if a file is
    missing or damaged, or a weight is not finite.
    """
    folder = Path(folder).expanduser()
    where = f"verifier.checkpoint = {str(folder)!r}"
    if not folder.is_dir():
        raise CheckpointError(f"{where}: no such folder; give a verifier folder with {CONFIG} and {WEIGHTS}")
    card = _read_card(folder / CONFIG, where)
    _check_pair(card, pair, where)
    tensors = _read_tensors(folder / WEIGHTS, where)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = {"weight": (pair.draft_dim + pair.target_dim,), "bias": ()}
    if shapes != wanted:
        raise CheckpointError(f"{where}: {WEIGHTS} holds {shapes} instead of {wanted}; train the verifier again")
    head = Head(pair.draft_dim, pair.target_dim)
    _fill(head, tensors["weight"], tensors["bias"], where)
    return head.to(pair.device), card


def import_two_row(path: str | Path, draft_dim: int, target_dim: int) -> Head:
    """The head of the authors' form: `softmax(Linear(D, 2))`, row 0 the draft's weight, row 1 the target's.

    `path` is a .safetensors file, or a torch file of plain tensors (read with weights_only). `softmax(z)[1]` is
    `sigmoid(z1 - z0)`, so the import is exact. The input order must be [draft, target], as here. CheckpointError else.
    """
    path = Path(path).expanduser()
    where = f"two-row verifier {str(path)!r}"
    tensors = _read_tensors(path, where) if path.suffix == ".safetensors" else _read_torch(path, where)
    matrices = [tensor for tensor in tensors.values() if tensor.shape == (2, draft_dim + target_dim)]
    biases = [tensor for tensor in tensors.values() if tensor.shape == (2,)]
    if len(tensors) != 2 or len(matrices) != 1 or len(biases) != 1:
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise CheckpointError(
            f"{where}: holds {found} instead of a (2, {draft_dim + target_dim}) weight and a (2,) bias; "
            f"it is not for a pair with draft_dim {draft_dim} and target_dim {target_dim}"
        )
    head = Head(draft_dim, target_dim)
    weight_2D, bias_2 = matrices[0].double(), biases[0].double()
    _fill(head, weight_2D[1] - weight_2D[0], bias_2[1] - bias_2[0], where)
    return head


def _fill(head: Head, weight_D: Tensor, bias: Tensor, where: str) -> None:
    if not (weight_D.isfinite().all() and bias.isfinite()):
        raise CheckpointError(f"{where}: a weight is NaN or infinite; its training diverged, train it again")
    with torch.no_grad():
        head.weight_D.copy_(weight_D)
        head.bias.copy_(bias)


def _read_card(path: Path, where: str) -> VerifierCard:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{where}: {CONFIG}: {error.strerror}; give a verifier folder") from error
    except ValueError as error:
        raise CheckpointError(f"{where}: {CONFIG} is damaged: {error}; train the verifier again") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError(f"{where}: {CONFIG} is not a verifier's (format {FORMAT!r}); give a verifier folder")
    if values.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{where}: format_version is {values.get('format_version')!r}, this version reads {FORMAT_VERSION}; "
            "train the verifier again"
        )
    return VerifierCard(**_typed(values, where))


def _typed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`values` with exactly the card's fields and their types."""
    types: dict[str, tuple[type, ...]] = {
        "pair": (dict,), "task": (str,), "lam": (int, float), "initial_weight": (int, float), "draft_length": (int,),
        "temperature": (int, float), "seed": (int,), "git_commit": (str, type(None)), "format": (str,),
        "format_version": (int,),
    }  # fmt: skip
    names = [field.name for field in fields(VerifierCard)]
    for name in [*names, *values]:
        if name not in names or name not in values:
            raise CheckpointError(f"{where}: {CONFIG} {'lacks' if name in names else 'has an unknown'} field {name!r}")
        if not isinstance(values[name], types[name]):
            raise CheckpointError(f"{where}: {CONFIG}: {name} = {values[name]!r} is of the wrong type")
    return dict(values)


def _check_pair(card: VerifierCard, pair: Pair, where: str) -> None:
    identity = pair.identity
    different = [name for name in DECISIVE if card.pair.get(name) != identity[name]]
    if not different:
        return
    names = [name for name in ("target", "draft") if card.pair.get(name) != identity[name]]
    shown = "; ".join(f"{name} is {card.pair.get(name)!r}, the pair's {identity[name]!r}" for name in different + names)
    raise CheckpointError(
        f"{where}: made for pair {card.pair.get('name')!r}, not for pair {pair.name!r}: {shown}; "
        "choose its own pair with --pair, or train a verifier for this one"
    )


def _read_tensors(path: Path, where: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{where}: {path.name}: {error.strerror}; give a complete verifier") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{where}: {path.name} is damaged: {error}; train the verifier again") from error


def _read_torch(path: Path, where: str) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{where}: {error.strerror}; give an existing file") from error
    except Exception as error:  # whatever a foreign or damaged file makes the unpickler raise
        raise CheckpointError(f"{where}: not a torch file of plain tensors: {type(error).__name__}") from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{where}: holds {type(content).__name__}, not a flat mapping of names to tensors")
    return dict(content)
