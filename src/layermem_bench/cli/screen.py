"""Where commands print, how tables and values look there, and where pages go."""

import logging
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from layermem_bench.config.run import Run
    from layermem_bench.report.page import Page, Section, Table
    from layermem_bench.results.study import StudyResult
    from layermem_bench.study.estimates import Estimate

logger = logging.getLogger(__name__)
# Characters of a name that a table leaves on one line, and of another cell.
_LONGEST_NAME = 40
_LONGEST_CELL = 30
# Characters of a line of a header.
_SHORT_LINE = 10
# Characters that a column of longer texts is wrapped to at least.
_SHORTEST_TEXT = 24
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
def bars(*columns: "ProgressColumn") -> "Iterator[Progress]":
    """Show bars on standard error until the end, below what is logged meanwhile."""
    from rich.console import Console
    from rich.progress import Progress

    from layermem_bench.train.progress import logs_above

    before = sys.stderr
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    with shown, logs_above(before):
        yield shown


@contextmanager
def progress(first: str) -> Iterator[Callable[[str, int | None, int | None], None]]:
    """Show on standard error what a command is doing, ``first`` at the beginning.

    What is yielded is called with what is being done now, how much is done, and of how much, where
    that is known. Transformers shows no bars of its own meanwhile.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with bars(*columns) as shown:
        bar = shown.add_task(first, total=None)

        def tell(what: str, done: int | None = None, total: int | None = None) -> None:
            shown.update(bar, description=what, completed=done, total=total)

        yield tell


def show(table: "Table") -> None:
    """Print a page's table, in a terminal without the columns that it has no room for.

    Elsewhere, as in a pipe, it is as wide as it needs.
    Names and numbers stay whole; long texts are wrapped. A name that is longer than a line is
    broken over lines: cut, two arms could look alike.
    """
    from rich.markup import escape
    from rich.table import Table as RichTable

    console, rows = screen(), table.texts()
    names = int(not table.header[0])
    columns = dict(enumerate(zip(*([table.header, *rows]), strict=True)))
    wraps = console.is_terminal
    room = {i: _room(column, i == names, wraps=wraps) for i, column in columns.items()}
    if not wraps:
        console.width = max(console.width, sum(room.values()))
    left_out = _without_room(table, room, console.width)
    printed = RichTable(box=None)
    for place, (header, *cells) in columns.items():
        if place not in left_out:
            longest = max(map(len, cells), default=0)
            printed.add_column(
                escape(_header(header, cells) if wraps else header),
                overflow="fold",
                no_wrap=longest <= (_LONGEST_NAME if place == names else _LONGEST_CELL),
                justify="right" if _are_numbers(cells) else "left",
            )
    for row in rows:
        printed.add_row(*(escape(cell) for i, cell in enumerate(row) if i not in left_out))
    console.print(printed)
    told = ", ".join(" ".join(table.header[place].split()) for place in sorted(left_out))
    for line in (f"No room here for: {told}." * bool(told), table.caption):
        if line:
            console.print(line, markup=False, highlight=False)


def _without_room(table: "Table", room: Mapping[int, int], width: int) -> set[int]:
    """Return the places of columns without which a table fits: those that it can miss, then those
    at the right. Names and a column beside them stay."""
    names, header = int(not table.header[0]), list(table.header)
    order = [header.index(name) for name in table.least if name in header]
    order += [place for place in reversed(range(names + 1, len(header))) if place not in order]
    left_out: set[int] = set()
    for place in order[:-1]:
        if sum(each for i, each in room.items() if i not in left_out) > width:
            left_out.add(place)
    return left_out


def _room(column: Sequence[str], has_names: bool, *, wraps: bool) -> int:
    """Return the characters that a column needs at least, with those between columns."""
    header, *cells = column
    longest = max(map(len, cells), default=0)
    limit = _LONGEST_NAME if has_names else _LONGEST_CELL
    lines = _header(header, cells).splitlines() if wraps else [header]
    return 2 + max(longest if longest <= limit else _SHORTEST_TEXT, *map(len, lines), 0)


def _header(header: str, cells: Sequence[str]) -> str:
    """Return a header in short lines, or in lines as wide as its cells."""
    widths = [*map(len, cells), *map(len, header.split()), _SHORT_LINE]
    return textwrap.fill(header, max(widths), break_long_words=False, break_on_hyphens=False)


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether all cells that are not empty are numbers, with units and intervals."""
    return any(cells) and all(_NUMBER.fullmatch(cell) for cell in cells if cell)


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
    from layermem_bench.report.numbers import format_duration, with_unit
    from layermem_bench.report.page import Table

    rows = [
        [
            each.board,
            f"{each.trials} + {each.counting}",
            f"{each.recorded}" + (f", {each.failed} failed" if each.failed else ""),
            "" if each.parameters is None else with_unit(each.parameters, 3),
            with_unit(each.tokens, 3),
            "" if each.flops is None else f"{each.flops:.2e}",
            "unknown" if each.hours is None else format_duration(3600 * each.hours),
        ]
        for each in boards
    ]
    header = ["board", "runs", "recorded", "parameters", "tokens", "FLOPs", "still to come"]
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
