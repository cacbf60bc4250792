"""Commands that train: one run, several side by side, the quickstart.

It does not know: how anything is done.
"""

import logging
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import tyro
from transformers.utils import logging as transformers_logging

from layermem.cli.screen import show, write
from layermem.config import Run, merged
from layermem.experiments import comparison, presets, summary
from layermem.models.registry import lookup


@dataclass(frozen=True, kw_only=True)
class Invocation(Run):
    """Train one model. Every option is a field of the run's config."""

    preset: tyro.conf.Suppress[str] = "custom"
    out: Path | None = None
    """Folder of the run; default: runs/PRESET-VARIANT-sSEED."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""


def train(rest: list[str]) -> None:
    """Train the run of a preset or a config, with options on top."""
    from layermem.evals.solving import evaluate
    from layermem.train.run import train as train_run

    run, rest = _begun("train", rest)
    defaults = {f.name: getattr(run, f.name) for f in fields(Run)}
    asked = tyro.cli(
        Invocation, prog="layermem train PRESET", args=rest, default=Invocation(**defaults)
    )
    run = _resolved(run, asked)
    lookup(run.variant)
    # One display is enough.
    transformers_logging.disable_progress_bar()
    out = asked.out or Path("runs") / f"{run.preset}-{run.variant}-s{run.seed}"
    folder = train_run(run, out, resume=asked.resume, evaluate=evaluate)
    logging.getLogger(__name__).info("%s", folder.path)


@dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """Compare variants seed by seed; what has ended is not run again, what was begun goes on.

    Every other option is a field of the runs' config, as in `layermem train`.
    """

    preset: tyro.conf.Suppress[str] = "custom"
    variant: tyro.conf.Suppress[str] = "lime"
    variants: str = "plain,lime"
    """Variants, the first is what the others are compared with; options of one follow colons
    (lime:router=last:router_window=4)."""
    seeds: int = 5
    """Seeds, from --seed on, the same for every variant."""
    rates: tuple[float, ...] = ()
    """Learning rates to try with every variant on a seed kept for that; each then takes its best by
    validation loss. None given: all take --optim.lr."""
    jobs: int = 1
    """Runs at once."""
    out: Path | None = None
    """Folder of all its runs; default: runs/PRESET."""


def sweep(rest: list[str]) -> None:
    """Compare variants on a preset; print a table, and write the page about it."""
    from layermem.report import summary as told

    command = shlex.join(["layermem", "sweep", *rest])
    base, rest = _begun("sweep", rest)
    defaults = {f.name: getattr(base, f.name) for f in fields(Run)}
    asked = tyro.cli(Sweep, prog="layermem sweep PRESET", args=rest, default=Sweep(**defaults))
    base = _resolved(base, asked)
    if asked.seeds < 1 or asked.jobs < 1:
        raise ValueError(f"--seeds and --jobs must be at least 1, got {asked.seeds}, {asked.jobs}")
    seeds, out = range(base.seed, base.seed + asked.seeds), asked.out or Path("runs") / base.preset
    tried = {}
    if asked.rates:
        if comparison.CHOOSING_SEED in seeds:
            raise ValueError(
                f"seed {comparison.CHOOSING_SEED} is kept for choosing rates; choose other --seeds"
            )
        tried = comparison.choose(base, asked.variants, asked.rates, out, asked.jobs)
    taken = {arm: comparison.best(losses) for arm, losses in tried.items()}
    folders = comparison.compare(base, asked.variants, seeds, out, asked.jobs, taken)
    gathered = summary.Report(runs=tuple(folder.path for folder in folders), out=out)
    found = summary.run(gathered, command, tried)
    for table in told.tables(found):
        show(table)
    write(told.build(found), out)


def quickstart(rest: list[str]) -> None:
    """Show the mechanism at work, in minutes."""
    from layermem.experiments import quickstart as shown
    from layermem.report import page
    from layermem.report import quickstart as told

    asked = tyro.cli(shown.Quickstart, prog="layermem quickstart", args=rest)
    found, path = shown.run(asked), asked.folder / "index.html"
    show(told.table(found))
    page.write_page(told.build(found, shlex.join(["layermem", "quickstart", *rest])), path)
    logging.getLogger(__name__).info("\n%s\n\nthe page: %s", told.MEANING, path.resolve())


def _begun(command: str, rest: list[str]) -> tuple[Run, list[str]]:
    """Return the run of a preset or a config, and the options that follow."""
    from layermem.train.run_config import load_run

    if rest and not rest[0].startswith("-"):
        return presets.lookup(rest[0]), rest[1:]
    rest = [part for word in rest for part in _apart(word)]
    if "--config" in rest and rest.index("--config") + 1 < len(rest):
        at = rest.index("--config")
        return load_run(rest[at + 1]), rest[:at] + rest[at + 2 :]
    if "--help" in rest or "-h" in rest:
        return Run(), rest
    raise ValueError(
        f"name a preset first (layermem {command} PRESET [--option ...]) or give --config; "
        f"presets: {', '.join(presets.names())}"
    )


def _apart(word: str) -> list[str]:
    """Return ``--config=FILE`` as two words, and any other as it is."""
    return word.split("=", 1) if word.startswith("--config=") else [word]


def _resolved(base: Run, asked: Run) -> Run:
    """Return the run asked for; its options are added to those of what it began with."""
    run = Run(**{f.name: getattr(asked, f.name) for f in fields(Run)})
    model = replace(run.model, options=merged(base.model.options, run.model.options))
    task = replace(run.task, options=merged(base.task.options, run.task.options))
    return replace(run, model=model, task=task)
