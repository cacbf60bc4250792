"""Arithmetic expressions as trees: read, written, carried out, and the split each belongs to.

An expression is an int or a tuple (operator, left, right): ``2 + 3 * 4`` is
``("+", 2, ("*", 3, 4))``. Every value is an exact integer and not negative; ``3 - 4`` and ``7 / 2``
have no value.

A solution is a chain of expressions, from the one asked about to the number. By ``deciding_key``
no expression of two operations or more that is in a chain of one split is, up to the order of
operands, in a chain of another. Worked example, ``(2 + 3) * 4 - 1``:

    chain               (2 + 3) * 4 - 1  ->  5 * 4 - 1  ->  20 - 1  ->  19
    deciding key        5 * 4 - 1, written as ``4 * 5 - 1``: the last two operations
    other expressions   (3 + 2) * 4 - 1, 5 * 4 - 1 and 10 / 2 * 4 - 1 have the same key,
                        so all of them are in the same split

Every chain passes through its last two operations, and neither an earlier step nor an exchange of
operands changes them. There is one exception: in ``7 * 2 + 9 / 3`` both sides of the root are
operations, and which of them is carried out first depends on the order of the sides. Of such an
expression and its mirror, ``9 / 3 + 7 * 2``, only one is ever drawn (``choose_mirror``).
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from layermem_bench.config.hashing import hash_to_unit_interval

Expression: TypeAlias = int | tuple[str, Any, Any]
OPERATORS = "+-*/"
# Operators of a higher rank are carried out first.
RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERATOR_OF = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
# Longer texts are never expressions of this task, and would only cost time.
_MAX_TOKENS = 200


def parse(text: str) -> Expression:
    """Read an expression with Python's own parser; spaces do not matter."""
    # Not \d, which matches the digits of every script, as int() does.
    tokens = re.findall(r"[0-9]+|\S", text)
    # Python reads no number with zeros before it.
    plain = " ".join(re.sub("^0+(?=[0-9])", "", token) for token in tokens)
    try:
        if len(tokens) > _MAX_TOKENS or not re.fullmatch(r"[-+*/()0-9 ]+", plain):
            raise ValueError("too long, or with other signs")
        return _read_node(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{text!r:.80} is no expression") from error


def _read_node(node: ast.expr) -> Expression:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if not isinstance(node, ast.BinOp):
        raise ValueError("a sign before a number, or numbers without an operator between them")
    return _OPERATOR_OF[type(node.op)], _read_node(node.left), _read_node(node.right)


def write(expression: Expression) -> str:
    """Write an expression with the parentheses that it needs; ``parse`` reads it back."""
    if isinstance(expression, int):
        return str(expression)
    operator, *sides = expression
    texts = []
    for side, inner in enumerate(sides):
        needed = not isinstance(inner, int) and RANK[inner[0]] < RANK[operator] + side
        texts.append(f"({write(inner)})" if needed else write(inner))
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


def apply_operator(operator: str, left: int, right: int) -> int | None:
    """Return the value, or None where it is negative or no integer."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right if left >= right else None
    if operator == "*":
        return left * right
    return left // right if right and left % right == 0 else None


def deciding_key(expression: Expression) -> str:
    """Return the last two operations of the solution, with + and * operands in order: what decides
    the split of a result of ``choose_mirror``.

    An expression of one operation has itself as key. Where both sides of the root are operations,
    ``choose_mirror`` has the left one carried out first, so the last two operations are the root
    and the last one of the right side.
    """
    if isinstance(expression, int):
        return write(expression)
    operator, left, right = expression
    if isinstance(right, int):
        return write(_in_order(operator, _last_operation(left), right))
    return write(_in_order(operator, evaluate(left), _last_operation(right)))


def choose_mirror(expression: Expression) -> Expression:
    """Return the expression or its mirror (the sides of the root exchanged), whichever is drawn.

    They differ only where the root is + or * and both sides are operations. The choice depends on
    what no step changes, the last operation of either side: ``9 - 1 + 2 * 3`` is drawn, as its
    mirror has superfluous parentheses; of ``7 * 2 + 9 / 3`` and its mirror a hash of ``2 * 7`` and
    ``9 / 3`` says which.
    """
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    if operator not in "+*" or isinstance(left, int) or isinstance(right, int):
        return expression
    mirror = (operator, right, left)
    left_same_rank, right_same_rank = (RANK[side[0]] == RANK[operator] for side in (left, right))
    if left_same_rank != right_same_rank:
        return expression if left_same_rank else mirror
    own, other = write(_last_operation(left)), write(_last_operation(right))
    low, high = sorted((own, other))
    first = low if hash_to_unit_interval(f"{low} {operator} {high}") < 0.5 else high
    return expression if own == first else mirror


def _last_operation(expression: Expression) -> Expression:
    """Return the last operation of the solution with its values: ``2 + 3 * 4`` has ``12 + 2``."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    return _in_order(operator, evaluate(left), evaluate(right))


def _in_order(operator: str, left: Expression, right: Expression) -> Expression:
    """Return an operation with the sides of + and * sorted as texts, so that 12 is before 2."""
    if operator in "+*" and str(left) > str(right):
        return operator, right, left
    return operator, left, right
