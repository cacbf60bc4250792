"""One HTML page that needs nothing else: no network, no other file, read on light and on dark."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from layermem_base.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing, an svg element, with what it shows and where its numbers come from."""

    svg: str
    caption: str
    fold: str = ""
    """The line that it is folded under; empty: it is seen at once."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts below a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    """What it shows, and where its numbers come from."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], caption: str = "") -> "Table":
        """Return a table of rows by the titles of their columns, without columns of nothing."""
        titles = dict.fromkeys(title for row in rows for title in row)
        shown = [title for title in titles if any(row.get(title) for row in rows)]
        lines = [[row.get(title, "") for title in shown] for row in rows]
        return cls(header=shown, rows=lines, caption=caption)

    def without(self, titles: Collection[str]) -> "Table":
        """Return the table without some columns."""
        kept = [i for i, title in enumerate(self.header) if title not in titles]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, header=[self.header[i] for i in kept], rows=rows)


@dataclass(frozen=True)
class Section:
    """A part of the page. What it has is shown in the order of these fields."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    """Drawings, side by side where there is room."""
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
