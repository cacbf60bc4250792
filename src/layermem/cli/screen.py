"""Where commands print.

It does not know: what.
"""

from rich.console import Console


def screen() -> Console:
    """Return a console as wide as its terminal, or wide enough for tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=120)
