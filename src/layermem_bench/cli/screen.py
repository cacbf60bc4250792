"""Where commands print, how tables and values look there, and where pages go."""

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from layermem_bench.config.run import Run
    from layermem_bench.pages.page import Page, Table
    from layermem_bench.studies.estimates import Estimate
    from layermem_bench.studies.result import StudyResult

logger = logging.getLogger(__name__)
# Characters that a column of longer texts keeps in a terminal.
_LEAST = 12
_NUMBER = re.compile(
    r"[<+-]?\s?\d[\d.,]*(e[+-]?\d+)?\s?(%|[kMGTB]+)?"
    r"( ± \d[\d.,]*%?| \([+-]?\d[\d.,]*%? to [+-]?\d[\d.,]*%?\))?"
)


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

    from layermem_bench.run.progress import logs_above

    transformers_logging.disable_progress_bar()
    before, columns = sys.stderr, (TextColumn("{task.description}"), BarColumn())
    on_stderr = Console(stderr=True)
    shown = Progress(*columns, TimeElapsedColumn(), console=on_stderr, transient=True)
    # What is logged meanwhile is above the bar.
    with shown, logs_above(before):
        bar = shown.add_task(first, total=None)

        def tell(what: str, done: int | None = None, total: int | None = None) -> None:
            shown.update(bar, description=what, completed=done, total=total)

        yield tell


def show(table: "Table") -> None:
    """Print a page's table: in a terminal texts are wrapped, none is cut; elsewhere, as in a pipe,
    it is as wide as it needs."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    console, printed = screen(), RichTable(box=None)
    columns = list(zip(table.header, *table.texts(), strict=True))
    longest = [max(map(len, cells), default=0) for _, *cells in columns]
    # Short columns stay whole as long as the longer ones have room.
    rooms = {n: sum(2 + (each if each <= n else _LEAST) for each in longest) for n in longest}
    for (header, *cells), length in zip(columns, longest, strict=True):
        printed.add_column(
            escape(header),
            overflow="fold",
            no_wrap=rooms[length] <= console.width,
            justify="right" if _are_numbers(cells) else "left",
        )
    for row in table.texts():
        printed.add_row(*map(escape, row))
    if not console.is_terminal:
        as_wide = console.options.update(width=10_000)
        console.width = max(console.width, console.measure(printed, options=as_wide).maximum)
    console.print(printed)
    if table.caption:
        console.print(table.caption, markup=False, highlight=False)


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether all cells that are not empty are numbers, with units and intervals."""
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells if cell)


def write(page: "Page", folder: Path) -> None:
    """Write a page into a folder, and say where it is."""
    from layermem_bench.pages.page import write_page

    path = folder / "index.html"
    write_page(page, path)
    logger.info("the page: %s", path.resolve())


def show_result(result: "StudyResult", folder: Path) -> None:
    """Print the tables of a study and what came out, and write its page into a folder."""
    from layermem_bench.pages import study as report
    from layermem_bench.pages.study_tables import INTERVALS

    for table in report.tables(result):
        show(table)
    screen().print(f"{INTERVALS} {report.sentence(result)}", markup=False, highlight=False)
    write(report.build(result), folder)


def show_estimate(run: "Run") -> None:
    """Print how long a run would take here."""
    from layermem_bench.studies.estimates import estimate_run

    show_estimates([estimate_run(run)])


def show_estimates(boards: "Sequence[Estimate]") -> None:
    """Print what runs would take here."""
    from layermem_bench.pages.numbers import format_duration, with_unit
    from layermem_bench.pages.page import Table

    rows = [
        [
            each.board,
            f"{each.trials} + {each.counting}",
            f"{each.recorded}",
            with_unit(each.tokens, 3),
            "" if each.flops is None else f"{each.flops:.2e}",
            "unknown" if each.hours is None else format_duration(3600 * each.hours),
        ]
        for each in boards
    ]
    header = ["board", "runs", "recorded", "tokens", "FLOPs", "still to come"]
    caption = (
        "Runs that choose rates + those that count. Time is known where runs of the same shape are "
        "recorded in --out or runs/: tokens by their tokens a second, without validation."
    )
    show(Table(header=header, rows=rows, caption=caption if boards else "It trains nothing."))


def format_plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {format_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
