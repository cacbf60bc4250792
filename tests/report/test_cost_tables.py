"""Costs as tables and curves: what is compared with what."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from recorded import a_point as point

from layermem_bench.report import cost_tables
from layermem_bench.report.numbers import in_bytes, with_unit
from layermem_bench.results.costs import Costs, Measurement


def lines(points):
    """Return what is drawn: title of each plot to its lines."""
    drawn = {}
    for plot, title in cost_tables.drawings(points):
        axes = Figure().add_subplot()
        plot(axes)
        drawn[title] = {
            line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.lines
        }
    return drawn


def test_curves_are_of_what_each_costs_more_than_the_first():
    found = lines([point(4), point(2), point(8)])
    assert list(found) == ["FLOPs of a forward by layers"]
    ((name, (across, up)), (other, (_, twice))) = found["FLOPs of a forward by layers"].items()
    assert (name, other, across) == ("a", "b", [2, 4, 8])
    assert up == pytest.approx([0.02, 0.04, 0.08]) and twice == pytest.approx([0.04, 0.08, 0.16])


def test_lines_are_told_apart_by_what_else_differs():
    grid = [point(layers, width, p) for layers in (2, 4) for width in (8, 16) for p in "pq"]
    found = lines(grid)
    assert list(found) == ["FLOPs of a forward by layers", "FLOPs of a forward by width"]
    assert "a, p, width 8" in found["FLOPs of a forward by layers"]
    assert "b, q, layers 4" in found["FLOPs of a forward by width"]


def test_measured_time_is_drawn_where_every_point_has_it():
    def timed(layers, seconds):
        times = {"plain": 1.0, "a": seconds, "b": seconds}
        measured = {
            name: Measurement(seconds=time, low=0.0, high=0.0, peak=5)
            for name, time in times.items()
        }
        # The last mode is what is drawn.
        return point(layers, measured={"eager": {}, "default": measured})

    found = lines([timed(2, 1.5), timed(4, 2.0)])
    assert found["time of a step by layers (default)"]["a"] == ([2, 4], [0.5, 1.0])
    assert "time of a step by layers (default)" not in lines([timed(2, 1.5), point(4)])


def test_nothing_to_compare_is_not_drawn():
    alone = replace(point(2), counted={"plain": point(2).counted["plain"]})
    assert lines([alone, replace(alone, layers=4)]) == {}
    assert lines([point(2)]) == {}


def test_the_table_counts_more_than_the_first():
    rows = cost_tables.counted_table([point(4)]).texts()
    assert rows[0] == ["p: 4 x 8, 2 heads, T 4", "plain", "1k", "", "100", "", "100", ""]
    assert rows[1][:5] == ["", "a", "1k", "+0.00%", "104"] and rows[2][5] == "+8.00%"


def test_measured_time_and_memory_stand_beside_what_the_first_takes():
    def step(seconds, peak):
        return Measurement(seconds=seconds, low=0.9 * seconds, high=seconds, peak=peak)

    by_arm = {"plain": step(0.1, 2 * 10**9), "a": step(0.15, 2_500_000_000), "b": step(0.2, None)}
    points = (point(4, kv_heads=1, measured={"eager": by_arm}),)
    measured = Costs(command="", points=points, precision="float32", machine="x")
    where, *rows = cost_tables.measured_table(measured).texts()
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


def test_a_file_that_was_counted_and_not_measured_says_so():
    part = cost_tables.given_section("t", Costs(command="the command", points=(point(2), point(4))))
    assert part.paragraphs == ["Counted, not measured: it was written without --measure."]
    assert len(part.tables) == 1 and part.commands == ["the command"]
    assert [f.caption for f in part.figures] == [
        "p: FLOPs of a forward by layers, more than plain."
    ]


def test_a_part_of_runs_draws_along_depth_and_says_what_would_measure():
    part = cost_tables.counted_section("t", [point(2)], [[point(2), point(4)], []], "do this")
    assert part.paragraphs == ["do this"] and len(part.figures) == 1
    part = cost_tables.counted_section("t", [point(2)], [[], []], "")
    assert part.paragraphs == [
        "Curves along depth and width want a second variant of the same sizes."
    ]
