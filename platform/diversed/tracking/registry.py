"""The model registry: verifier folders, their versions and aliases.

A version's files never change: they lie below `verifier/<digest>` of the run that made them.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diversed.errors import TrackingError
from diversed.settings import Settings
from diversed.tracking.store import errors_of, open_client, shown

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as Entity

__all__ = ["ModelVersion", "Registry", "verifier_files"]

DIGEST_TAG = "diversed.digest"
MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(@(?P<alias>[^/@]+)|/(?P<version>\d+))")


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One registered version."""

    name: str
    version: int
    run_id: str
    source: str
    description: str
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return f"models:/{self.name}/{self.version}"


class Registry:
    """Versions and aliases of one store."""

    def __init__(self, uri: str, client: "MlflowClient") -> None:
        self.uri = uri
        self._client = client

    @classmethod
    def of(cls, settings: Settings) -> "Registry":
        """The registry of `settings`, for whoever only reads. TrackingError within seconds if it cannot be used."""
        return cls(settings.tracking_uri, open_client(settings.tracking_uri))

    def register(
        self,
        model: str,
        folder: Path,
        run_id: str,
        tags: Mapping[str, str] | None = None,
        description: str = "",
    ) -> int:
        """`folder` as a new version of `model`, its files kept with run `run_id`; the version's number.

        The same files from the same run are one version: registering them again returns its number.
        """
        digest = _digest(folder)
        if digest is None:
            raise TrackingError(f"verifier folder {str(folder)!r} does not exist or is empty; give a saved verifier")
        with errors_of(self.uri):
            self._ensure_model(model)
            versions = self._client.search_model_versions(f"name = '{model}' and run_id = '{run_id}'")
            for known in versions:
                if known.tags.get(DIGEST_TAG) == digest:
                    return int(known.version)
            path = f"verifier/{digest}"
            self._client.log_artifacts(run_id, str(folder), path)
            made = self._client.create_model_version(
                name=model,
                source=f"runs:/{run_id}/{path}",
                run_id=run_id,
                tags=dict(tags or {}) | {DIGEST_TAG: digest},
                description=description,
            )
        return int(made.version)

    def set_alias(self, model: str, alias: str, version: int) -> None:
        """Point `alias` at `version`. TrackingError if there is no such version."""
        with errors_of(self.uri, f"give an existing version of {model}"):
            self._client.set_registered_model_alias(model, alias, str(version))

    def alias_version(self, model: str, alias: str) -> ModelVersion | None:
        """What `alias` points at; None without such a model or alias."""
        with errors_of(self.uri):
            models = self._client.search_registered_models(f"name = '{model}'")
            version = models[0].aliases.get(alias) if models else None
            return None if version is None else _record(self._client.get_model_version(model, str(version)))

    def resolve(self, uri: str) -> ModelVersion:
        """The version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` means. TrackingError if there is none."""
        parts = MODEL_URI.fullmatch(uri)
        if parts is None:
            raise TrackingError(f"model {uri!r} is not understood; give models:/NAME@ALIAS or models:/NAME/VERSION")
        name, alias = parts["name"], parts["alias"]
        if alias is not None:
            found = self.alias_version(name, alias)
        else:
            with errors_of(self.uri):
                matches = self._client.search_model_versions(f"name = '{name}' and version_number = {parts['version']}")
            found = _record(matches[0]) if matches else None
        if found is None:
            raise TrackingError(
                f"model {uri!r} is not in the registry at {shown(self.uri)}; make one with `python -m jobs.pipeline`, "
                "or set tracking.uri to the store that has it"
            )
        return found

    @contextmanager
    def files(self, uri: str) -> Iterator[Path]:
        """The files of `models:/NAME@ALIAS` or `models:/NAME/VERSION`: a folder that ends with the block.

        TrackingError if there is no such version, or its files are lost or no longer what was registered.
        """
        import mlflow

        version = self.resolve(uri)
        lost = f"the files of {version.uri} are lost or changed; register the verifier again"
        with tempfile.TemporaryDirectory(prefix="diversed-") as place:
            with errors_of(self.uri, lost):
                folder = Path(
                    mlflow.artifacts.download_artifacts(
                        version.source, dst_path=place, tracking_uri=self.uri, registry_uri=self.uri
                    )
                )
            digest = _digest(folder)
            if digest is None or digest != version.tags.get(DIGEST_TAG, digest):
                raise TrackingError(f"model {uri!r}: {lost}")
            yield folder

    def _ensure_model(self, model: str) -> None:
        from mlflow.exceptions import MlflowException

        if not self._client.search_registered_models(f"name = '{model}'"):
            try:
                self._client.create_registered_model(model)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":  # made by another process in between
                    raise


@contextmanager
def verifier_files(settings: Settings, checkpoint: str) -> Iterator[Path]:
    """A verifier's folder: itself, or of a models:/ URI its files until the block ends. TrackingError as `files`."""
    if checkpoint.startswith("models:/"):
        with Registry.of(settings).files(checkpoint) as folder:
            yield folder
    else:
        yield Path(checkpoint)


def _record(entity: "Entity") -> ModelVersion:
    return ModelVersion(
        name=str(entity.name),
        version=int(entity.version),
        run_id=str(entity.run_id),
        source=str(entity.source),
        description=entity.description or "",
        tags=dict(entity.tags),
    )


def _digest(folder: Path) -> str | None:
    """16 hexadecimal digits that name the content of `folder`; None if there is none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16] if files else None
