"""`layermem tasks`: the tasks that there are, problems of one, and what they are like.

It does not know: how problems are generated.
"""

from dataclasses import dataclass
from typing import Literal

import tyro

from layermem.cli.screen import format_plainly, screen
from layermem.number_ranges import at_least, number


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """List the tasks, or show problems of one and what they are like."""

    name: tyro.conf.Positional[str | None] = None
    """The task; none: all are listed with their options."""
    count: int = number(1000, at_least(1))
    """Problems to describe."""
    show: int = number(3, at_least(0))
    """Problems to print."""
    seed: int = number(0, at_least(0))
    """Seed of the problems."""
    split: Literal["train", "validation", "test"] = "train"
    """Split they are of."""
    options: tuple[str, ...] = ()
    """What the task is made of, each NAME=VALUE; `layermem tasks` alone lists what there is."""
    against: int = number(0, at_least(0))
    """Training problems, of the same seed, that the problems are compared with: what they share."""


def tasks(options: Tasks, command: str) -> None:
    """Show a task, or list them all."""
    if options.name is None:
        if options != Tasks():
            raise ValueError("name the task that the options are of: layermem tasks NAME ...")
        _list_tasks()
    else:
        _show_task(options.name, options)


def _list_tasks() -> None:
    from rich.table import Table

    from layermem.tasks.registry import TASKS

    table = Table("task", "options, with their defaults", box=None)
    for name, task in TASKS.items():
        table.add_row(name, " ".join(f"{k}={v}" for k, v in task.options().items()))
    screen().print(table)


def _comparable() -> str:
    """Return the names of the tasks of which problems can be compared with training problems."""
    from layermem.tasks.registry import TASKS

    return ", ".join(name for name, task in TASKS.items() if task.overlap is not None)


def _show_task(name: str, options: Tasks) -> None:
    from rich.table import Table

    from layermem.config import Task
    from layermem.tasks.registry import get_task

    task, fields = get_task(name), Task(options=options.options).fields()
    if options.against and (task.overlap is None or options.split == "train"):
        raise ValueError(
            f"--against compares problems of {_comparable()}, of --split test or validation, with "
            f"training problems; got {name}, split {options.split}"
        )
    console = screen()
    problems = task.problems(options.split, options.count, options.seed, **fields)
    for problem in problems[: options.show]:
        console.print(f"{problem.prompt}\n{problem.solution}\n", markup=False, highlight=False)
    table = Table("what", "value", box=None)
    for property_name, value in task.describe(problems).items():
        table.add_row(property_name, format_plainly(value))
    if options.against and task.overlap is not None:
        trained_on = task.problems("train", options.against, options.seed, **fields)
        for shared, share in task.overlap(problems, trained_on).items():
            table.add_row(f"share with {shared}", f"{share:.2%}")
    console.print(table)
    all_options = {**task.options(), **fields}
    console.print(
        f"\noptions: {' '.join(f'{k}={v}' for k, v in all_options.items())}", highlight=False
    )
