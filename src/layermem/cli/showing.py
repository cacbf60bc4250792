"""Commands that show: presets, tasks, what a model solves, what it costs, how it learnt.

It does not know: how anything is done.
"""

import json
import logging
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging as transformers_logging

from layermem.cli.screen import screen
from layermem.config import Run, Task
from layermem.efficiency.costs import Cost, cost
from layermem.experiments import presets as known
from layermem.models.registry import lookup, variants
from layermem.runs import RunFolder, write_whole


def presets(rest: list[str]) -> None:
    """Print presets with what they cost, and the variants."""
    if rest:
        raise ValueError(f"layermem presets takes no arguments, got {' '.join(rest)}")
    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    for name in known.names():
        run = known.lookup(name)
        entry = lookup("plain")
        sizes, length = _sizes(run)
        config = entry.config(**sizes)
        tokens = round(run.max_steps * run.optim.batch_size * length)
        one = cost(config, entry.variant, round(length))
        table.add_row(
            name,
            _short(one.parameters),
            _short(tokens),
            f"{one.training * tokens / round(length):.1e}",
            known.description(name),
        )
    console = screen()
    console.print(table)
    console.print(f"\nvariants: {', '.join(variants())} (parameters and FLOPs above: plain)")


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
    """What the task is made of, each NAME=VALUE, as in --task.options."""


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
    problems = task.problems(asked.split, asked.count, asked.seed, **options)
    for problem in problems[: asked.show]:
        console.print(f"{problem.prompt}\n{problem.solution}\n", markup=False, highlight=False)
    table = Table("what", "value", box=None)
    for what, value in task.describe(problems).items():
        table.add_row(what, _plainly(value))
    console.print(table)


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
    options: tuple[str, ...] | None = None
    """Other options of the task than the run had, each NAME=VALUE."""
    batch_size: int = 256
    """Problems solved at once."""
    out: Path | None = None
    """File for the result, as JSON."""


def solve(rest: list[str]) -> None:
    """Solve problems with a trained model."""
    from layermem.evals.solving import solve_with
    from layermem.train.run import load_run

    asked = tyro.cli(Solve, prog="layermem solve", args=rest)
    folder = RunFolder(asked.run)
    if not folder.final.exists():
        raise ValueError(f"{asked.run} has no final model: it is no run folder, or has not ended")
    task = load_run(folder.config).task
    if task.name is None:
        raise ValueError(f"{asked.run} learnt text, no task; layermem tasks lists the tasks")
    task = replace(
        task,
        seed=task.seed if asked.seed is None else asked.seed,
        options=task.options if asked.options is None else asked.options,
    )
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


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Count parameters and FLOPs of variants, in closed form."""

    presets: tyro.conf.Positional[tuple[str, ...]] = ("paper-1b-gqa", "paper-1b-full")
    """Presets whose sizes are counted."""
    variants: str = "plain,lime"
    """Variants; the first is what the others are compared with."""
    tokens: int | None = None
    """Tokens of a sequence; None: the preset's."""


def costs(rest: list[str]) -> None:
    """Print what variants cost."""
    asked = tyro.cli(Costs, prog="layermem costs", args=rest)
    names = ("", "variant", "parameters", "more", "FLOPs", "more", "paper's FLOPs", "more")
    table = Table(*names, box=None)
    for preset in asked.presets:
        run = known.lookup(preset)
        sizes, length = _sizes(run)
        first: list[Cost] = []
        for name in asked.variants.split(","):
            entry, tokens = lookup(name), asked.tokens or round(length)
            config = entry.config(**sizes)
            both = [cost(config, entry.variant, tokens, c) for c in ("honest", "paper")]
            first = first or both
            more = [one.against(base) for one, base in zip(both, first, strict=True)]
            cells = [f"{both[0].parameters / 1e9:.5f}B", f"{more[0][0]:+.2%}"]
            for one, (_, flops) in zip(both, more, strict=True):
                cells += [f"{one.forward / 1e12:.4f}T", f"{flops:+.2%}"]
            table.add_row(f"{preset}, {tokens}" if both is first else "", name, *cells)
    console = screen()
    console.print(table)
    console.print(
        "FLOPs of the forward of one sequence: two a multiply-add, attention to the keys a causal "
        "query sees. The paper's (Table 8): one a multiply-add of linear layers and routers, two "
        "of attention, all keys."
    )


def analyze(rest: list[str]) -> None:
    """Look inside checkpoints, and write a page about it."""
    from layermem.experiments import analyze as inside
    from layermem.report import analysis, page

    # The checkpoint stands alone, as a preset does.
    given = ["--checkpoint", *rest] if rest and not rest[0].startswith("-") else rest
    asked = tyro.cli(inside.Analyze, prog="layermem analyze", args=given)
    transformers_logging.disable_progress_bar()
    found, path = inside.run(asked), asked.out / "index.html"
    content = analysis.table(found)
    table = Table(*content.header, box=None)
    for row in content.rows:
        table.add_row(*row)
    console = screen()
    console.print(table)
    console.print(content.caption)
    if asked.figure is not None:
        analysis.draw(found, asked.figure)
    page.write_page(analysis.build(found, shlex.join(["layermem", "analyze", *rest])), path)
    logging.getLogger(__name__).info("the page: %s", path.resolve())


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Draw the learning curves of runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("curves.svg")
    """File to draw into: .svg, .png or .pdf."""


def curves(rest: list[str]) -> None:
    """Draw curves."""
    from layermem.report.curves import draw_curves

    asked = tyro.cli(Curves, prog="layermem curves", args=rest)
    draw_curves(asked.runs, asked.out)
    logging.getLogger(__name__).info("%s", asked.out)


def _sizes(run: Run) -> tuple[dict[str, Any], float]:
    """Return the model's sizes, the vocabulary too, and the tokens of a sequence."""
    sizes, length, vocabulary = run.model.sizes(), float(run.data.block_size), 50257
    if run.task.name:
        from layermem.train.problems import measure

        vocabulary, length = measure(run.task)
    elif run.data.tokenizer == "bytes":
        vocabulary = 257
    return {**sizes, "vocab_size": sizes["vocab_size"] or vocabulary}, length


def _plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _short(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
