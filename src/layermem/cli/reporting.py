"""Commands that report: what goes on inside, what it costs, how it was learnt, all on one page.

It does not know: how anything is computed or drawn.
"""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro
from transformers.utils import logging as transformers_logging

from layermem.cli.screen import show

logger = logging.getLogger(__name__)


def analyze(rest: list[str]) -> None:
    """Look inside checkpoints, and write a page about it."""
    from layermem.experiments import analyze as inside
    from layermem.report import analysis, page

    # The checkpoint stands alone, as a preset does.
    given = ["--checkpoint", *rest] if rest and not rest[0].startswith("-") else rest
    asked = tyro.cli(inside.Analyze, prog="layermem analyze", args=given)
    transformers_logging.disable_progress_bar()
    found, path = inside.run(asked), asked.out / "index.html"
    show(analysis.table(found))
    if asked.figure is not None:
        analysis.draw(found, asked.figure)
    page.write_page(analysis.build(found, shlex.join(["layermem", "analyze", *rest])), path)
    logger.info("the page: %s", path.resolve())


def costs(rest: list[str]) -> None:
    """Print what variants cost."""
    from layermem.experiments import costs as counting
    from layermem.report import costs as told

    at = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    given = ["--presets", *rest] if at else rest
    asked = tyro.cli(counting.Costs, prog="layermem costs", args=given)
    found = counting.run(asked)
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
