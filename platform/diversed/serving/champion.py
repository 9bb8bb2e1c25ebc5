"""What a replica serves: a registered verifier, or one in a folder, under the configuration that it won with."""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from diversed.errors import CheckpointError, ConfigError
from diversed.models import Pair, load_pair, set_threads
from diversed.serving.service import CompletionService, ModelCard
from diversed.settings import DecodeSettings, Method, Settings, from_record
from diversed.verifier import Head, VerifierCard, load_verifier

__all__ = ["Champion", "champion_of", "load_service"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Champion:
    """A verifier that fits its pair, and how it is to be run."""

    uri: str  # of exactly this version or folder: an alias may point elsewhere tomorrow
    version: str
    pair: Pair
    head: Head
    decode: DecodeSettings


def champion_of(settings: Settings, changes: Mapping[str, Any] | None = None) -> Champion:
    """The verifier of `verifier.checkpoint`, by default `models:/<registered model>@champion`; no model is loaded.

    Its run's decode settings hold; `changes`, by dotted name, replace some. TrackingError, CheckpointError, PairError
    or ConfigError if this cannot be served.
    """
    uri = settings.verifier.checkpoint or f"models:/{settings.registered_model}@champion"
    with ExitStack() as stack:
        if uri.startswith("models:/"):
            from diversed.tracking import Registry

            registry = Registry.of(settings)
            registered = registry.resolve(uri)
            uri, version = registered.uri, f"{registered.name}-v{registered.version}"
            folder = stack.enter_context(registry.files(uri))
        else:
            folder = Path(uri).expanduser().absolute()
            uri, version = str(folder), f"{settings.registered_model}-{_digest(folder)}"
        pair = load_pair(settings.pair)
        head, card = load_verifier(folder, pair)
        if card.task != settings.task.name:
            logger.warning("%s was trained on task %s and is served as %s", uri, card.task, settings.task.name)
        return Champion(uri, version, pair, head, _decode_settings(folder, settings, card, changes or {}))


def load_service(settings: Settings, changes: Mapping[str, Any] | None = None) -> CompletionService:
    """Load everything that `champion_of` names, ready to answer. Errors as there, or ClusterError."""
    from diversed.cluster import engine_for

    set_threads(settings.pair.threads)
    champion = champion_of(settings, changes)
    identity = champion.pair.identity
    card = ModelCard(
        id=settings.registered_model,
        version=champion.version,
        task=settings.task.name,
        target=str(identity["target"]),
        draft=str(identity["draft"]),
        decode=champion.decode,
        context=champion.pair.context,
    )
    engine = engine_for(settings.pair, champion.pair, champion.decode, head=champion.head)
    return CompletionService(champion.pair, engine, card, settings.task.max_new_tokens, settings.serve.max_waiting)


def _decode_settings(
    folder: Path, settings: Settings, card: VerifierCard, changes: Mapping[str, Any]
) -> DecodeSettings:
    run = _run_settings(folder)
    if run is None:  # e.g. an imported head
        logger.warning(
            "%s has no run.yaml: decode settings are the given ones, draft length %d", folder, card.draft_length
        )
        run = settings.updated({"decode.draft_length": card.draft_length})
    elif run.pair.dtype != settings.pair.dtype:
        logger.warning(
            "the verifier was trained with %s models and is served with %s", run.pair.dtype, settings.pair.dtype
        )
    # One row: requests are decoded one at a time.
    return run.updated({**changes, "decode.method": Method.DIVERSED.value, "decode.batch_size": 1}).decode


def _run_settings(folder: Path) -> Settings | None:
    path = folder / "run.yaml"
    if not path.is_file():
        return None
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))["settings"]
        return from_record(record)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: not the record of a run: {error}; give a complete verifier folder") from error


def _digest(folder: Path) -> str:
    """12 hexadecimal digits of the folder's weights; names of folders are reused, content is not."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in files), digest_size=6).hexdigest()
