"""`layermem quickstart`: the effect in minutes, as a table and a page."""

import logging
from dataclasses import dataclass, fields
from pathlib import Path

from layermem.cli.screen import show
from layermem.number_ranges import at_least, number
from layermem.results.quickstart import QuickstartOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Quickstart(QuickstartOptions):
    """Train a plain decoder and LIMe on arithmetic side by side, and write a page about it."""

    out: Path | None = None
    """Folder of runs and page; default: runs/quickstart-sSEED."""
    jobs: int = number(2, at_least(1))
    """Runs at once."""


def quickstart(options: Quickstart, command: str) -> None:
    """Show the mechanism at work."""
    from layermem.report import quickstart as report
    from layermem.report.page import write_page
    from layermem.study.quickstart import train_quickstart

    out = options.out or Path("runs") / f"quickstart-s{options.seed}"
    sizes = QuickstartOptions(
        **{field.name: getattr(options, field.name) for field in fields(QuickstartOptions)}
    )
    result = train_quickstart(sizes, out, jobs=options.jobs, command=command)
    path = out / "index.html"
    show(report.table(result))
    write_page(report.build(result), path)
    logger.info("\n%s\n\nthe page: %s", report.meaning(result), path.resolve())
