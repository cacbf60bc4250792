"""The command line, a function for each command. Options are fields of frozen configs.

It does not know: how anything is done.
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from transformers.utils import logging as transformers_logging

from layermem.config import Run
from layermem.experiments import presets, router_init
from layermem.models.counting import forward_flops, parameters
from layermem.models.registry import lookup, variants

_USAGE = """layermem COMMAND

  layermem train PRESET [--variant NAME] [--out DIR] [--seed N] [--max-steps N] [--save-every N]
                        [--resume] [--optim.lr X ...]      train; --help lists every option
  layermem train --config DIR/config.yaml [...]            repeat a run
  layermem presets                                         list presets and variants
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
    """Leave the group of processes while Python is whole.

    Its threads may still hold tensors; freed while the interpreter shuts down, they abort the
    process, now and then.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def train(rest: list[str]) -> None:
    """Train the run of a preset or a config, with options on top."""
    from layermem.train.run import load_run
    from layermem.train.run import train as train_run

    if rest and not rest[0].startswith("-"):
        run, rest = presets.lookup(rest[0]), rest[1:]
    elif "--config" in rest and rest.index("--config") + 1 < len(rest):
        at = rest.index("--config")
        run, rest = load_run(rest[at + 1]), rest[:at] + rest[at + 2 :]
    elif "--help" in rest or "-h" in rest:
        run = Run()
    else:
        raise ValueError(f"name a preset or give --config; presets: {', '.join(presets.names())}")
    defaults = {f.name: getattr(run, f.name) for f in fields(Run)}
    asked = tyro.cli(Invocation, prog="layermem train", args=rest, default=Invocation(**defaults))
    run = Run(**{f.name: getattr(asked, f.name) for f in fields(Run)})
    lookup(run.variant)
    # One display is enough.
    transformers_logging.disable_progress_bar()
    out = asked.out or Path("runs") / f"{run.preset}-{run.variant}-s{run.seed}"
    folder = train_run(run, out, resume=asked.resume)
    logging.getLogger(__name__).info("%s", folder.path)


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


def experiment(rest: list[str]) -> None:
    """Run an experiment: what is recorded is not run again."""
    known = {"router-init": (router_init.RouterInit, router_init.main)}
    if not rest or rest[0] not in known:
        raise ValueError(f"name an experiment; there are {', '.join(known)}")
    config, work = known[rest[0]]
    work(tyro.cli(config, prog=f"layermem experiment {rest[0]}", args=rest[1:]))


def list_presets(rest: list[str]) -> None:
    """Print presets with what they cost, and the variants."""
    if rest:
        raise ValueError(f"layermem presets takes no arguments, got {' '.join(rest)}")
    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    for name in presets.names():
        run = presets.lookup(name)
        entry = lookup("plain")
        # The vocabulary of bytes where the tokenizer says it.
        sizes = {
            f.name: getattr(run.model, f.name) for f in fields(run.model) if f.name != "options"
        }
        sizes["vocab_size"] = sizes["vocab_size"] or (
            257 if run.data.tokenizer == "bytes" else 50257
        )
        config = entry.config(**sizes)
        tokens = run.max_steps * run.tokens_per_step
        flops = 3 * tokens * forward_flops(config, entry.variant, run.data.block_size)
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


def _short(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": train,
    "presets": list_presets,
    "curves": curves,
    "experiment": experiment,
}

if __name__ == "__main__":
    main()
