"""Which split an arithmetic expression belongs to, and what the problems of two splits share.

A solution is a chain of expressions, from the one asked about to the number. Under
``split_position`` no expression of two operations or more that is in a chain of one split is, up to
the order of operands, in a chain of another. Worked example, ``(2 + 3) * 4 - 1``:

    chain               (2 + 3) * 4 - 1  ->  5 * 4 - 1  ->  20 - 1  ->  19
    deciding key        5 * 4 - 1, written as ``4 * 5 - 1``: the last two operations
    other expressions   (3 + 2) * 4 - 1, 5 * 4 - 1 and 10 / 2 * 4 - 1 have the same key,
                        so all of them are in the same split

Every chain passes through its last two operations, and neither an earlier step nor an exchange of
operands changes them. There is one exception: in ``7 * 2 + 9 / 3`` both sides of the root are
operations, and which of them is carried out first depends on the order of the sides. Of such an
expression and its mirror, ``9 / 3 + 7 * 2``, only one is ever drawn (``choose_mirror``).
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from layermem.tasks.expressions import RANK, Expression, evaluate, operations, parse, write
from layermem.text_hash import hash_to_unit_interval

# Selects the hash that decides. Some pairs of operations end many solutions, so chance makes splits
# less alike than single expressions would; of 0 to 39 this one leaves their answers and operators
# most alike at 4 to 6 operands. It was chosen before any model was trained.
_HASH_SEED = 32
# The expressions of a solution, from the one that is asked about to the number.
Chain: TypeAlias = Sequence[str]


def sort_operands(expression: Expression) -> Expression:
    """Return the one form that expressions share if only the order of + and * operands differs.

    ``(3 + 2) * 4`` and ``4 * (2 + 3)`` both become ``("*", ("+", 2, 3), 4)``.
    """
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    return _in_order(operator, sort_operands(left), sort_operands(right))


def split_position(expression: Expression) -> float:
    """Return a number in [0, 1) that decides the split of a result of ``choose_mirror``."""
    return hash_to_unit_interval(f"{_HASH_SEED}: {deciding_key(expression)}")


def deciding_key(expression: Expression) -> str:
    """Return the last two operations of the solution, with + and * operands in order.

    An expression of one operation has itself as key. The expression is from ``choose_mirror``: of
    an expression whose root has two operations as sides, the left side is carried out first, so the
    last two operations are the root and the last one of the right side.
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
    what no step changes, the last operation of either side. Examples:

        9 - 1 + 2 * 3       only this order is written without superfluous parentheses, so it is
                            drawn and ``2 * 3 + (9 - 1)`` is not
        7 * 2 + 9 / 3       both orders are written alike: a hash of ``2 * 7`` and ``9 / 3`` says
                            which of them is drawn
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


def overlap(tests: Iterable[Chain], training: Iterable[Chain]) -> dict[str, float]:
    """Return which share of the test problems has its steps, or itself, in training solutions.

    Later steps are compared word for word, the others up to the order of operands.
    """
    texts, steps, questions = set[str](), set[Expression](), set[Expression]()
    for chain in training:
        texts.update(chain)
        steps.update(_long_steps(chain))
        questions.add(sort_operands(parse(chain[0])))
    if not questions:
        raise ValueError("there are no training problems to compare with")
    shared = [
        (
            texts.issuperset(chain[1:]),
            sort_operands(parse(chain[0])) in questions,
            not steps.isdisjoint(_long_steps(chain)),
        )
        for chain in tests
    ]
    if not shared:
        raise ValueError("there are no test problems to compare")
    names = (
        "every later step in training solutions",
        "a training expression, up to order",
        "a step of 2 operations or more in training solutions, up to order",
    )
    return {
        name: sum(column) / len(shared)
        for name, column in zip(names, zip(*shared, strict=True), strict=True)
    }


def _long_steps(chain: Chain) -> set[Expression]:
    """Return the expressions of two operations or more, with operands in order."""
    expressions = map(parse, chain)
    return {sort_operands(step) for step in expressions if sum(1 for _ in operations(step)) > 1}


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
