"""The command line: one tyro application, a file for each command, errors as one line.

    layermem COMMAND [options]      options are the fields of the command's dataclass

Options are read before anything heavy is imported: a command's file imports torch and transformers,
and what needs them, in the function that carries the command out.

It does not know: how anything is done.
"""

import difflib
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from layermem.cli import study as studies
from layermem.cli.analyze import Analyze, analyze
from layermem.cli.blimp import Blimp, blimp
from layermem.cli.convert import Convert, convert
from layermem.cli.costs import Costs, costs
from layermem.cli.curves import Curves, curves
from layermem.cli.eval import Eval, evaluate
from layermem.cli.finetune import Finetune, finetune
from layermem.cli.generate import Generate, generate
from layermem.cli.perplexity import Perplexity, perplexity
from layermem.cli.presets import Presets, presets
from layermem.cli.quickstart import Quickstart, quickstart
from layermem.cli.report import Report, report
from layermem.cli.solve import Solve, solve
from layermem.cli.starting_run import StartingRun, with_base_run
from layermem.cli.tasks import Tasks, tasks
from layermem.cli.train import Train, train
from layermem.cli.variants import Variants, variants
from layermem.number_ranges import check_numbers

DESCRIPTION = "Train, compare and look inside transformers whose attention reads earlier layers."
COMMANDS: dict[str, tuple[type[Any], Callable[[Any, str], None]]] = {
    "quickstart": (Quickstart, quickstart),
    "train": (Train, train),
    "finetune": (Finetune, finetune),
    "presets": (Presets, presets),
    "variants": (Variants, variants),
    "tasks": (Tasks, tasks),
    "study": (studies.AnyStudy, studies.study),
    "solve": (Solve, solve),
    "generate": (Generate, generate),
    "perplexity": (Perplexity, perplexity),
    "blimp": (Blimp, blimp),
    "eval": (Eval, evaluate),
    "convert": (Convert, convert),
    "costs": (Costs, costs),
    "analyze": (Analyze, analyze),
    "report": (Report, report),
    "curves": (Curves, curves),
}
"""Name of each command to its options and what it does, given them and the command as typed."""
FORMER = {
    "sweep": "layermem study PRESET ...",
    "arena": "layermem study BOARD,BOARD ...",
    "reproduce": "layermem study paper/NAME ...; --list is layermem list studies",
    "retrofit": "layermem study retrofit MODEL ...",
    "encoders": "layermem study encoders RECORDS ...",
}
"""What commands are called that had names of their own."""
# Errors whose message says what is wrong; of others the kind and the place are needed too.
_TOLD_ERRORS: tuple[type[Exception], ...] = (ValueError, TypeError, OSError, RuntimeError)
# Characters of an error's line: a model that does not fit its weights names every one of them.
_LONGEST_LINE = 2000


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; errors are one line, whoever raises them."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] == "help":
        args = ["--help"]
    if args[0] in FORMER:
        sys.exit(f"layermem: {args[0]} is now: {FORMER[args[0]]}")
    if not args[0].startswith("-") and args[0] not in COMMANDS:
        close = difflib.get_close_matches(args[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        sys.exit(f"layermem: unknown command {args[0]!r}; {hint}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "filelock", "fsspec", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        options = parse(args)
        check_numbers(options, "--")
        _, execute = COMMANDS[args[0]]
        execute(options, shlex.join(["layermem", *args]))
    except BrokenPipeError:
        # Whoever read the output has gone (| head): the rest of it has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if os.environ.get("LAYERMEM_DEBUG"):
            raise
        sys.exit(f"layermem: {_in_one_line(error)} (LAYERMEM_DEBUG=1 shows where)")
    except KeyboardInterrupt:
        sys.stderr.write("layermem: interrupted\n")
        # What shells expect of a program that Ctrl-C has ended.
        sys.exit(128 + signal.SIGINT)
    # A command that has not imported torch has not joined other processes.
    if "torch" in sys.modules:
        from layermem.train.processes import exit_if_distributed

        exit_if_distributed()


def _in_one_line(error: Exception) -> str:
    """Return what an error says, without line breaks, and cut where it is very long."""
    of_configs = _model_config_errors()
    # The message of a config's own check is the cause of the error that is raised.
    cause = error.__cause__ if isinstance(error, of_configs) else None
    text = " ".join(line.strip() for line in str(cause or error).splitlines() if line.strip())
    if not text or not isinstance(error, _TOLD_ERRORS + of_configs):
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__ + ": " * bool(text)
        text = f"{kind}{text} in {Path(place.filename).name}, line {place.lineno}"
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}..."


def _model_config_errors() -> tuple[type[Exception], ...]:
    """Return the error of a model's config that is invalid; none where nothing can have raised it.

    Its module takes long to import, and every --help ends in an exception.
    """
    errors = sys.modules.get("huggingface_hub.errors")
    return (errors.StrictDataclassError,) if errors is not None else ()


def parse(args: Sequence[str]) -> Any:
    """Return the options of a command, an instance of its dataclass."""
    if args[0] not in COMMANDS:
        return tyro.cli(_any_command(), prog="layermem", description=DESCRIPTION, args=args)
    # A parser of its own, so that an error names the command's help and no other's options.
    command, rest = args[0], list(args[1:])
    kind, _ = COMMANDS[command]
    if command == "study":
        return studies.parse(rest)
    if issubclass(kind, StartingRun):
        # Its defaults are those of the preset, or of the config, that it starts from.
        default = with_base_run(kind, command, rest)
        return tyro.cli(kind, prog=f"layermem {command}", args=rest, default=default)
    return tyro.cli(kind, prog=f"layermem {command}", args=rest)


def _any_command() -> Any:
    """Return a type whose subcommands are all commands, for the help that lists them."""
    subcommands = [
        Annotated[kind, tyro.conf.subcommand(name)] for name, (kind, _) in COMMANDS.items()
    ]
    return Union[tuple(subcommands)]  # noqa: UP007  (of a list that is made here)
