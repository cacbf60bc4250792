"""One HTML page that needs nothing else: no network, no other file, read on light and on dark."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined

from layermem_base.files import write_atomically

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Link:
    """Text that leads to where it comes from."""

    text: str
    mark: str
    """The row of a table it leads to: one of its ``marks``."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing with its caption."""

    svg: str
    """An svg element, as ``figures`` makes them."""
    caption: str
    """What it shows, and where its numbers come from."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Drawings of which one is seen at a time, at first the last, chosen from a list. Without
    scripts, all are."""

    label: str
    options: Sequence[tuple[str, Figure]]


Cell = str | Link | Sequence[Link]
Columns = Mapping[str, Callable[[_Row], Cell]]
"""Columns of a table: the title of each, and what writes its cell of a row."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts below a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    """What it shows, and where its numbers come from."""
    marks: Sequence[str] = ()
    """Of each row, what links to it are called; empty: nothing leads here."""

    @classmethod
    def over(cls, rows: Iterable[_Row], columns: Columns[_Row], caption: str = "") -> "Table":
        """Return a table with a line for each row, written by the columns."""
        rows = list(rows)
        cells = {title: [write(row) for row in rows] for title, write in columns.items()}
        return cls.of_columns(cells, caption)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[Cell]], caption: str = "") -> "Table":
        """Return a table of the columns that have a cell with something in it."""
        shown = {title: cells for title, cells in columns.items() if any(cells)}
        rows = [list(row) for row in zip(*shown.values(), strict=True)]
        return cls(header=list(shown), rows=rows, caption=caption)

    def texts(self) -> list[list[str]]:
        """Return the cells without their links."""
        return [[_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. What it has is shown in the order of these fields."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    """Drawings, side by side where there is room."""
    switches: Sequence[Switch] = ()
    """Drawings to choose from, side by side where there is room."""
    commands: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    lead: str
    sections: Sequence[Section] = ()


def write_page(page: Page, path: Path) -> None:
    """Write a page, whole or not at all. Everything but the drawings is escaped."""
    environment = Environment(
        loader=PackageLoader("layermem_bench.pages", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, environment.get_template("page.html").render(page=page))


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return cell.text if isinstance(cell, Link) else " ".join(link.text for link in cell)
