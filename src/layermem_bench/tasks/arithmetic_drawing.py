"""Drawing arithmetic expressions: first a form (shape and operators), then numbers that fit it.

A form is an expression with None in place of every number: ``("-", ("*", None, None), None)`` is
the form of ``6 * 7 - 5``. Drawing everything at once and rejecting what has no exact value would
leave mostly additions of small numbers, since few random divisions come out even.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from layermem_bench.tasks.expressions import OPERATORS, RANK, Expression, apply_operator
from layermem_bench.tasks.problems import require

# How often numbers are drawn for one form before another form is drawn.
_TRIES = 20
Form: TypeAlias = tuple[str, Any, Any] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """What an expression may be made of; the fields are options of ``arithmetic.generate``."""

    operators: str
    operand_max: int
    value_max: int
    trivial: float

    def __post_init__(self) -> None:
        require(
            bool(self.operators) and set(self.operators) <= set(OPERATORS),
            f"operators must be some of {OPERATORS}, got {self.operators!r}",
        )
        require(
            1 <= self.operand_max <= self.value_max,
            "operand_max must be at least 1 and at most value_max, got "
            f"{self.operand_max} and {self.value_max}",
        )
        require(0 <= self.trivial <= 1, f"trivial must be from 0 to 1, got {self.trivial}")


def draw_expression(operands: int, rules: Rules, draw: random.Random) -> Expression | None:
    """Draw a form and numbers for it; None if the form is superfluous or no numbers fit."""
    form = draw_form(operands, rules, draw)
    if not is_written(form):
        return None
    for _ in range(_TRIES):
        if filled := fill_form(form, rules, draw):
            return filled[0]
    return None


def draw_form(operands: int, rules: Rules, draw: random.Random) -> Form:
    """Draw a binary tree, each shape as likely as any other, with an operator at each node.

    The left side gets 1, 2 or 3 of 4 operands with the weights 2, 1 and 2: so many of the 5 shapes
    have such a left side. Then both sides are drawn in the same way.
    """
    if operands == 1:
        return None
    weights = [count_shapes(left) * count_shapes(operands - left) for left in range(1, operands)]
    (left,) = draw.choices(range(1, operands), weights)
    operator = draw.choice(rules.operators)
    return operator, draw_form(left, rules, draw), draw_form(operands - left, rules, draw)


def count_shapes(operands: int) -> int:
    """Return how many binary trees have that many leaves: 1, 1, 2, 5, 14, ... (Catalan numbers)."""
    return math.comb(2 * operands - 2, operands - 1) // operands


def is_written(form: Form) -> bool:
    """Return whether a form is drawn: not ``a + (b - c)``, which equals ``a + b - c``, another
    form, nor ``a * (b / c)``."""
    if form is None:
        return True
    operator, left, right = form
    if right is not None and operator in "+*" and RANK[right[0]] == RANK[operator]:
        return False
    return is_written(left) and is_written(right)


def fill_form(form: Form, rules: Rules, draw: random.Random) -> tuple[Expression, int] | None:
    """Put numbers into a form; return the expression and its value, or None where none fit.

    A number is drawn among those that fit the value on the other side of its operator, so the side
    that is an operation itself is filled first. With ``operand_max=20``, ``value_max=200``:

        6 * 7 - 5       form ("-", ("*", None, None), None)
            ("*", None, None)   the left number is any of 1 to 20: 6; the right one fits ``6 * n``,
                                so it is any of 2 to 20 (1 would be trivial): 7. The value is 42.
            ("-", 42, None)     the right number fits ``42 - n``: any of 1 to 20: 5.

    Where both sides are operations, their values must fit each other as they are. Where they do
    not, or no number fits, the whole attempt is given up, and the caller draws other numbers.
    """
    if form is None:
        number = draw.randint(1, rules.operand_max)
        return number, number
    operator, *forms = form
    trivial_allowed = draw.random() < rules.trivial
    if None in forms:
        side = 1 if forms[1] is None else 0
        if (beside := fill_form(forms[1 - side], rules, draw)) is None:
            return None
        numbers = fitting_numbers(operator, beside[1], side, trivial_allowed, rules)
        if not numbers:
            return None
        number = draw.choice(numbers)
        sides = [beside, (number, number)] if side else [(number, number), beside]
    else:
        sides = [filled for each in forms if (filled := fill_form(each, rules, draw))]
    if len(sides) < 2:
        return None
    left, right = sides
    value = _value_if_allowed(operator, left[1], right[1], trivial_allowed, rules)
    return None if value is None else ((operator, left[0], right[0]), value)


def is_trivial(operator: str, x: int, y: int) -> bool:
    """Return whether a step adds or subtracts 0, multiplies or divides with 0 or 1, or subtracts or
    divides equals: what can be had right without arithmetic."""
    if operator in "*/" and not {x, y}.isdisjoint((0, 1)):
        return True
    return (operator in "+-" and 0 in (x, y)) or (operator in "-/" and x == y)


@lru_cache(maxsize=65_536)
def fitting_numbers(
    operator: str, value: int, side: int, trivial_allowed: bool, rules: Rules
) -> list[int]:
    """Return the operands that fit beside a value, on the side 0 (left) or 1 (right) of it."""

    def fits(number: int) -> bool:
        x, y = (number, value) if side == 0 else (value, number)
        return _value_if_allowed(operator, x, y, trivial_allowed, rules) is not None

    return [number for number in range(1, rules.operand_max + 1) if fits(number)]


def _value_if_allowed(
    operator: str, x: int, y: int, trivial_allowed: bool, rules: Rules
) -> int | None:
    value = apply_operator(operator, x, y)
    if value is None or value > rules.value_max:
        return None
    return value if trivial_allowed or not is_trivial(operator, x, y) else None
