"""`layermem solve`: a trained model solves problems of its task that it was not trained on.

It does not know: how problems are solved or graded.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro

from layermem.cli.screen import format_plainly, screen
from layermem.config import Task, merged
from layermem.number_ranges import at_least, number
from layermem.results.solved import Solved
from layermem.runs import RunFolder, write_atomically


@dataclass(frozen=True, kw_only=True)
class Solve:
    """Have a trained model solve problems of its task it has not seen."""

    run: tyro.conf.Positional[Path]
    """Folder of a run on a task that has ended."""
    count: int = number(10_000, at_least(1))
    """Problems."""
    split: Literal["train", "validation", "test"] = "test"
    """Split they are of."""
    seed: int | None = number(None, at_least(0))
    """Seed of the problems; None: the run's."""
    options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE, added to the run's; one of the same name takes its
    place."""
    batch_size: int = number(256, at_least(1))
    """Problems solved at once."""
    out: Path | None = None
    """File for the result, as JSON."""


def solve(options: Solve, command: str) -> None:
    """Solve problems with a trained model, and print the shares."""
    from rich.console import Console
    from rich.progress import Progress
    from transformers.utils import logging as transformers_logging

    from layermem.evals.solving import solve_with
    from layermem.experiments.analyze_checkpoints import load_final
    from layermem.train.run_config import recorded_run

    folder = RunFolder(options.run)
    if not folder.final.exists():
        raise ValueError(f"{options.run} has no final model: it is no run folder, or has not ended")
    trained_on = recorded_run(folder).task
    if trained_on.name is None:
        raise ValueError(f"{options.run} was trained on no task; layermem tasks lists them")
    _check_split_options(trained_on, options.options)
    task = replace(
        trained_on,
        seed=trained_on.seed if options.seed is None else options.seed,
        options=merged(trained_on.options, options.options),
    )
    if options.split != "train":
        _check_not_trained_on(trained_on, task, options.split, options.count)
    transformers_logging.disable_progress_bar()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("solving", total=options.count)
        solved = solve_with(
            folder.final,
            task,
            split=options.split,
            count=options.count,
            batch_size=options.batch_size,
            progress=lambda done: progress.update(bar, completed=done),
            load=load_final,
        )
    _print(solved)
    if options.out is not None:
        write_atomically(options.out, solved.to_json())


def _print(solved: Solved) -> None:
    from rich.table import Table

    ((level_name, by_level),) = solved.by.items()
    table = Table(
        level_name, "problems", "right answers (95% interval)", "every step right", box=None
    )
    for level, shares in (*by_level.items(), ("all", solved)):
        low, high = shares.interval
        right = f"{shares.accuracy:.1%} ({low:.1%} to {high:.1%})"
        table.add_row(level, f"{shares.count:,}", right, f"{shares.steps:.1%}")
    console = screen()
    console.print(table)
    faults = format_plainly(dict(solved.faults)) or "none"
    console.print(f"a guess: {solved.chance:.1%}; faults: {faults}")


def _check_split_options(trained_on: Task, options: tuple[str, ...]) -> None:
    """Refuse options under which test problems may be among those of the training set."""
    from layermem.tasks.registry import get_task

    own, wanted = trained_on.fields(), Task(options=options).fields()
    definition = get_task(str(trained_on.name))
    for name in definition.splits_by(own):
        own_value = own.get(name, definition.options()[name])
        if wanted.get(name, own_value) != own_value:
            raise ValueError(
                f"the model was trained on problems of {name}={own_value}; of "
                f"{name}={wanted[name]} some of its training set would be in the test split: leave "
                f"the option out, or train with --task.options {name}={wanted[name]}"
            )


def _check_not_trained_on(trained_on: Task, wanted: Task, split: str, count: int) -> None:
    """Refuse a file of problems some of which are in the training set."""
    from layermem.tasks.registry import get_task

    own, new = trained_on.fields(), wanted.fields()
    if not (own.get("train") and new.get(split)):
        return
    definition = get_task(str(trained_on.name))
    training_set = definition.problems("train", trained_on.examples, trained_on.seed, **own)
    prompts = {problem.prompt for problem in training_set}
    problems = definition.problems(split, count, wanted.seed, **new)
    if shared := sum(problem.prompt in prompts for problem in problems):
        raise ValueError(
            f"the model was trained on {shared:,} of the {len(problems):,} problems of "
            f"{new[split]}: they are in {own['train']} too; give a file without them"
        )
