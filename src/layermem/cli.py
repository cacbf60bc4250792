"""The command line, a function for each command. Options are fields of frozen configs.

It does not know: how anything is done.
"""

import atexit
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers.utils import logging as transformers_logging

from layermem.config import Run, Task, to_dict
from layermem.experiments import comparison, presets, router_init
from layermem.models.counting import forward_flops, parameters
from layermem.models.registry import lookup, variants
from layermem.runs import RunFolder, write_whole

_USAGE = """layermem COMMAND

  layermem quickstart [--out DIR] [--seed N]               plain and LIMe side by side, in minutes
  layermem train PRESET [--variant NAME] [--out DIR] [--seed N] [--max-steps N] [--save-every N]
                        [--resume] [--optim.lr X ...]      train; --help lists every option
  layermem train --config DIR/config.yaml [...]            repeat a run
  layermem sweep PRESET [--variants plain,lime] [--seeds 5] [--jobs N] [--out DIR] [...]
                                                           compare variants, with intervals
  layermem presets                                         list presets and variants
  layermem tasks [NAME] [--options operands=6 ...]         show problems and what they are like
  layermem solve RUN [--count N] [--options operands=6 ...] solve problems with a trained model
  layermem curves RUN [RUN ...] --out FILE.svg              draw learning curves side by side
  layermem experiment NAME [--out DIR] [--jobs N] [...]    a comparison, run by run: router-init
"""


@dataclass(frozen=True, kw_only=True)
class Invocation(Run):
    """Train one model. Every option is a field of the run's config."""

    out: Path | None = None
    """Folder of the run; default: runs/PRESET-VARIANT-sSEED."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; errors a user can mend are one line."""
    given = list(sys.argv[1:] if argv is None else argv)
    command, rest = (given[0], given[1:]) if given else ("--help", [])
    if command in ("-h", "--help", "help"):
        sys.stdout.write(_USAGE)
        return
    if command not in _COMMANDS:
        sys.exit(f"layermem: unknown command {command!r}\n\n{_USAGE}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "filelock", "fsspec", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        _COMMANDS[command](rest)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        if os.environ.get("LAYERMEM_DEBUG"):
            raise
        sys.exit(f"layermem: {error} (LAYERMEM_DEBUG=1 shows where)")
    _leave_others()


def _leave_others() -> None:
    """End a process that is one of several, here, while Python is whole.

    Gloo's threads outlive their group for as long as anything refers to it (DTensor's caches do),
    and may still hold the last tensors: freed while the interpreter shuts down, those abort the
    process, now and then. So what is due at exit is done, and the interpreter is not shut down.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return
    several = distributed.get_world_size() > 1
    distributed.destroy_process_group()
    if several:
        atexit._run_exitfuncs()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def train(rest: list[str]) -> None:
    """Train the run of a preset or a config, with options on top."""
    from layermem.evals.solving import evaluate
    from layermem.train.run import train as train_run

    run, rest = _begun("train", rest)
    defaults = {f.name: getattr(run, f.name) for f in fields(Run)}
    asked = tyro.cli(Invocation, prog="layermem train", args=rest, default=Invocation(**defaults))
    run = Run(**{f.name: getattr(asked, f.name) for f in fields(Run)})
    lookup(run.variant)
    # One display is enough.
    transformers_logging.disable_progress_bar()
    out = asked.out or Path("runs") / f"{run.preset}-{run.variant}-s{run.seed}"
    folder = train_run(run, out, resume=asked.resume, evaluate=evaluate)
    logging.getLogger(__name__).info("%s", folder.path)


def _begun(command: str, rest: list[str]) -> tuple[Run, list[str]]:
    """Return the run of a preset or a config, and the options that follow."""
    from layermem.train.run import load_run

    if rest and not rest[0].startswith("-"):
        return presets.lookup(rest[0]), rest[1:]
    if "--config" in rest and rest.index("--config") + 1 < len(rest):
        at = rest.index("--config")
        return load_run(rest[at + 1]), rest[:at] + rest[at + 2 :]
    if "--help" in rest or "-h" in rest:
        return Run(), rest
    raise ValueError(
        f"layermem {command}: name a preset or give --config; presets: {', '.join(presets.names())}"
    )


@dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """Compare variants seed by seed; what has ended is not run again, what was begun goes on.

    Every other option is a field of the runs' config, as in `layermem train`.
    """

    variants: str = "plain,lime"
    """Variants, the first is what the others are compared with; options of one follow a colon
    (lime:router_init=identity)."""
    seeds: int = 5
    """Seeds, from --seed on, the same for every variant."""
    jobs: int = 1
    """Runs at once."""
    out: Path | None = None
    """Folder of all its runs; default: runs/PRESET."""


def sweep(rest: list[str]) -> None:
    """Compare variants on a preset."""
    base, rest = _begun("sweep", rest)
    defaults = {f.name: getattr(base, f.name) for f in fields(Run)}
    asked = tyro.cli(Sweep, prog="layermem sweep", args=rest, default=Sweep(**defaults))
    base = Run(**{f.name: getattr(asked, f.name) for f in fields(Run)})
    if asked.seeds < 1 or asked.jobs < 1:
        raise ValueError(f"--seeds and --jobs must be at least 1, got {asked.seeds}, {asked.jobs}")
    seeds, out = range(base.seed, base.seed + asked.seeds), asked.out or Path("runs") / base.preset
    found = comparison.compare(base, asked.variants, seeds, out, asked.jobs)
    command = shlex.join(["layermem", "sweep", *sys.argv[2:]])
    about = {"command": command, "seeds": list(seeds), "run": to_dict(base)}
    comparison.keep(out / "sweep.json", about, found)
    title = (
        f"{base.preset}, {base.max_steps:,} steps, seeds {seeds[0]} to {seeds[-1]}; 95% intervals"
    )
    comparison.show(title, found, Console())


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
    console = Console()
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


def run_quickstart(rest: list[str]) -> None:
    """Show the mechanism at work, in minutes."""
    from layermem.experiments import quickstart
    from layermem.report import page
    from layermem.report import quickstart as told

    asked = tyro.cli(quickstart.Quickstart, prog="layermem quickstart", args=rest)
    found, path = quickstart.run(asked), asked.folder / "index.html"
    content = told.table(found)
    table = Table(*content.header, box=None)
    for row in content.rows:
        table.add_row(*row)
    Console().print(table)
    page.write_page(told.build(found, shlex.join(["layermem", "quickstart", *rest])), path)
    logging.getLogger(__name__).info("\n%s\n\nthe page: %s", told.MEANING, path.resolve())


def experiment(rest: list[str]) -> None:
    """Run an experiment: what is recorded is not run again."""
    known = {"router-init": (router_init.RouterInit, router_init.main)}
    if not rest or rest[0] not in known:
        raise ValueError(f"name an experiment; there are {', '.join(known)}")
    config, work = known[rest[0]]
    work(tyro.cli(config, prog=f"layermem experiment {rest[0]}", args=rest[1:]))


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

    console = Console()
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


def _plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def list_presets(rest: list[str]) -> None:
    """Print presets with what they cost, and the variants."""
    if rest:
        raise ValueError(f"layermem presets takes no arguments, got {' '.join(rest)}")
    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    for name in presets.names():
        run = presets.lookup(name)
        entry = lookup("plain")
        sizes, length = _sizes(run)
        config = entry.config(**sizes)
        tokens = round(run.max_steps * run.optim.batch_size * length)
        flops = 3 * tokens * forward_flops(config, entry.variant, round(length))
        table.add_row(
            name,
            _short(parameters(config, entry.variant)),
            _short(tokens),
            f"{flops:.1e}",
            presets.description(name),
        )
    console = Console()
    console.print(table)
    console.print(f"\nvariants: {', '.join(variants())} (parameters and FLOPs above: plain)")


def _sizes(run: Run) -> tuple[dict[str, Any], float]:
    """Return the model's sizes, the vocabulary too, and the tokens of a sequence."""
    sizes, length, vocabulary = run.model.sizes(), float(run.data.block_size), 50257
    if run.task.name:
        from layermem.train.problems import measure

        vocabulary, length = measure(run.task)
    elif run.data.tokenizer == "bytes":
        vocabulary = 257
    return {**sizes, "vocab_size": sizes["vocab_size"] or vocabulary}, length


def _short(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "quickstart": run_quickstart,
    "train": train,
    "sweep": sweep,
    "presets": list_presets,
    "tasks": tasks,
    "solve": solve,
    "curves": curves,
    "experiment": experiment,
}

if __name__ == "__main__":
    main()
