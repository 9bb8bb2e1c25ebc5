"""The one exception tree.

DiversedError                 anything this platform raises on purpose; exit code 1
└── InputError                the caller can mend it; one line: field, value, fix; exit code 2, HTTP 400
    ├── ConfigError           a setting, flag, variable or YAML entry
    ├── DataError             a data file or data set
    ├── PairError             a model, or two models that do not form a pair
    ├── CheckpointError       a verifier folder that is missing, damaged or of another pair
    ├── TrackingError         the MLflow store or registry
    ├── RequestError          one generation request
    └── ClusterError          resources or ports that are not to be had
"""

__all__ = [
    "CheckpointError",
    "ClusterError",
    "ConfigError",
    "DataError",
    "DiversedError",
    "InputError",
    "PairError",
    "RequestError",
    "TrackingError",
]


class DiversedError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return " ".join(super().__str__().split())  # always one line, whatever a library put into its message


class InputError(DiversedError):
    """Something the caller gave cannot be used; the message names the field, the value and the fix."""

    exit_code = 2


class ConfigError(InputError):
    """A setting is unknown or out of its bounds."""


class DataError(InputError):
    """A data file or data set is missing, malformed or too small."""


class PairError(InputError):
    """A model cannot be loaded, or target and draft do not share one vocabulary."""


class CheckpointError(InputError):
    """A verifier folder cannot be loaded for this pair."""


class TrackingError(InputError):
    """The tracking store cannot be reached or lacks what was asked for."""


class RequestError(InputError):
    """One generation request cannot be served as asked."""


class ClusterError(InputError):
    """The cluster lacks resources, or a port is taken."""
