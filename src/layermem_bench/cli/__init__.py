"""The command line: one tyro application, a file for each command, errors as one line.

    layermem COMMAND [options]      options are the fields of the command's dataclass

Options are read before anything heavy is imported: a command's file imports torch and transformers,
and what needs them, in the function that carries the command out.
"""

import argparse
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layermem_base import __version__
from layermem_base.number_ranges import check_numbers
from layermem_base.plugins import add_plugins, load_plugins
from layermem_bench.cli import study, train
from layermem_bench.cli.analyze import Analyze, analyze
from layermem_bench.cli.costs import Costs, costs
from layermem_bench.cli.eval import Eval, evaluate
from layermem_bench.cli.listing import ListAny, list_
from layermem_bench.cli.models import Models, models
from layermem_bench.cli.options import read_options
from layermem_bench.cli.prepare import Prepare, prepare
from layermem_bench.cli.prepare import parse as parse_prepare
from layermem_bench.cli.quickstart import Quickstart, quickstart
from layermem_bench.cli.report import Report, report

HELP = """\
usage: layermem [--plugin MODULE] COMMAND [options]
       layermem COMMAND --help

Train, compare and look inside transformers whose attention reads earlier layers.

  quickstart  a plain decoder and LIMe learn arithmetic side by side, in minutes
  train       train one model: PRESET; --host.model MODEL goes on with one
              of transformers
  prepare     tokenize a text beforehand, by several tasks
  study       compare arms, seed by seed: PRESET, BOARD,BOARD, paper/NAME,
              retrofit MODEL, recipe
  eval        measure checkpoints: --tasks ppl=FILE blimp=DIR arithmetic arc_easy
  analyze     what goes on inside a checkpoint: entropy, probes, layouts, routers
  report      one page about recorded runs, or one long table: --table FILE
  list        presets, variants, tasks, evals, studies
  costs       parameters, FLOPs, time and memory of variants; what a run takes
              on a cluster: --gpus N --device NAME
  models      fetch, convert

--plugin MODULE (a module, or a .py file) adds variants, tasks, presets and
studies of your own. --version prints the version.
"""
"""What ``layermem --help`` prints."""
COMMANDS: dict[str, tuple[type[Any], Callable[[Any, str], None]]] = {
    "quickstart": (Quickstart, quickstart),
    "train": (train.Train, train.train),
    "prepare": (Prepare, prepare),
    "study": (study.Carrying, study.study),
    "eval": (Eval, evaluate),
    "analyze": (Analyze, analyze),
    "report": (Report, report),
    "list": (ListAny, list_),
    "costs": (Costs, costs),
    "models": (Models, models),
}
"""Name of each command to its options and what it does, given them and the command as typed."""
# Errors whose message says what is wrong; of others the kind and the place are needed too.
_TOLD_ERRORS: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, RuntimeError)
# Characters of an error's line: a model that does not fit its weights names every one of them.
_LONGEST_LINE = 2000


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; errors are one line, whoever raises them."""
    args = list(sys.argv[1:] if argv is None else argv)
    typed = shlex.join(["layermem", *args])
    plugin = argparse.ArgumentParser("layermem", add_help=False, allow_abbrev=False)
    plugin.add_argument("--plugin", action="append", default=[])
    given, args = plugin.parse_known_args(args)
    if not args or args[0] in ("help", "--help", "-h"):
        sys.stdout.write(HELP)
        return
    if args[0] == "--version":
        sys.stdout.write(f"layermem {__version__}\n")
        return
    # It writes to what stderr is now: Rich puts a stream of its own there, which writes above bars.
    handler: Any = logging.lastResort
    handler.setLevel(logging.INFO)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    for noisy in ("httpx", "filelock", "fsspec", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Of transformers and the hub; one progress display, a command's own, is enough.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if given.plugin:
            add_plugins(given.plugin)
        options = parse(args)
        # Those of installed packages: a saved model of theirs opens once they are imported.
        load_plugins()
        check_numbers(options, "--")
        _, execute = COMMANDS[args[0]]
        execute(options, typed)
    except BrokenPipeError:
        # Whoever read the output has gone (| head): the rest of it has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("LAYERMEM_DEBUG"):
            raise
        sys.exit(f"layermem: {_in_one_line(error)}")
    except KeyboardInterrupt:
        sys.stderr.write("layermem: interrupted\n")
        # What shells expect of a program that Ctrl-C has ended.
        sys.exit(128 + signal.SIGINT)
    # A command that has not imported torch has not joined other processes.
    if "torch" in sys.modules:
        from layermem_bench.run.processes import exit_if_distributed

        exit_if_distributed()


def _in_one_line(error: Exception) -> str:
    """Return what an error says, without line breaks; of others than ours its kind and place."""
    text = " ".join(str(error).split())[:_LONGEST_LINE]
    if text and isinstance(error, _TOLD_ERRORS):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"{type(error).__name__}: {text} in {where} (LAYERMEM_DEBUG=1 shows all of it)"


def parse(args: Sequence[str]) -> Any:
    """Return the options of a command, an instance of its dataclass."""
    # A parser of its own, so that an error names the command's help and no other's options.
    command, rest = args[0], list(args[1:])
    if command not in COMMANDS:
        raise ValueError(f"unknown command {command!r}; there are {', '.join(COMMANDS)}")
    # Commands whose options depend on what comes first.
    if parser := {"study": study.parse, "prepare": parse_prepare}.get(command):
        return parser(rest)
    return read_options(COMMANDS[command][0], command, rest)
