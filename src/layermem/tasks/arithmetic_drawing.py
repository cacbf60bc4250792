"""Drawing arithmetic expressions: first a form (shape and operators), then numbers that fit it.

A form is an expression with None in place of every number: ``("-", ("*", None, None), None)`` is
the form of ``6 * 7 - 5``. Drawing everything at once and rejecting what has no exact value would
leave mostly additions of small numbers, since few random divisions come out even.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from layermem.tasks.expressions import (
    OPERATORS,
    RANK,
    Expression,
    apply_operator,
    evaluate,
    operations,
)

PARENTHESES = ("needed", "all", "none")
HELD_OUT = ("strict", "expression")
# How often numbers are drawn for one form before another form is drawn.
_TRIES = 20
Form: TypeAlias = tuple[str, Any, Any] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """What an expression may be made of; the fields are options of ``arithmetic.generate``."""

    operators: str
    operand_max: int
    value_max: int
    parentheses: str
    trivial: float
    held_out: str

    def __post_init__(self) -> None:
        if not self.operators or set(self.operators) - set(OPERATORS):
            raise ValueError(f"operators must be some of {OPERATORS}, got {self.operators!r}")
        if not 1 <= self.operand_max <= self.value_max:
            raise ValueError(
                "operand_max must be at least 1 and at most value_max, "
                f"got {self.operand_max} and {self.value_max}"
            )
        if self.parentheses not in PARENTHESES:
            raise ValueError(
                f"parentheses must be one of {', '.join(PARENTHESES)}, got {self.parentheses!r}"
            )
        if not 0 <= self.trivial <= 1:
            raise ValueError(f"trivial must be from 0 to 1, got {self.trivial}")
        if self.held_out not in HELD_OUT:
            raise ValueError(
                f"held_out must be one of {', '.join(HELD_OUT)}, got {self.held_out!r}"
            )


def draw_expression(operands: int, rules: Rules, draw: random.Random) -> Expression | None:
    """Draw a form and numbers for it; None if the form is not written so or no numbers fit."""
    form = draw_form(operands, rules, draw)
    if not is_written(form, rules.parentheses):
        return None
    for _ in range(_TRIES):
        filled = fill_form(form, rules, draw)
        if filled is not None:
            return filled[0]
    return None


def draw_form(operands: int, rules: Rules, draw: random.Random) -> Form:
    """Draw a binary tree, each shape as likely as any other, with an operator at each node.

    Example: 4 operands have 5 shapes. The left side gets 1, 2 or 3 operands with the weights
    2, 1 and 2, which are the numbers of shapes with such a left side (``count_shapes(1) *
    count_shapes(3)`` and so on); then both sides are drawn in the same way.
    """
    if operands == 1:
        return None
    weights = [count_shapes(left) * count_shapes(operands - left) for left in range(1, operands)]
    (left,) = draw.choices(range(1, operands), weights)
    operator = draw.choice(rules.operators)
    return operator, draw_form(left, rules, draw), draw_form(operands - left, rules, draw)


@lru_cache
def count_shapes(operands: int) -> int:
    """Return how many binary trees have that many leaves: 1, 1, 2, 5, 14, ..."""
    if operands == 1:
        return 1
    return sum(count_shapes(left) * count_shapes(operands - left) for left in range(1, operands))


def is_written(form: Form, parentheses: str) -> bool:
    """Return whether the policy for parentheses allows a form.

    Under "needed", ``a + (b - c)`` is not drawn: it equals ``a + b - c``, which is another form;
    so does ``a * (b / c)``. Under "none" neither is a form that needs parentheses,
    ``(a + b) * c``. Under "all" every form is drawn.
    """
    if form is None or parentheses == "all":
        return True
    operator, left, right = form
    for side, inner in enumerate((left, right)):
        if inner is None:
            continue
        needed = RANK[inner[0]] < RANK[operator] + side
        superfluous = side == 1 and operator in "+*" and RANK[inner[0]] == RANK[operator]
        if superfluous or (needed and parentheses == "none"):
            return False
    return is_written(left, parentheses) and is_written(right, parentheses)


def fill_form(form: Form, rules: Rules, draw: random.Random) -> tuple[Expression, int] | None:
    """Put numbers into a form; return the expression and its value, or None where none fit.

    A number is drawn among those that fit the value on the other side of its operator, so the side
    that is an operation itself is filled first. With ``operand_max=20``, ``value_max=200``:

        6 * 7 - 5       form ("-", ("*", None, None), None)
            ("*", None, None)   the left number is any of 1 to 20: 6; the right one fits ``6 * n``,
                                so it is any of 2 to 20 (1 would be trivial): 7. The value is 42.
            ("-", 42, None)     the right number fits ``42 - n``: any of 1 to 20: 5.
            returned            (("-", ("*", 6, 7), 5), 37)

        14 / (3 + 4)    form ("/", None, ("+", None, None))
            ("+", None, None)   filled first, as it is the operation: 3 and 4. The value is 7.
            ("/", None, 7)      the left number fits ``n / 7``: 14 alone (7 / 7 would be trivial).
            returned            (("/", 14, ("+", 3, 4)), 2)

    Where both sides are operations, their values must fit each other as they are. Where they do
    not, or no number fits, the whole attempt is given up, and the caller draws other numbers.
    """
    if form is None:
        number = draw.randint(1, rules.operand_max)
        return number, number
    operator, left_form, right_form = form
    trivial_allowed = draw.random() < rules.trivial
    left = right = None
    if left_form is not None or right_form is None:
        left = fill_form(left_form, rules, draw)
    if right_form is not None:
        right = fill_form(right_form, rules, draw)
    if (left is None and left_form is not None) or (right is None and right_form is not None):
        return None
    if left is None and right is not None:
        left = _draw_beside(right[1], operator, 0, trivial_allowed, rules, draw)
    elif right is None and left is not None:
        right = _draw_beside(left[1], operator, 1, trivial_allowed, rules, draw)
    if left is None or right is None:
        return None
    if not _is_allowed(operator, left[1], right[1], trivial_allowed, rules):
        return None
    return (operator, left[0], right[0]), evaluate((operator, left[1], right[1]))


def has_trivial_step(expression: Expression) -> bool:
    """Return whether any operation of an expression is trivial."""
    return any(
        is_trivial(operator, evaluate(left), evaluate(right))
        for operator, left, right in operations(expression)
    )


def is_trivial(operator: str, x: int, y: int) -> bool:
    """Return whether a step adds or subtracts 0, multiplies or divides with 0 or 1, or subtracts or
    divides equals: what can be had right without arithmetic."""
    if operator in "*/" and not {x, y}.isdisjoint((0, 1)):
        return True
    return (operator in "+-" and 0 in (x, y)) or (operator in "-/" and x == y)


def _draw_beside(
    value: int,
    operator: str,
    side: int,
    trivial_allowed: bool,
    rules: Rules,
    draw: random.Random,
) -> tuple[Expression, int] | None:
    """Draw a number that fits beside a value, on the side 0 (left) or 1 (right)."""
    numbers = fitting_numbers(operator, value, side, trivial_allowed, rules)
    if not numbers:
        return None
    number = draw.choice(numbers)
    return number, number


@lru_cache(maxsize=65_536)
def fitting_numbers(
    operator: str, value: int, side: int, trivial_allowed: bool, rules: Rules
) -> list[int]:
    """Return the operands that fit beside a value, on the side 0 (left) or 1 (right) of it."""
    numbers = range(1, rules.operand_max + 1)
    pairs = ((n, value) if side == 0 else (value, n) for n in numbers)
    return [
        number
        for number, pair in zip(numbers, pairs, strict=True)
        if _is_allowed(operator, *pair, trivial_allowed, rules)
    ]


def _is_allowed(operator: str, x: int, y: int, trivial_allowed: bool, rules: Rules) -> bool:
    value = apply_operator(operator, x, y)
    if value is None or value > rules.value_max:
        return False
    return trivial_allowed or not is_trivial(operator, x, y)
