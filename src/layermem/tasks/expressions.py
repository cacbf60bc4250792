"""Arithmetic expressions as trees: reading, writing, and carrying out one operation at a time.

An expression is an int or a tuple (operator, left, right): ``2 + 3 * 4`` is
``("+", 2, ("*", 3, 4))``. Every value is an exact integer and not negative; ``3 - 4`` and ``7 / 2``
have no value.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Expression: TypeAlias = int | tuple[str, Any, Any]
OPERATORS = "+-*/"
# Operators of a higher rank are carried out first.
RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
# Not \d, which matches the digits of every script, as int() and isdigit() do.
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
# Longer texts are never expressions of this task, and would only cost time.
_MAX_TOKENS = 200


def parse(text: str) -> Expression:
    """Read an expression; spaces do not matter.

    Values and operators wait on a stack each. An operator is carried out, on the last two values,
    as soon as one follows that does not bind more tightly:

        2 + 3 * 4 - 1       values                                  operators
        after ``2 + 3``     2, 3                                    +
        after ``*``         2, 3                                    +, *    (``*`` comes first)
        after ``4``         2, 3, 4                                 +, *
        after ``-``         ("+", 2, ("*", 3, 4))                   -       (``*``, then ``+``)
        at the end          ("-", ("+", 2, ("*", 3, 4)), 1)
    """
    values: list[Expression] = []
    operators: list[str] = []
    number_expected = True
    for token in (*_split_tokens(text), "end"):
        if (token == "(" or token[0].isdigit()) != number_expected:
            missing = "a number" if number_expected else "an operator"
            raise ValueError(f"{text!r} lacks {missing} before {token}")
        if token[0].isdigit():
            values.append(int(token))
        elif token != "(":
            _join_values(values, operators, RANK.get(token, 0))
        if token == ")":
            if not operators:
                raise ValueError(f"{text!r} closes a parenthesis it did not open")
            operators.pop()
        elif not token[0].isdigit():
            operators.append(token)
        number_expected = token == "(" or token in RANK
    if operators != ["end"]:
        raise ValueError(f"{text!r} leaves a parenthesis open")
    return values[0]


def write(expression: Expression, parentheses: str = "needed") -> str:
    """Write an expression, with the parentheses it needs or with all; ``parse`` reads it back."""
    if isinstance(expression, int):
        return str(expression)
    operator, *sides = expression
    texts = []
    for side, inner in enumerate(sides):
        text = write(inner, parentheses)
        if not isinstance(inner, int):
            needed = RANK[inner[0]] < RANK[operator] + side
            text = f"({text})" if needed or parentheses == "all" else text
        texts.append(text)
    return f"{texts[0]} {operator} {texts[1]}"


def evaluate(expression: Expression) -> int:
    """Return the value; every step on the way must be an exact integer."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    value = apply_operator(operator, evaluate(left), evaluate(right))
    if value is None:
        raise ValueError(f"{write(expression)} is not an exact integer on the way")
    return value


def solve(expression: Expression) -> list[Expression]:
    """Return the steps from the expression to its value, the leftmost possible operation first.

    ``(2 + 3) * (4 - 1)`` has the steps ``5 * (4 - 1)``, ``5 * 3`` and ``15``.
    """
    steps = []
    while not isinstance(expression, int):
        step = next(rewrites(expression), None)
        if step is None:
            raise ValueError(f"{write(expression)} cannot be carried out exactly")
        steps.append(step)
        expression = step
    return steps


def rewrites(expression: Expression, *, blank: bool = False) -> Iterator[Any]:
    """Yield the expression with one operation carried out, the leftmost first.

    ``(2 + 3) * (4 - 1)`` yields ``5 * (4 - 1)`` and ``(2 + 3) * 3``. ``blank`` puts None in place
    of the result: ``None * (4 - 1)`` and ``(2 + 3) * None``, for ``matches`` to compare with.
    """
    if isinstance(expression, int):
        return
    operator, left, right = expression
    if isinstance(left, int) and isinstance(right, int):
        value = apply_operator(operator, left, right)
        if blank or value is not None:
            yield None if blank else value
        return
    for step in rewrites(left, blank=blank):
        yield operator, step, right
    for step in rewrites(right, blank=blank):
        yield operator, left, step


def matches(expression: Any, form: Any) -> bool:
    """Return whether an expression equals a form, with any number where the form has None."""
    if form is None or isinstance(form, int) or isinstance(expression, int):
        return isinstance(expression, int) and form in (None, expression)
    return expression[0] == form[0] and all(map(matches, expression[1:], form[1:]))


def operations(expression: Expression) -> Iterator[Any]:
    """Yield every operation with its two sides, the root first."""
    if not isinstance(expression, int):
        yield expression
        for side in expression[1:]:
            yield from operations(side)


def apply_operator(operator: str, left: int, right: int) -> int | None:
    """Return the value, or None where it is negative or no integer."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right if left >= right else None
    if operator == "*":
        return left * right
    return left // right if right and left % right == 0 else None


def _split_tokens(text: str) -> list[str]:
    tokens, at, text = [], 0, text.strip()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} holds {text[at]!r}, which is no part of an expression")
        tokens.append(match.group())
        at = match.end()
    if not tokens or len(tokens) > _MAX_TOKENS:
        raise ValueError(
            f"an expression has 1 to {_MAX_TOKENS} numbers, operators and parentheses, "
            f"got {len(tokens)}"
        )
    return tokens


def _join_values(values: list[Expression], operators: list[str], rank: int) -> None:
    """Carry out the waiting operators of at least ``rank``, back to an open parenthesis."""
    while operators and operators[-1] != "(" and RANK[operators[-1]] >= rank:
        right, left = values.pop(), values.pop()
        values.append((operators.pop(), left, right))
