"""Drawing arithmetic expressions: forms, and the numbers that fit them."""

import random
from dataclasses import replace

import pytest

from layermem_bench.tasks.arithmetic_drawing import (
    Rules,
    count_shapes,
    draw_form,
    fill_form,
    fitting_numbers,
    is_written,
)
from layermem_bench.tasks.expressions import evaluate

RULES = Rules(
    operators="+-*/",
    operand_max=20,
    value_max=200,
    parentheses="needed",
    trivial=0.0,
    held_out="strict",
)


def test_numbers_that_fit_a_value():
    # 6 * n, 42 - n and n / 7, as in the docstring of fill_form.
    assert fitting_numbers("*", 6, 1, False, RULES) == list(range(2, 21))
    assert fitting_numbers("-", 42, 1, False, RULES) == list(range(1, 21))
    assert fitting_numbers("/", 7, 0, False, RULES) == [14]
    assert fitting_numbers("/", 7, 0, True, RULES) == [7, 14]
    assert fitting_numbers("*", 100, 0, False, RULES) == [2]


def test_a_form_keeps_its_shape_and_gets_its_value():
    form = ("-", ("*", None, None), ("/", None, ("+", None, None)))
    draw = random.Random(0)
    filled = [pair for pair in (fill_form(form, RULES, draw) for _ in range(300)) if pair]
    assert len(filled) > 30
    for expression, value in filled:
        operator, left, right = expression
        assert (operator, left[0], right[0], right[2][0]) == ("-", "*", "/", "+")
        assert evaluate(expression) == value


def test_shapes_are_as_likely_as_each_other():
    assert [count_shapes(n) for n in range(1, 6)] == [1, 1, 2, 5, 14]
    draw, rules = random.Random(0), replace(RULES, operators="+")
    forms = [draw_form(4, rules, draw) for _ in range(5000)]
    counts = [forms.count(form) for form in set(forms)]
    assert len(counts) == 5 and all(count == pytest.approx(1000, abs=120) for count in counts)


@pytest.mark.parametrize(
    ("form", "policies"),
    [
        (("+", None, ("-", None, None)), {"all"}),
        (("*", None, ("/", None, None)), {"all"}),
        (("*", ("+", None, None), None), {"all", "needed"}),
        (("-", None, ("-", None, None)), {"all", "needed"}),
        (("-", ("-", None, None), None), {"all", "needed", "none"}),
        (("+", None, ("*", None, None)), {"all", "needed", "none"}),
    ],
)
def test_which_forms_are_written_under_which_policy(form, policies):
    assert {name for name in ("all", "needed", "none") if is_written(form, name)} == policies
