"""Commands that show: presets, tasks, what a model solves.

It does not know: how anything is done.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging as transformers_logging

from layermem.cli.screen import screen
from layermem.config import Task, merged
from layermem.experiments import preset_costs
from layermem.experiments.presets import description
from layermem.models.registry import variants
from layermem.report.costs import short
from layermem.runs import RunFolder, write_whole


@dataclass(frozen=True, kw_only=True)
class Presets:
    """List presets with what they cost as the plain decoder, and the variants."""

    measure: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Measure training steps of every preset that this machine can train, plain and LIMe, on a GPU
    if there is one, else on one thread of the CPU; takes minutes."""


def presets(rest: list[str]) -> None:
    """Print presets with what they cost, and the variants."""
    options = tyro.cli(Presets, prog="layermem presets", args=rest)
    costs = preset_costs.preset_costs()
    console = screen()
    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    for preset in costs:
        table.add_row(
            preset.name,
            short(preset.parameters, 3),
            short(preset.tokens, 3),
            f"{preset.flops:.1e}",
            description(preset.name),
        )
    console.print(table)
    console.print(f"\nvariants: {', '.join(variants())} (parameters and FLOPs above: plain)")
    if options.measure:
        console.print(_measured_presets(costs))
        console.print(
            f"\n{preset_costs.conditions()}; time of the whole run, from the median of three "
            "micro-batches (forward, backward, AdamW), without validation; peak memory of model, "
            "optimiser and one micro-batch",
            highlight=False,
        )


def _measured_presets(costs: list[preset_costs.PresetCost]) -> Table:
    """Return a table of the time and memory of each preset, measured while a bar shows progress."""
    table = Table("preset", "time: plain", "LIMe", "memory: plain", "LIMe", box=None)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(costs))
        for name, measured in preset_costs.measure_presets(costs):
            progress.advance(bar)
            if measured is None:
                table.add_row(name, "too large for this machine")
                continue
            plain, lime = measured["plain"], measured["lime"]
            table.add_row(
                name,
                *(_duration(one.seconds) for one in (plain, lime)),
                *(
                    "unknown" if one.peak_bytes is None else f"{short(one.peak_bytes, 3)}B"
                    for one in (plain, lime)
                ),
            )
    return table


def _duration(seconds: float) -> str:
    """Return seconds in the unit that suits them."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Show problems of a task and what they are like."""

    name: tyro.conf.Positional[str]
    """The task."""
    count: int = 1000
    """Problems to describe."""
    show: int = 3
    """Problems to print."""
    seed: int = 0
    """Seed of the problems."""
    split: Literal["train", "validation", "test"] = "train"
    """Split they are of."""
    options: tuple[str, ...] = ()
    """What the task is made of, each NAME=VALUE; `layermem tasks` alone lists what there is."""
    against: int = 0
    """Training problems, of the same seed, that the problems are compared with: what they share."""


def tasks(rest: list[str]) -> None:
    """Show a task, or list them all."""
    from layermem.tasks.registry import TASKS
    from layermem.tasks.registry import lookup as lookup_task

    console = screen()
    if not rest:
        table = Table("task", "options, with their defaults", box=None)
        for name, task in TASKS.items():
            table.add_row(name, " ".join(f"{k}={v}" for k, v in task.options().items()))
        console.print(table)
        return
    asked = tyro.cli(Tasks, prog="layermem tasks", args=rest)
    task, options = lookup_task(asked.name), Task(options=asked.options).fields()
    if asked.against and (task.overlap is None or asked.split == "train"):
        raise ValueError(
            "--against compares problems of arithmetic, of --split test or validation, with "
            f"training problems; got {asked.name}, split {asked.split}"
        )
    problems = task.problems(asked.split, asked.count, asked.seed, **options)
    for problem in problems[: asked.show]:
        console.print(f"{problem.prompt}\n{problem.solution}\n", markup=False, highlight=False)
    table = Table("what", "value", box=None)
    for what, value in task.describe(problems).items():
        table.add_row(what, _plainly(value))
    if asked.against and task.overlap is not None:
        learnt = task.problems("train", asked.against, asked.seed, **options)
        for what, share in task.overlap(problems, learnt).items():
            table.add_row(f"share with {what}", f"{share:.2%}")
    console.print(table)
    made = {**task.options(), **options}
    console.print(f"\noptions: {' '.join(f'{k}={v}' for k, v in made.items())}", highlight=False)


@dataclass(frozen=True, kw_only=True)
class Solve:
    """Have a trained model solve problems of its task it has not seen."""

    run: tyro.conf.Positional[Path]
    """Folder of a run on a task that has ended."""
    count: int = 10_000
    """Problems."""
    split: Literal["train", "validation", "test"] = "test"
    """Split they are of."""
    seed: int | None = None
    """Seed of the problems; None: the run's."""
    options: tuple[str, ...] = ()
    """Options of the task, each NAME=VALUE, added to the run's; one of the same name takes its
    place."""
    batch_size: int = 256
    """Problems solved at once."""
    out: Path | None = None
    """File for the result, as JSON."""


def solve(rest: list[str]) -> None:
    """Solve problems with a trained model."""
    from layermem.evals.solving import solve_with
    from layermem.train.run import recorded_run

    asked = tyro.cli(Solve, prog="layermem solve", args=rest)
    folder = RunFolder(asked.run)
    if not folder.final.exists():
        raise ValueError(f"{asked.run} has no final model: it is no run folder, or has not ended")
    learnt = recorded_run(folder).task
    if learnt.name is None:
        raise ValueError(f"{asked.run} learnt text, no task; layermem tasks lists the tasks")
    _same_splits(learnt, asked.options)
    task = replace(
        learnt,
        seed=learnt.seed if asked.seed is None else asked.seed,
        options=merged(learnt.options, asked.options),
    )
    if asked.split != "train":
        _not_learnt(learnt, task, asked.split, asked.count)
    console = screen()
    transformers_logging.disable_progress_bar()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("solving", total=asked.count)
        result = solve_with(
            folder.final,
            task,
            split=asked.split,
            count=asked.count,
            batch_size=asked.batch_size,
            progress=lambda done: progress.update(bar, completed=done),
        )
    ((levels, by_level),) = result["by"].items()
    table = Table(levels, "problems", "right answers (95% interval)", "every step right", box=None)
    for level, shares in (*by_level.items(), ("all", result)):
        low, high = shares["interval"]
        right = f"{shares['accuracy']:.1%} ({low:.1%} to {high:.1%})"
        table.add_row(level, f"{shares['count']:,}", right, f"{shares['steps']:.1%}")
    console.print(table)
    console.print(
        f"a guess: {result['chance']:.1%}; faults: {_plainly(result['faults']) or 'none'}"
    )
    if asked.out is not None:
        write_whole(asked.out, json.dumps(result, indent=1) + "\n")


def _same_splits(learnt: Task, options: tuple[str, ...]) -> None:
    """Refuse options under which test problems may be among those that were learnt."""
    from layermem.tasks.registry import lookup as lookup_task

    own, wanted = learnt.fields(), Task(options=options).fields()
    kind = lookup_task(str(learnt.name))
    for name in kind.splits_by(own):
        own_value = own.get(name, kind.options()[name])
        if wanted.get(name, own_value) != own_value:
            raise ValueError(
                f"the model learnt problems of {name}={own_value}; of {name}={wanted[name]} some "
                "that it learnt from would be in the test split: leave the option out, or train "
                f"with --task.options {name}={wanted[name]}"
            )


def _not_learnt(learnt: Task, wanted: Task, split: str, count: int) -> None:
    """Refuse a file of problems some of which the model learnt from."""
    from layermem.tasks.registry import lookup as lookup_task

    own, new = learnt.fields(), wanted.fields()
    if not (own.get("train") and new.get(split)):
        return
    kind = lookup_task(str(learnt.name))
    taught = {p.prompt for p in kind.problems("train", learnt.examples, learnt.seed, **own)}
    problems = kind.problems(split, count, wanted.seed, **new)
    if known := sum(problem.prompt in taught for problem in problems):
        raise ValueError(
            f"the model learnt {known:,} of the {len(problems):,} problems of {new[split]}: they "
            f"are in {own['train']} too; give a file without them"
        )


def _plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
