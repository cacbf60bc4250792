"""`layermem report`: one page about recorded runs."""

import logging
from dataclasses import dataclass
from pathlib import Path

import tyro

from layermem_bench.cli.screen import show_result

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
    """Folders that layermem eval has written, shown on the page."""
    costs: Path | None = None
    """File that layermem costs --measure --out has written, shown on the page."""
    figure: Path | None = None
    """File (svg, png, pdf) for the learning curves of the runs, in place of the page."""
    out: Path = Path("report")
    """Folder for study.json and the page."""


def report(options: Report, command: str) -> None:
    """Print the results of runs, and write the page about them, or draw their curves."""
    if options.figure is not None:
        from layermem_bench.report.drawings import draw_curves

        draw_curves(options.runs, options.figure)
        logger.info("%s", options.figure)
        return
    from layermem_bench.report.study import given_sections
    from layermem_bench.study.run_folders import compare_runs

    result = compare_runs(options.runs, options.out, against=options.against, command=command)
    further = given_sections(result, options.analysis, options.evaluation, options.costs)
    show_result(result, options.out, further)
