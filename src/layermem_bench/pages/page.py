"""One HTML page that needs nothing else, its tables, and how numbers are written there."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from layermem_base.files import write_atomically
from layermem_bench.statistics import Interval


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

    def with_alike_below(self, titles: Collection[str], lines: str) -> "Table":
        """Return the table with columns in which all ``lines`` agree said once, in its caption."""
        columns = dict(zip(self.header, zip(*self.rows, strict=True), strict=False))
        alike = {t: columns[t][0] for t in titles if t in columns and len(set(columns[t])) == 1}
        said = ", ".join(f"{title} {value}" for title, value in alike.items())
        caption = f"{self.caption} All {lines}: {said}." if said else self.caption
        return replace(self.without(alike), caption=caption.strip())


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


def with_unit(number: float, digits: int = 6, billion: str = "B") -> str:
    """Write a large number with its unit: 1.08B."""
    for unit, size in (("T", 1e12), (billion, 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"


def in_bytes(number: float, digits: int = 4) -> str:
    """Write a number of bytes: 8.21GB."""
    return f"{with_unit(number, digits, 'G')}B"


def format_p(p: float | None) -> str:
    """Write a p-value; nothing where there is none."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def with_p(difference: str, p: str) -> str:
    """Write a difference with its p-value as it is written, if it has one."""
    return f"{difference} (p {p if p.startswith('<') else f'= {p}'})" if p else difference


def format_number(
    value: float | None, is_share: bool, sign: str = "", decimals: int | None = None
) -> str:
    """Write a share in percent, a large number with its unit, a small one with five digits.

    ``sign``: "+" shows that of a positive number too. ``decimals``: how many, where it is known.
    """
    if value is None:
        return ""
    if is_share:
        return format(value, f"{sign}.{1 if decimals is None else decimals}%")
    if abs(value) >= 1e6:
        return ("-" if value < 0 else sign) + with_unit(abs(value))
    if decimals is None:
        # Five digits of what is small, such as the seconds of a step.
        small = 0 < abs(value) < 0.1
        decimals = 4 - math.floor(math.log10(abs(value))) if small else 4
    return format(value, f"{sign}.{decimals}f")


def format_interval(value: Interval | None, is_share: bool, sign: str = "") -> str:
    """Write a mean with half the width of its interval, rounded to two digits of that.

    Of a share, which has no sign, whose interval leaves 0 to 1: with the ends that are inside.
    """
    if value is None:
        return ""
    if not math.isfinite(value.half):
        return f"{format_number(value.mean, is_share, sign)} (one seed)"
    low, high = value.ends
    if is_share and not sign and not 0 <= low <= high <= 1:
        return format_ends(value.mean, (low, high), is_share)
    decimals = _decimals(value.half, is_share)
    shown = format_number(value.mean, is_share, sign, decimals)
    return f"{shown} ± {format_number(value.half, is_share, decimals=decimals)}"


def format_ends(value: float, ends: Sequence[float], is_share: bool, sign: str = "") -> str:
    """Write a value with the ends of its interval, rounded to two digits of half its width.

    Those of a share, which has no sign, lie in 0 to 1.
    """
    if not ends:
        return format_number(value, is_share, sign)
    if is_share and not sign:
        ends = [min(1.0, max(0.0, end)) for end in ends]
    decimals = _decimals((ends[1] - ends[0]) / 2, is_share)
    middle, low, high = (format_number(v, is_share, sign, decimals) for v in (value, *ends))
    return f"{middle} ({low} to {high})"


def format_duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    units = (("years", 31_557_600.0), ("days", 86_400.0), ("h", 3_600.0), ("min", 60.0))
    for unit, length in units:
        if (count := seconds / length) >= 1:
            return f"{count:.2g} {unit}" if count < 99 else f"{count:,.0f} {unit}"
    return f"{seconds:.2g} s"


def _decimals(half: float, is_share: bool) -> int | None:
    """Return the decimals by which half a width has two digits; None: it is 0."""
    shown = 100 * half if is_share else half
    if not shown:
        return None
    decimals = max(0, 1 - math.floor(math.log10(shown)))
    # 0.0996 is 0.100 by then.
    rounded = round(shown, decimals)
    return max(0, 1 - math.floor(math.log10(rounded))) if rounded else decimals
