"""Where commands print, and how tables look there.

It does not know: what is printed.
"""

from rich.console import Console
from rich.table import Table as Drawn

from layermem.report.page import Table


def screen() -> Console:
    """Return a console as wide as its terminal, or wide enough for tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def show(table: Table) -> None:
    """Print a page's table."""
    drawn = Drawn(*table.header, box=None)
    for row in table.texts():
        drawn.add_row(*row)
    console = screen()
    console.print(drawn)
    if table.caption:
        console.print(table.caption, markup=False, highlight=False)
