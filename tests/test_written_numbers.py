"""Intervals written by hand in README.md and the results are those of a table or of the log."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("page", ["README.md", *RESULTS])
def test_written_intervals_are_recorded(page):
    tables = "\n".join(tables_and_text(read(result))[0] for result in RESULTS)
    assert list(intervals(tables))
    _, text = tables_and_text(read(page))
    if page == "README.md":
        text = read(page)
    log = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/log/*.md"))
    assert not unknown(text, f"{tables}\n{log}")


def test_an_interval_that_is_in_no_table_is_seen():
    table = "| `lime` | -0.3547 ± 0.2251 | 91.31% ± 2.62% | 1,234.5 +- 6.7 |"
    assert not unknown("ahead by 0.35 ± 0.23, 91.3% +- 2.6%, 1,235 ± 7", table)
    (other,) = unknown("ahead by 0.36 +- 0.23", table)
    assert other == (Decimal("0.36"), Decimal("0.23"), "")
    # A share is not a number, and one interval's mean does not go with another's half.
    assert len(unknown("91.3 ± 2.6, 91.3% ± 0.2%", table)) == 2
