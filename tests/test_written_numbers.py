"""Intervals written by hand in README.md and the results are those of a record or of the log."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from layermem_bench.report.study import tables
from layermem_bench.results.files import read_result
from layermem_bench.results.study import StudyResult

ROOT = Path(__file__).parents[1]
_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
_INTERVAL = re.compile(rf"(?P<mean>{_NUMBER})(?P<unit>%?) (?:±|\+-) (?P<half>{_NUMBER})(?P=unit)")
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


def unknown(text: str, sources: str) -> list[Written]:
    """Return the intervals of a text that are not in the sources."""
    known = list(intervals(sources))
    return [
        (mean, half, unit)
        for mean, half, unit in intervals(text)
        if not any(
            unit == other_unit and rounds_to(other_mean, mean) and rounds_to(other_half, half)
            for other_mean, other_half, other_unit in known
        )
    ]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tables_and_text(page: str) -> tuple[str, str]:
    """Return the lines of a page that are of tables, and the others."""
    lines = page.splitlines()
    return (
        "\n".join(line for line in lines if line.startswith("|")),
        "\n".join(line for line in lines if not line.startswith("|")),
    )


RESULTS = ["docs/results.md"]
RESULTS += sorted(f"docs/results/{path.name}" for path in ROOT.glob("docs/results/*.md"))


RESULTS += ["docs/recipe.md"]


@pytest.fixture(scope="module")
def recorded():
    """Return the tables of the pages, those of the records, which have more, and the log."""
    texts = [tables_and_text(read(page))[0] for page in RESULTS]
    records = ROOT / "docs" / "records"
    for path in (*records.glob("*.json"), *records.glob("artefacts/*.json")):
        if '"kind": "study"' in path.read_text(encoding="utf-8"):
            for table in tables(read_result(StudyResult, path)):
                texts += [" | ".join(row) for row in table.texts()]
    assert list(intervals("\n".join(texts)))
    return "\n".join([*texts, *(p.read_text(encoding="utf-8") for p in ROOT.glob("docs/log/*.md"))])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", *RESULTS])
def test_written_intervals_are_recorded(page, recorded):
    _, text = tables_and_text(read(page))
    if not page.startswith("docs/re"):
        text = read(page)
    assert not unknown(text, recorded)


def meaningless_digits(text):
    """Return the intervals of a text that have more than two digits of their half width."""
    return [
        found[0]
        for found in _INTERVAL.finditer(text)
        for half in [found["half"].replace(",", "")]
        if ("." in half and len(half.replace(".", "").lstrip("0")) > 2)
        or len(half.partition(".")[2]) != len(found["mean"].partition(".")[2])
    ]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", *RESULTS])
def test_no_interval_has_digits_without_meaning(page):
    assert not meaningless_digits(read(page))
    shown = (
        "+5.35% ± 3.62%, 0.25 ± 0.4, 1,234.5 ± 6.7, +0.020 ± 0.058, 40% ± 127%, 0.0079 +- 0.00581"
    )
    assert len(meaningless_digits(shown)) == 3


def test_an_interval_that_is_in_no_table_is_seen():
    table = "| `lime` | -0.3547 ± 0.2251 | 91.31% ± 2.62% | 1,234.5 +- 6.7 |"
    assert not unknown("ahead by 0.35 ± 0.23, 91.3% +- 2.6%, 1,235 ± 7", table)
    (other,) = unknown("ahead by 0.36 +- 0.23", table)
    assert other == (Decimal("0.36"), Decimal("0.23"), "")
    # A share is not a number, and one interval's mean does not go with another's half.
    assert len(unknown("91.3 ± 2.6, 91.3% ± 0.2%", table)) == 2
