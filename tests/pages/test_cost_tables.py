"""Costs as tables: what is compared with what."""

import pytest
from recorded import a_point as point

from layermem_bench.costs.result import Costs, Measurement
from layermem_bench.pages import cost_tables
from layermem_bench.pages.numbers import in_bytes, with_unit


def test_the_table_counts_more_than_the_first():
    rows = cost_tables.counted_table([point(4)]).rows
    assert rows[0] == ["p: 4 x 8, 2 heads, T 4", "plain", "1k", "", "100", "", "100", ""]
    assert rows[1][:5] == ["", "a", "1k", "+0.00%", "104"] and rows[2][5] == "+8.00%"


def test_measured_time_and_memory_stand_beside_what_the_first_takes():
    def step(seconds, peak):
        return Measurement(seconds=seconds, low=0.9 * seconds, high=seconds, peak=peak)

    by_arm = {"plain": step(0.1, 2 * 10**9), "a": step(0.15, 2_500_000_000), "b": step(0.2, None)}
    points = (point(4, kv_heads=1, measured={"eager": by_arm}),)
    measured = Costs(command="", points=points, precision="float32", machine="x")
    where, *rows = cost_tables.measured_table(measured).rows
    assert where[0] == "p: 4 x 8, 2 heads (1 kv), T 4, eager"
    assert [row[1:] for row in (where, *rows)] == [
        ["plain", "100 ms (90 to 100)", "", "2GB", ""],
        ["a", "150 ms (135 to 150)", "+50.00%", "2.5GB", "+25.00%"],
        ["b", "200 ms (180 to 200)", "+100.00%", "unknown", ""],
    ]


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [(1.07608e9, 6, "1.07608B"), (999, 3, "999"), (5.1e12, 3, "5.1T"), (46432, 3, "46.4k")],
)
def test_large_numbers_are_short(number, digits, text):
    assert with_unit(number, digits) == text


def test_a_billion_bytes_is_a_gigabyte():
    assert [in_bytes(n, 3) for n in (8.21e9, 133_456_789, 512)] == ["8.21GB", "133MB", "512B"]
