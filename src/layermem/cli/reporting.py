"""Commands that report: what variants cost, how runs were trained, all on one page.

It does not know: how anything is computed or drawn.
"""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem.cli.screen import show, write

logger = logging.getLogger(__name__)


def report(rest: list[str]) -> None:
    """Write a page about runs, and print their results."""
    from layermem.experiments import summary
    from layermem.report import summary as told

    asked = tyro.cli(summary.Report, prog="layermem report", args=rest)
    found = summary.run(asked, shlex.join(["layermem", "report", *rest]))
    for table in told.tables(found):
        show(table)
    logger.info("%s", told.INTERVALS)
    write(told.build(found), asked.out)


def costs(rest: list[str]) -> None:
    """Print what variants cost."""
    from layermem.experiments import costs as counting
    from layermem.report import costs as told
    from layermem.report import figures

    asked = tyro.cli(counting.Costs, prog="layermem costs", args=rest)
    if asked.figure is not None:
        figures.check(asked.figure)
    found = counting.run(asked, shlex.join(["layermem", "costs", *rest]))
    show(told.counted(found["points"]))
    if asked.measure:
        show(told.measured(found))
    if asked.figure is not None:
        told.draw(found, asked.figure)


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
    logger.info("%s", asked.out)
