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
    """Run folders, or folders of several; with --export also records of studies."""
    against: str | None = None
    """Arm the others are compared with, as the table calls it; None: the first run's, in a folder
    the plain decoder's."""
    figure: Path | None = None
    """File (svg, png, pdf) for the learning curves of the runs, in place of the page."""
    export: Path | None = None
    """File (parquet, csv) for all values of the runs as one long table, which pandas, duckdb and
    polars read, in place of the page; records of studies (study.json) may be named as runs."""
    out: Path = Path("report")
    """Folder for study.json and the page."""

    def __post_init__(self) -> None:
        if self.figure is not None and self.export is not None:
            raise ValueError("--figure and --export are each in place of the page: leave one out")
        if self.figure is None and self.export is None:
            return
        instead = "--export" if self.figure is None else "--figure"
        of_page = {
            "against": self.against is not None,
            "out": self.out != Path("report"),
        }
        if unused := [f"--{name}" for name, given in of_page.items() if given]:
            raise ValueError(
                f"{', '.join(unused)} is for the page, which {instead} does not write: leave it out"
            )


def report(options: Report, command: str) -> None:
    """Print the results of runs, and write the page about them, or draw their curves."""
    if options.figure is not None:
        from layermem_bench.report.drawings import draw_curves
        from layermem_bench.study.run_folders import gather_runs

        draw_curves(gather_runs(options.runs, command=command), options.figure)
        logger.info("%s", options.figure)
        return
    if options.export is not None:
        _export(options, options.export, command)
        return
    from layermem_bench.study.run_folders import compare_runs

    result = compare_runs(
        options.runs,
        options.out,
        against=options.against,
        command=command,
    )
    show_result(result, options.out)


def _export(options: Report, path: Path, command: str) -> None:
    """Write the values of runs, and of the records of studies, as one long table."""
    from layermem_bench.report.export import check, export
    from layermem_bench.results.files import read_result
    from layermem_bench.results.study import StudyResult
    from layermem_bench.study.run_folders import gather_runs

    check(path)
    records = [each for each in options.runs if each.suffix == ".json"]
    folders = [each for each in options.runs if each.suffix != ".json"]
    results = [read_result(StudyResult, each) for each in records]
    if folders:
        results.append(gather_runs(folders, command=command))
    logger.info("%s: %d rows", path, export(results, path))
