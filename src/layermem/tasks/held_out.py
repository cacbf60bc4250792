"""Which expressions are held out: the key that decides a split, and what two splits share.

A solution is a chain of expressions. Under ``place`` no expression of two operations or more that
is in a chain of one split is, up to the order of operands, in a chain of another. A chain of our
solutions passes through its last two operations, which neither a step before them nor an exchange
of operands changes: they decide. The one exception is a sum or product of two sides that are both
to be carried out: which goes first depends on the order, so of such an expression and its mirror
only one is drawn (``settled``).

It does not know: how expressions are drawn, seeds, counts.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from layermem.tasks.expressions import RANK, Expression, evaluate, nodes, parse, write
from layermem.text_hash import hash_to_unit_interval

# Which lots they draw. Some pairs of operations end many solutions, so chance makes splits less
# alike than single expressions would; of 0 to 39 this one leaves their answers and signs most alike
# at 4 to 6 operands. No model was asked.
_DRAWING = 32
# The expressions of a solution, from the one that is asked about to the number.
Chain: TypeAlias = Sequence[str]


def alike(expression: Expression) -> Expression:
    """Return what all have in common that differ in the order of operands of + and * alone."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    return _unordered(operator, alike(left), alike(right))


def place(expression: Expression) -> float:
    """Return the lot, in [0, 1), of a ``settled`` expression: its split."""
    return hash_to_unit_interval(f"{_DRAWING}: {decider(expression)}")


def decider(expression: Expression) -> str:
    """Return the last two operations of the solution, up to order: what decides the split.

    An expression of one operation has itself. The expression must be ``settled``.
    """
    if isinstance(expression, int):
        return write(expression)
    operator, left, right = expression
    if isinstance(right, int):
        return write(_unordered(operator, _last(left), right))
    return write(_unordered(operator, evaluate(left), _last(right)))


def settled(expression: Expression) -> Expression:
    """Return the expression or, if only that is drawn, its mirror: the sides of the root exchanged.

    It differs where the root is + or * and both sides are to be carried out. The choice depends on
    what no step changes: the signs of both sides and what they are applied to in the end. Where
    parentheses say that only one order is written without idle ones, it is that; else a lot says.
    """
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    if operator not in "+*" or isinstance(left, int) or isinstance(right, int):
        return expression
    idle = [RANK[side[0]] == RANK[operator] for side in (left, right)]
    if idle[0] != idle[1]:
        return expression if idle[0] else (operator, right, left)
    own, other = write(_last(left)), write(_last(right))
    low, high = sorted((own, other))
    first = low if hash_to_unit_interval(f"{low} {operator} {high}") < 0.5 else high
    return expression if own == first else (operator, right, left)


def overlap(tests: Iterable[Chain], learnt: Iterable[Chain]) -> dict[str, float]:
    """Return which share of test problems has what in chains that are learnt from.

    Later steps are compared word for word, the rest up to the order of operands.
    """
    texts, steps, firsts = set[str](), set[Expression](), set[Expression]()
    for chain in learnt:
        texts.update(chain)
        steps.update(_steps(chain))
        firsts.add(alike(parse(chain[0])))
    if not firsts:
        raise ValueError("there are no training problems to compare with")
    shares = [
        (
            texts.issuperset(chain[1:]),
            alike(parse(chain[0])) in firsts,
            not steps.isdisjoint(_steps(chain)),
        )
        for chain in tests
    ]
    if not shares:
        raise ValueError("there are no test problems to compare")
    names = (
        "every later step in training solutions",
        "a training expression, up to order",
        "a step of 2 operations or more in training solutions, up to order",
    )
    return {
        name: sum(found) / len(shares)
        for name, found in zip(names, zip(*shares, strict=True), strict=True)
    }


def _steps(chain: Chain) -> set[Expression]:
    """Return the expressions of two operations or more."""
    expressions = map(parse, chain)
    return {alike(each) for each in expressions if sum(1 for _ in nodes(each)) > 1}


def _last(expression: Expression) -> Expression:
    """Return the last operation of the solution with its values, up to order."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    return _unordered(operator, evaluate(left), evaluate(right))


def _unordered(operator: str, left: Expression, right: Expression) -> Expression:
    if operator in "+*" and str(left) > str(right):
        return operator, right, left
    return operator, left, right
