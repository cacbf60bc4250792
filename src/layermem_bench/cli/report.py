"""`layermem report`: one page or one long table about recorded runs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from layermem_bench.cli.screen import show_result

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write one page about runs: results with intervals, curves, costs, commands."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or folders above them; with --table also records of studies (study.json)."""
    against: str | None = None
    """Arm the others are compared with, as the table calls it; None: the first run's, in a folder
    the plain decoder's."""
    planned: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """These are all runs that were planned before the first one, and nothing else is read of them:
    differences are tested. Else they are described."""
    table: Path | None = None
    """File (csv, parquet) for all values of the runs as one long table, in place of the page."""
    out: Path = Path("report")
    """Folder for study.json and the page."""


def report(options: Report, command: str) -> None:
    """Print the results of runs, and write the page about them, or all their values."""
    from layermem_bench.studies.gathering import gather_runs, write_table

    if options.table is not None:
        if options.table.suffix not in (".csv", ".parquet"):
            raise ValueError(f"--table must end in .csv or .parquet, got {options.table}")
        options.table.parent.mkdir(parents=True, exist_ok=True)
        from layermem_bench.config.typed_dicts import read_result
        from layermem_bench.studies.result import StudyResult

        results = [read_result(StudyResult, each) for each in options.runs if each.is_file()]
        if folders := [each for each in options.runs if not each.is_file()]:
            results.append(gather_runs(folders, command=command))
        logger.info("%s: %d rows", options.table, write_table(results, options.table))
    else:
        out, against, planned = options.out, options.against, options.planned
        result = gather_runs(options.runs, out, against=against, planned=planned, command=command)
        show_result(result, out)
