"""The command line, a function for each command. Options are fields of frozen configs.

It does not know: how anything is done.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from huggingface_hub.errors import StrictDataclassError

from layermem.cli import reporting, running, showing

_USAGE = """layermem COMMAND

  layermem quickstart [--out DIR] [--seed N]               plain and LIMe side by side, in minutes
  layermem train PRESET [--variant NAME] [--out DIR] [--seed N] [--max-steps N] [--save-every N]
                        [--resume] [--optim.lr X ...]      train; --help lists every option
  layermem train --config DIR/config.yaml [...]            repeat a run
  layermem sweep PRESET [--variants plain,lime] [--seeds 5] [--rates 1e-3 3e-3] [--jobs N]
                        [--out DIR] [...]                  compare variants, with intervals
  layermem presets                                         list presets and variants
  layermem tasks [NAME] [--options operands=6 ...]         show problems and what they are like
  layermem solve RUN [--count N] [--options operands=6 ...] solve problems with a trained model
  layermem costs [PRESET ...] [--variants plain,lime] [--measure] [--layers 4 8 16]
                                                           parameters and FLOPs, time and memory
  layermem analyze CHECKPOINT [--against CHECKPOINT] [--text PATH] [--words is are was were]
                                                           entropy, probes, layouts, routers
  layermem report RUN [RUN ...] [--against ARM] [--analysis DIR] [--costs FILE] [--out DIR]
                                                           one page: results, curves, costs, insides
  layermem curves RUN [RUN ...] --out FILE.svg              draw learning curves side by side
"""

_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "quickstart": running.quickstart,
    "train": running.train,
    "sweep": running.sweep,
    "presets": showing.presets,
    "tasks": showing.tasks,
    "solve": showing.solve,
    "costs": reporting.costs,
    "analyze": reporting.analyze,
    "report": reporting.report,
    "curves": reporting.curves,
}


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
    except BrokenPipeError:
        # Whoever read the output has gone (| head): what is left of it has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, TypeError, OSError, RuntimeError, StrictDataclassError) as error:
        if os.environ.get("LAYERMEM_DEBUG"):
            raise
        # What a config's own check says is the cause of the error that is raised.
        said = error.__cause__ if isinstance(error, StrictDataclassError) else None
        sys.exit(f"layermem: {said or error} (LAYERMEM_DEBUG=1 shows where)")
    except KeyboardInterrupt:
        sys.stderr.write("layermem: interrupted\n")
        # What shells expect of a program that Ctrl-C has ended.
        sys.exit(128 + signal.SIGINT)
    from layermem.train.processes import exit_if_distributed

    exit_if_distributed()
