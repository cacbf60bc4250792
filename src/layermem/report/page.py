"""One HTML page that needs nothing else: no network, no other file, read on light and on dark.

It does not know: torch, run folders, what the numbers mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from layermem.runs import write_whole


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing with its caption."""

    svg: str
    """An svg element, as ``figures`` makes them."""
    caption: str
    """What it shows, and where its numbers come from."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """Drawings of which one is seen at a time, chosen from a list. Without scripts, all are."""

    label: str
    """What is chosen."""
    options: Sequence[tuple[str, Figure]]
    """Name and drawing of each."""
    first: int = 0
    """Which is seen at first."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts below a header."""

    header: Sequence[str]
    """Names of the columns."""
    rows: Sequence[Sequence[str]]
    """Texts of the cells."""
    caption: str = ""
    """What it shows, and where its numbers come from."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One problem, and what each model made of it."""

    problem: str
    """The prompt."""
    expected: str
    """A right solution."""
    written: Sequence[tuple[str, str, str]]
    """Of each model: its name, what it wrote, what is wrong with it (empty: nothing)."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. What it has is shown in the order of these fields."""

    title: str
    """Its heading."""
    paragraphs: Sequence[str] = ()
    """Texts."""
    table: Table | None = None
    """A table."""
    figures: Sequence[Figure] = ()
    """Drawings, side by side where there is room."""
    switches: Sequence[Switch] = ()
    """Drawings to choose from, side by side where there is room."""
    attempts: Sequence[Attempt] = ()
    """Problems with what models wrote."""
    commands: Sequence[str] = ()
    """Commands that print what is shown."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page."""

    title: str
    """Its name."""
    lead: str
    """What it shows, in a sentence or two."""
    sections: Sequence[Section] = field(default_factory=tuple)
    """Its parts."""


def write_page(page: Page, path: Path) -> None:
    """Write a page, whole or not at all. Everything but the drawings is escaped."""
    environment = Environment(
        loader=PackageLoader("layermem.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, environment.get_template("page.html").render(page=page))
