"""How numbers are written: two digits of the half width, units, what is within noise."""

import math

import pytest

from layermem_bench.pages import page
from layermem_bench.pages.page import format_ends, format_interval, format_number, format_p
from layermem_bench.statistics import Interval


@pytest.mark.parametrize(
    ("mean", "half", "is_share", "written"),
    [
        (0.017038, 0.058259, False, "+0.017 ± 0.058"),
        (-0.32149, 0.0672, False, "-0.321 ± 0.067"),
        (1.23456, 12.3, False, "+1 ± 12"),
        # 0.0996 is 0.100 in two digits, and so are 0.995 and 9.96 the next power of ten.
        (0.5, 0.0996, False, "+0.50 ± 0.10"),
        (0.5, 0.996, False, "+0.5 ± 1.0"),
        (50.0, 9.96, False, "+50 ± 10"),
        (1e-5, 3.456e-6, False, "+0.0000100 ± 0.0000035"),
        (-1.0, 0.0, False, "-1.0000 ± 0.0000"),
        (0.21, 0.12706, True, "+21% ± 13%"),
        (0.00512, 0.0003456, True, "+0.512% ± 0.035%"),
        (0.2, math.inf, True, "+20.0% (one seed)"),
        (0.2, math.inf, False, "+0.2000 (one seed)"),
    ],
)
def test_means_have_two_digits_of_their_half_width(mean, half, is_share, written):
    assert format_interval(Interval(mean=mean, half=half, count=3), is_share, "+") == written
    unsigned = format_interval(Interval(mean=abs(mean), half=half, count=3), is_share)
    assert unsigned == written.lstrip("+-")


@pytest.mark.parametrize(
    ("mean", "half", "written", "signed"),
    [
        (0.83, 0.48, "83% (35% to 100%)", "+83% ± 48%"),
        (0.00012, 0.0003456, "0.012% (0.000% to 0.047%)", "+0.012% ± 0.035%"),
        (0.4, 1.27, "40% (0% to 100%)", "+40% ± 127%"),
        (1.0, 0.0, "100.0% ± 0.0%", "+100.0% ± 0.0%"),
    ],
)
def test_intervals_of_shares_end_at_0_and_1_and_those_of_differences_do_not(
    mean, half, written, signed
):
    each = Interval(mean=mean, half=half, count=3)
    assert format_interval(each, True) == written
    assert format_interval(each, True, "+") == signed
    assert format_ends(0.4, (-0.2, 1.5), True) == "40% (0% to 100%)"
    assert format_ends(0.4, (-0.2, 1.5), True, "+") == "+40% (-20% to +150%)"


def test_small_numbers_have_five_digits_and_large_ones_a_unit():
    assert format_number(0.0123456, False) == "0.012346"
    assert format_number(-2.5e9, False, "+") == "-2.5B" and format_number(2e6, False, "+") == "+2M"
    assert format_number(0.5, True, "+") == "+50.0%"
    assert list(map(page.format_duration, (90, 7200, 5))) == ["1.5 min", "2 h", "5 s"]


@pytest.mark.parametrize(
    ("p", "written", "beside"),
    [
        (0.0009, "< 0.001", "x (p < 0.001)"),
        (0.0499, "0.050", "x (p = 0.050)"),
        (0.5, "0.500", "x (p = 0.500)"),
        (None, "", "x"),
    ],
)
def test_p_values_have_three_decimals(p, written, beside):
    assert format_p(p) == written and page.with_p("x", written) == beside
