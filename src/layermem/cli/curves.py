"""`layermem curves`: learning curves of runs side by side, as one figure.

It does not know: how curves are drawn.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import tyro

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Draw the learning curves of runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    out: Path = Path("curves.svg")
    """File to draw into: .svg, .png or .pdf."""


def curves(options: Curves, command: str) -> None:
    """Draw curves into a file, and print its name."""
    from layermem.report.curves import draw_curves

    draw_curves(options.runs, options.out)
    logger.info("%s", options.out)
