"""Intervals written by hand in README.md and the results are those of a record or of the log."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from layermem_bench.config.typed_dicts import read_result
from layermem_bench.pages.study import tables
from layermem_bench.studies.result import StudyResult

ROOT = Path(__file__).parents[1]
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
_INTERVAL = re.compile(rf"(?P<mean>{_NUMBER})(?P<unit>%?) (?:±|\+-) (?P<half>{_NUMBER})(?P=unit)")
RESULTS = ["docs/results.md"]
RESULTS += sorted(f"docs/results/{path.name}" for path in ROOT.glob("docs/results/*.md"))
PAGES = ["README.md", "docs/index.md", "docs/recipe.md", *RESULTS]
Written = tuple[Decimal, Decimal, str]


def intervals(text: str) -> Iterator[Written]:
    """Yield mean, half width and unit of each "1.23 ± 0.45", or "+-"; of a difference without sign.

    The text says "ahead by 0.25" where the table has -0.25.
    """
    for each in _INTERVAL.finditer(text):
        mean, half = (Decimal(each[part].replace(",", "")) for part in ("mean", "half"))
        yield abs(mean), half, each["unit"]


def rounds_to(exact: Decimal, written: Decimal) -> bool:
    """Return whether a table's number, which is rounded itself, may be written as this one."""
    digits = [Decimal(1).scaleb(int(number.as_tuple().exponent)) for number in (exact, written)]
    return abs(exact - written) <= sum(digits) / 2


def unknown(text: str, known: set[Written]) -> list[Written]:
    """Return the intervals of a text that are not known."""
    return [
        (mean, half, unit)
        for mean, half, unit in intervals(text)
        if not any(u == unit and rounds_to(m, mean) and rounds_to(h, half) for m, h, u in known)
    ]


def tables_and_text(page: str) -> tuple[str, str]:
    """Return the lines of a page that are of tables, and the others."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"(?m)^\|.*", text)), re.sub(r"(?m)^\|.*", "", text)


@pytest.fixture(scope="module")
def recorded():
    """Return the intervals of the pages' tables, of those of the records, and of the log."""
    texts = [tables_and_text(page)[0] for page in RESULTS]
    texts += [path.read_text(encoding="utf-8") for path in ROOT.glob("docs/log/*.md")]
    for path in (ROOT / "docs" / "records").rglob("*.json"):
        if '"kind": "study"' in path.read_text(encoding="utf-8"):
            shown = tables(read_result(StudyResult, path))
            texts += [" | ".join(row) for table in shown for row in table.rows]
    return set(intervals("\n".join(texts)))


@pytest.mark.parametrize("page", PAGES)
def test_written_intervals_are_recorded(page, recorded):
    of_tables, text = tables_and_text(page)
    assert not unknown(text if page in RESULTS else f"{of_tables}\n{text}", recorded)


def test_what_is_in_no_table_is_seen():
    table = "| `lime` | -0.3547 ± 0.2251 | 91.31% ± 2.62% | 1,234.5 +- 6.7 |"
    known = set(intervals(table))
    assert not unknown("ahead by 0.35 ± 0.23, 91.3% +- 2.6%, 1,235 ± 7", known)
    assert unknown("ahead by 0.36 +- 0.23", known) == [(Decimal("0.36"), Decimal("0.23"), "")]
    # A share is not a number, and one interval's mean does not go with another's half.
    assert len(unknown("91.3 ± 2.6, 91.3% ± 0.2%", known)) == 2
