"""`layermem report`: one page about recorded runs.

It does not know: how runs are compared or drawn.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem.cli.screen import show, write

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page about runs: results with intervals, curves, costs, commands."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of several."""
    against: str | None = None
    """Arm the others are compared with, as the table calls it; None: the first run's, in a folder
    the plain decoder's."""
    analysis: tuple[Path, ...] = ()
    """Folders that layermem analyze has written, shown on the page."""
    evaluation: tuple[Path, ...] = ()
    """Folders that layermem perplexity, blimp or eval has written, shown on the page."""
    costs: Path | None = None
    """File that layermem costs --measure --out has written, shown on the page."""
    out: Path = Path("report")
    """Folder for report.json and the page."""


def report(options: Report, command: str) -> None:
    """Print the results of runs, and write the page about them."""
    from layermem.experiments.comparison import compare_runs
    from layermem.report import comparison as page
    from layermem.report.outcomes import INTERVALS

    comparison = compare_runs(
        options.runs,
        options.out,
        against=options.against,
        analyses=options.analysis,
        evaluations=options.evaluation,
        costs=options.costs,
        command=command,
    )
    for table in page.tables(comparison):
        show(table)
    logger.info("%s", INTERVALS)
    write(page.build(comparison), options.out)
