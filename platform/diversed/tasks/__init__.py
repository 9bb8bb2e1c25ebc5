"""Benchmarks: prompts, rewards and metrics. `get_task(name)` is the way in."""

from diversed.errors import ConfigError
from diversed.tasks.arithmetic import Arithmetic
from diversed.tasks.base import Example, Split, Task
from diversed.tasks.cnndm import CnnDm
from diversed.tasks.gsm8k import Gsm8k

__all__ = ["TASKS", "Example", "Split", "Task", "get_task"]

TASKS: dict[str, Task] = {task.name: task for task in (Arithmetic(), Gsm8k(), CnnDm())}


def get_task(name: str) -> Task:
    """The task called `name`; ConfigError for any other name."""
    if name not in TASKS:
        raise ConfigError(f"task.name = {name!r}: no such task; choose one of {', '.join(TASKS)}")
    return TASKS[name]
