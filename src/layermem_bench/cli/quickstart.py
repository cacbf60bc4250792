"""`layermem quickstart`: the effect in minutes, as a table and a page."""

import logging
from dataclasses import dataclass
from pathlib import Path

from layermem_base.number_ranges import SEED, at_least, number
from layermem_bench.cli.screen import show, write

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Train a plain decoder and LIMe on arithmetic side by side, and write a page about it."""

    seed: int = number(0, SEED)
    """Seed of weights and order of the data, the same for both; 0 was not searched for."""
    epochs: int = number(6, at_least(1))
    """Passes over the expressions."""
    examples: int = number(20_000, at_least(1))
    """Expressions in the training set."""
    test: int = number(2_000, at_least(1))
    """Expressions in the test set."""
    out: Path | None = None
    """Folder of runs and page; default: runs/quickstart-sSEED."""
    jobs: int = number(2, at_least(1))
    """Runs at once."""


def quickstart(options: Quickstart, command: str) -> None:
    """Show the mechanism at work."""
    from transformers.utils import logging as transformers_logging

    from layermem_bench.cli import quickstart_page as page
    from layermem_bench.studies.carrying_out import carry_out
    from layermem_bench.studies.executors import Launching, executor_of

    out = options.out or Path("runs") / f"quickstart-s{options.seed}"
    logger.info(
        "training both on %s expressions of 4 operands, %d epochs; some minutes on two cores",
        f"{options.examples:,}",
        options.epochs,
    )
    transformers_logging.disable_progress_bar()
    study = page.study_of_quickstart(
        seed=options.seed, epochs=options.epochs, examples=options.examples, test=options.test
    )
    result, failure = carry_out(study, out, command, executor_of(Launching(jobs=options.jobs)))
    if failure:
        raise RuntimeError(failure)
    show(page.table(result))
    logger.info("\n%s\n", page.sentence(result))
    write(page.build(result), out)
    logger.info("to go on (with `%s`): %s", page.ACTIVATE, page.FURTHER[0])
