"""Arithmetic expressions as trees: reading, writing, and carrying out one operation at a time.

An expression is an int, or a tuple (operator, left, right). Values are exact integers, never
negative; what is not has no value.

It does not know: how expressions are drawn, graded or learnt.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Expression: TypeAlias = int | tuple[str, Any, Any]
OPERATORS = "+-*/"
RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
# Not \d, which takes the digits of every script, as int() and isdigit() do.
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
# Longer texts are no expression of ours, and would only cost time.
_LONGEST = 200


def parse(text: str) -> Expression:
    """Read an expression; spaces do not matter."""
    values: list[Expression] = []
    waiting: list[str] = []
    number_next = True
    for token in (*_tokens(text), "end"):
        if (token == "(" or token[0].isdigit()) != number_next:
            missing = "a number" if number_next else "an operator"
            raise ValueError(f"{text!r} lacks {missing} before {token}")
        if token[0].isdigit():
            values.append(int(token))
        elif token != "(":
            _carry_out(values, waiting, RANK.get(token, 0))
        if token == ")":
            if not waiting:
                raise ValueError(f"{text!r} closes a parenthesis it did not open")
            waiting.pop()
        elif not token[0].isdigit():
            waiting.append(token)
        number_next = token == "(" or token in RANK
    if waiting != ["end"]:
        raise ValueError(f"{text!r} leaves a parenthesis open")
    return values[0]


def write(expression: Expression, parentheses: str = "needed") -> str:
    """Write an expression, with the parentheses it needs or with all; ``parse`` gives it back."""
    if isinstance(expression, int):
        return str(expression)
    operator, *sides = expression
    texts = []
    for side, inner in enumerate(sides):
        text = write(inner, parentheses)
        if not isinstance(inner, int):
            looser = RANK[inner[0]] < RANK[operator] + side
            text = f"({text})" if looser or parentheses == "all" else text
        texts.append(text)
    return f"{texts[0]} {operator} {texts[1]}"


def evaluate(expression: Expression) -> int:
    """Return the value; every step on the way must be an exact integer."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    value = apply(operator, evaluate(left), evaluate(right))
    if value is None:
        raise ValueError(f"{write(expression)} is not an exact integer on the way")
    return value


def solve(expression: Expression) -> list[Expression]:
    """Return the steps from the expression to its value: always the leftmost that can be done."""
    steps = []
    while not isinstance(expression, int):
        following = next(rewrites(expression), None)
        if following is None:
            raise ValueError(f"{write(expression)} cannot be carried out exactly")
        steps.append(following)
        expression = following
    return steps


def rewrites(expression: Expression, *, blank: bool = False) -> Iterator[Any]:
    """Yield the expression with one operation carried out, leftmost first; ``blank`` leaves the
    results out, as None."""
    if isinstance(expression, int):
        return
    operator, left, right = expression
    if isinstance(left, int) and isinstance(right, int):
        value = apply(operator, left, right)
        if blank or value is not None:
            yield None if blank else value
        return
    for step in rewrites(left, blank=blank):
        yield operator, step, right
    for step in rewrites(right, blank=blank):
        yield operator, left, step


def fits(expression: Any, form: Any) -> bool:
    """Whether an expression is a form, with any number where it says None."""
    if form is None or isinstance(form, int) or isinstance(expression, int):
        return isinstance(expression, int) and form in (None, expression)
    return expression[0] == form[0] and all(map(fits, expression[1:], form[1:]))


def nodes(expression: Expression) -> Iterator[Any]:
    """Yield every operation with what it is applied to."""
    if not isinstance(expression, int):
        yield expression
        for side in expression[1:]:
            yield from nodes(side)


def apply(operator: str, left: int, right: int) -> int | None:
    """Return the value, or None where it is negative or no integer."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right if left >= right else None
    if operator == "*":
        return left * right
    return left // right if right and left % right == 0 else None


def _tokens(text: str) -> list[str]:
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
    if not tokens or len(tokens) > _LONGEST:
        raise ValueError(f"an expression has 1 to {_LONGEST} signs, got {len(tokens)}")
    return tokens


def _carry_out(values: list[Expression], waiting: list[str], rank: int) -> None:
    """Join what waits and binds at least as tightly as ``rank``, up to an open parenthesis."""
    while waiting and waiting[-1] != "(" and RANK[waiting[-1]] >= rank:
        right, left = values.pop(), values.pop()
        values.append((waiting.pop(), left, right))
