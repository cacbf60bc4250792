"""Where commands print, how tables and values look there, and where pages go."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from layermem_bench.config.run import Run
    from layermem_bench.report.page import Page, Section, Table
    from layermem_bench.results.study import StudyResult
    from layermem_bench.study.estimates import Estimate

logger = logging.getLogger(__name__)
# Characters of a name that a table leaves on one line.
_LONGEST_NAME = 40


def screen() -> "Console":
    """Return a console as wide as its terminal, or wide enough for tables where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=120)


@contextmanager
def progress(first: str) -> Iterator[Callable[[str, int | None, int | None], None]]:
    """Show on standard error what a command is doing, ``first`` at the beginning.

    What is yielded is called with what is being done now, how much is done, and of how much, where
    that is known. Transformers shows no bars of its own meanwhile.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(first, total=None)

        def tell(what: str, done: int | None = None, total: int | None = None) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        yield tell


def show(table: "Table") -> None:
    """Print a page's table."""
    from rich.markup import escape
    from rich.table import Column
    from rich.table import Table as RichTable

    # The column of names, after that of ranks, stays whole where it can: other columns are wrapped.
    # A longer name is broken over lines: cut, two arms could look alike.
    rows, names = table.texts(), int(not table.header[0])
    is_short = all(len(row[names]) <= _LONGEST_NAME for row in rows)
    columns = (
        Column(escape(header), overflow="fold", no_wrap=is_short and place == names)
        for place, header in enumerate(table.header)
    )
    printed = RichTable(*columns, box=None)
    for row in rows:
        printed.add_row(*map(escape, row))
    console = screen()
    console.print(printed)
    if table.caption:
        console.print(table.caption, markup=False, highlight=False)


def write(page: "Page", folder: Path) -> None:
    """Write a page into a folder, and say where it is."""
    from layermem_bench.report.page import write_page

    path = folder / "index.html"
    write_page(page, path)
    logger.info("the page: %s", path.resolve())


def show_result(result: "StudyResult", folder: Path, further: "Sequence[Section]" = ()) -> None:
    """Print the tables of a study and what came out, and write its page into a folder.

    ``further``: sections of the page about what else was given.
    """
    from layermem_bench.report import study as report
    from layermem_bench.report.study_tables import INTERVALS

    for table in report.tables(result):
        show(table)
    screen().print(f"{INTERVALS} {report.sentence(result)}", markup=False, highlight=False)
    write(report.build(result, further), folder)


def show_estimate(run: "Run") -> None:
    """Print how long a run would take here."""
    from layermem_bench.study.estimates import estimate_run

    show_estimates([estimate_run(run)])


def show_estimates(boards: "Sequence[Estimate]") -> None:
    """Print what runs would take here."""
    from layermem_bench.efficiency.measuring import describe_machine
    from layermem_bench.report.numbers import format_duration, with_unit
    from layermem_bench.report.page import Table
    from layermem_bench.study.estimates import UNCERTAINTY
    from layermem_bench.study.steps import device

    rows = [
        [
            each.board,
            f"{each.trials} + {each.counting}",
            f"{each.recorded}" + (f", {each.failed} failed" if each.failed else ""),
            "" if each.parameters is None else with_unit(each.parameters, 3),
            with_unit(each.tokens, 3),
            "" if each.flops is None else f"{each.flops:.2e}",
            format_duration(3600 * each.hours),
        ]
        for each in boards
    ]
    bases = dict.fromkeys(each.basis for each in boards)
    how = " ".join(f"{basis}: from {UNCERTAINTY[basis]}." for basis in bases)
    header = ["board", "runs", "recorded", "parameters", "tokens", "FLOPs", "still to come"]
    caption = (
        f"Runs that choose rates + those that count. Time of {describe_machine(device())}, {how}"
    )
    show(Table(header=header, rows=rows, caption=caption if boards else "It trains nothing."))


def format_plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {format_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
