"""Arithmetic expressions (AET): rewrite one operation at a time until a number is left.

    prompt      (7 + 5) / (6 + 4 * 3 - 2 * 7) =
    solution    12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7)
                = 12 / (18 - 14) = 12 / 4 = 3

The example is the paper's (2502.09245, appendix B). Each step carries out the leftmost operation
whose operands are both numbers. The paper does not say which numbers occur and how expressions are
drawn; docs/tasks.md says what was chosen here and why.

First a form is drawn (shape and operators), then numbers that fit it. A form is an expression with
None in place of every number: ``("-", ("*", None, None), None)`` is the form of ``6 * 7 - 5``.
Drawing everything at once and rejecting what has no exact value would leave mostly additions of
small numbers, since few random divisions come out even.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from tokenizers import Regex, Tokenizer, pre_tokenizers

from layermem_bench.tasks.expressions import (
    OPERATORS,
    RANK,
    Expression,
    apply_operator,
    choose_mirror,
    deciding_key,
    evaluate,
    matches,
    parse,
    rewrites,
    solve,
    write,
)
from layermem_bench.tasks.problems import (
    Grade,
    Split,
    draw_different,
    is_in_split,
    require,
    tokenizer_of_words,
)

OPERANDS = range(2, 9)
# Selects the hash that decides. Some pairs of operations end many solutions, so chance makes splits
# less alike than single expressions would; of 0 to 39 this one leaves their answers and operators
# most alike at 4 to 6 operands. It was chosen before any model was trained.
_HASH_SEED = 32
# How often numbers are drawn for one form before another form is drawn.
_TRIES = 20
Form: TypeAlias = tuple[str, Any, Any] | None


@dataclass(frozen=True, slots=True)
class Example:
    """One expression with its solution and value."""

    prompt: str
    solution: str
    answer: int

    @property
    def operands(self) -> int:
        return len(re.findall(r"\d+", self.prompt))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rules:
    """Which numbers and steps an expression may have: options of ``generate``."""

    operand_max: int
    value_max: int
    trivial: float


def generate(
    operands: int,
    count: int,
    seed: int,
    *,
    split: Split = "train",
    operand_max: int = 20,
    value_max: int = 200,
    trivial: float = 0.1,
    held_out: Literal["strict"] = "strict",
) -> list[Example]:
    """Draw ``count`` different expressions of ``operands`` numbers.

    Operands are 1 to ``operand_max``; every value on the way is an exact integer from 0 to
    ``value_max``. Operators and shape are drawn first, uniformly, then numbers that fit them; steps
    like ``x * 1`` or ``x - x``, of which small numbers would bring far too many, are allowed with
    probability ``trivial``. Only the parentheses that are needed are written.

    Splits are disjoint whatever the seeds, counts and other options. The last two operations of an
    expression decide its split, so that no step of two operations or more is, up to the order of
    operands, in solutions of two splits (docs/tasks.md). ``held_out`` names that rule, so that a
    recorded config says how its problems were drawn.
    """
    least, most = OPERANDS[0], OPERANDS[-1]
    require(operands in OPERANDS, f"operands must be {least} to {most}, got {operands}")
    require(
        1 <= operand_max <= value_max,
        f"operand_max must be at least 1 and at most value_max, got {operand_max} and {value_max}",
    )
    rules = Rules(operand_max=operand_max, value_max=value_max, trivial=trivial)
    draw = random.Random(seed)

    def draw_example() -> Example | None:
        expression = draw_expression(operands, rules, draw)
        if expression is None:
            return None
        expression = choose_mirror(expression)
        if not is_in_split(f"{_HASH_SEED}: {deciding_key(expression)}", split):
            return None
        steps = [write(step) for step in (expression, *solve(expression))]
        return Example(f"{steps[0]} =", " = ".join(steps[1:]), evaluate(expression))

    sizes = f"{operands} operands of up to {operand_max}, value_max {value_max}, split {split}"
    return draw_different(draw_example, count, sizes, patience=20_000)


def draw_expression(operands: int, rules: Rules, draw: random.Random) -> Expression | None:
    """Draw a form and numbers for it; None if the form is superfluous or no numbers fit."""
    form = draw_form(operands, draw)
    if not is_written(form):
        return None
    for _ in range(_TRIES):
        if filled := fill_form(form, rules, draw):
            return filled[0]
    return None


def draw_form(operands: int, draw: random.Random) -> Form:
    """Draw a binary tree, each shape as likely as any other, with an operator at each node.

    The left side gets 1, 2 or 3 of 4 operands with the weights 2, 1 and 2: so many of the 5 shapes
    have such a left side. Then both sides are drawn in the same way.
    """
    if operands == 1:
        return None
    weights = [count_shapes(left) * count_shapes(operands - left) for left in range(1, operands)]
    (left,) = draw.choices(range(1, operands), weights)
    return draw.choice(OPERATORS), draw_form(left, draw), draw_form(operands - left, draw)


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


def is_trivial(operator: str, x: int, y: int) -> bool:
    """Return whether a step adds or subtracts 0, multiplies or divides with 0 or 1, or subtracts or
    divides equals: what can be had right without arithmetic."""
    if operator in "*/" and not {x, y}.isdisjoint((0, 1)):
        return True
    return (operator in "+-" and 0 in (x, y)) or (operator in "-/" and x == y)


def grade(example: Example, text: str) -> Grade:
    """Grade a generated solution: what follows the prompt, up to the end token.

    Steps may carry out operations in any order. A fault is "unreadable" (no expression), "form"
    (not the step before with one operation carried out), "value" (the right operation with a wrong
    result) or "unfinished" (it ends before a number). Attempts at ``2 + 3 * 4 =``:

        2 + 12 = 14     right
        2 + 11 = 13     "value" at step 1
        5 * 4 = 20      "form" at step 1
        2 + 12          "unfinished"
    """
    current = parse(example.prompt.removesuffix("="))
    parts = text.split("=")
    answer = _read_number(parts[-1]) == example.answer
    for number, part in enumerate(parts, 1):
        try:
            step = parse(part)
        except ValueError:
            return Grade(answer=answer, steps=False, fault="unreadable", at=number)
        if step not in list(rewrites(current)):
            forms = rewrites(current, blank=True)
            fault = "value" if any(matches(step, form) for form in forms) else "form"
            return Grade(answer=answer, steps=False, fault=fault, at=number)
        current = step
    if not isinstance(current, int):
        return Grade(answer=answer, steps=False, fault="unfinished", at=len(parts))
    return Grade(answer=answer, steps=True)


def _read_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def word_tokenizer(value_max: int = 200, **_: Any) -> Tokenizer:
    inner = tokenizer_of_words(["=", *OPERATORS, "(", ")", *map(str, range(value_max + 1))])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[0-9]+|."), "isolated")]
    )
    return inner


def chance(examples: Sequence[Example]) -> float:
    """Return the share of the commonest answer, which is what a constant guess would score."""
    return Counter(example.answer for example in examples).most_common(1)[0][1] / len(examples)
