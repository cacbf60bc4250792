"""Where commands print, how tables and values look there, and where pages go."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from layermem_bench.pages.page import Page, Table
    from layermem_bench.studies.estimates import Estimate
    from layermem_bench.studies.result import StudyResult

logger = logging.getLogger(__name__)
# Numbers, with units, signs and intervals.
_NUMBERS = re.compile(r"[<+-]?\s?\d[\d.,]*(e[+-]?\d+)?\s?(%|[kMGTB]+)?( [±(].*\d.*)?")


def screen() -> "Console":
    """Return a console as wide as its terminal; elsewhere, as in a pipe, no line is broken."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def show(table: "Table") -> None:
    """Print a page's table; in a terminal texts are wrapped, and none is cut."""
    from rich.markup import escape
    from rich.table import Table as RichTable

    console, printed = screen(), RichTable(box=None)
    for header, *cells in zip(table.header, *table.rows, strict=True):
        numbers = any(cells) and all(_NUMBERS.fullmatch(cell) for cell in cells if cell)
        printed.add_column(escape(header), overflow="fold", justify="right" if numbers else "left")
    for row in table.rows:
        printed.add_row(*map(escape, row))
    console.print(printed)
    if table.caption:
        console.print(table.caption, markup=False, highlight=False)


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


def show_estimates(boards: "Sequence[Estimate]") -> None:
    """Print what runs would take here."""
    from layermem_bench.pages.page import Table, format_duration, with_unit

    rows = [
        {
            "board": each.board,
            "runs": f"{each.trials} + {each.counting}",
            "recorded": f"{each.recorded}",
            "tokens": with_unit(each.tokens, 3),
            "FLOPs": f"{each.flops:.2e}" if each.flops else "",
            "still to come": (
                "unknown" if each.hours is None else format_duration(3600 * each.hours)
            ),
        }
        for each in boards
    ]
    runs = sum(each.trials + each.counting for each in boards)
    caption = (
        f"{runs} runs: those that choose rates + those that count. Time: by the tokens a second of "
        "runs of the same shape that are recorded in --out or runs/, without validation."
    )
    show(Table.of(rows, caption if boards else "It trains nothing."))


def format_plainly(value: Any) -> str:
    """Write numbers, lists and dicts of them."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {format_plainly(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(format_plainly, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
