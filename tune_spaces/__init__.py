"""Search spaces, one module each; `search.space` names the module, its `space(settings)` makes the space."""

import importlib
import pkgutil

from diversed.errors import ConfigError
from diversed.settings import Settings
from diversed.tuning.space import Space

__all__ = ["load_space"]


def load_space(settings: Settings) -> Space:
    """The space that `search.space` names.

    Raises:
        ConfigError: There is no such module; the message lists those that exist.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if settings.search.space not in known:
        raise ConfigError(
            f"search.space = {settings.search.space!r}: no such module in tune_spaces/; there are: {', '.join(known)}"
        )
    made: Space = importlib.import_module(f"{__name__}.{settings.search.space}").space(settings)
    return made
