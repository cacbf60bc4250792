"""Where commands print, how tables look there, and where pages go.

It does not know: what is printed.
"""

import logging
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn

from layermem.report.page import Page, Table, write_page

logger = logging.getLogger(__name__)


def screen() -> Console:
    """Return a console as wide as its terminal, or wide enough for tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def show(table: Table) -> None:
    """Print a page's table."""
    drawn = Drawn(*map(escape, table.header), box=None)
    for row in table.texts():
        drawn.add_row(*map(escape, row))
    console = screen()
    console.print(drawn)
    if table.caption:
        console.print(table.caption, markup=False, highlight=False)


def write(page: Page, folder: Path) -> None:
    """Write a page into a folder, and say where it is."""
    path = folder / "index.html"
    write_page(page, path)
    logger.info("the page: %s", path.resolve())
