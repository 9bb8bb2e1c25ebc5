"""Benchmarks: prompts, rewards and metrics. `get_task(name)` is the way in.

A task is a module of this package with a subclass of `Task` that has a name; nothing else lists it.
"""

from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

from diversed.errors import ConfigError
from diversed.tasks.base import Example, Split, Task

__all__ = ["TASKS", "Example", "Split", "Task", "get_task"]


def _found() -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for module in iter_modules(__path__):
        for _, kind in getmembers(import_module(f"{__name__}.{module.name}"), isclass):
            if issubclass(kind, Task) and not isabstract(kind):
                tasks[kind.name] = kind()
    return dict(sorted(tasks.items()))


TASKS: dict[str, Task] = _found()


def get_task(name: str) -> Task:
    """The task called `name`; ConfigError for any other name."""
    if name not in TASKS:
        raise ConfigError(f"task.name = {name!r}: no such task; choose one of {', '.join(TASKS)}")
    return TASKS[name]
