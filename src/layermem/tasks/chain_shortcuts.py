"""Shortcuts for chains of assignments: rules that follow fewer statements than an answer takes.

A rule takes the statements and a variable and returns an answer. docs/tasks.md says which levels
each solves. ``layermem list tasks chains`` measures all of them.
"""

from collections.abc import Callable, Mapping, Sequence

from layermem.tasks.chain_statements import (
    Statement,
    asked_variables,
    follow,
    multiply,
    read_statements,
)
from layermem.tasks.queried import Queried

Shortcut = Callable[[Sequence[Statement], str], str]


def shortcuts_for(problem: Queried) -> Mapping[str, Shortcut]:
    """Return the shortcuts that could answer a problem: to signs, or to values."""
    return FOR_SIGNS if read_statements(problem)[0][1] else FOR_VALUES


def try_shortcut(name: str, problem: Queried) -> list[bool]:
    """Return which answers of a problem a shortcut has right."""
    statements, shortcut = read_statements(problem), shortcuts_for(problem)[name]
    return [
        shortcut(statements, variable) == answer
        for variable, answer in zip(asked_variables(problem), problem.answers, strict=True)
    ]


def _one_statement(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the variable's own statement."""
    return _follow(statements, variable, 1)


def _two_statements(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the variable's own statement and that of what it is defined by."""
    return _follow(statements, variable, 2)


def _all_minus_signs(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the signs of all statements."""
    return multiply([sign for _, sign, _ in statements])


def _minus_signs_so_far(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the signs of the statements up to the variable's own, in the order they stand."""
    return multiply([sign for _, sign, _ in statements[: _place(statements, variable) + 1]])


def _first_sign(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the sign of the first statement."""
    return statements[0][1]


def _last_sign(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the sign of the last statement."""
    return statements[-1][1]


def _first_value(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the value that stands first."""
    return _values(statements)[0]


def _last_value(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the value that stands last."""
    return _values(statements)[-1]


def _value_before(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the last value up to the variable's own statement, or the first of all."""
    so_far = _values(statements, statements[: _place(statements, variable) + 1])
    return so_far[-1] if so_far else _first_value(statements, variable)


FOR_SIGNS: dict[str, Shortcut] = {
    "the sign of its own statement": _one_statement,
    "all minus signs counted": _all_minus_signs,
    "minus signs up to its own statement counted": _minus_signs_so_far,
    "the sign of the first statement": _first_sign,
    "the sign of the last statement": _last_sign,
    "its own statement and the one it refers to": _two_statements,
}
FOR_VALUES: dict[str, Shortcut] = {
    "its own statement": _one_statement,
    "its own statement and the one it refers to": _two_statements,
    "the value that stands first": _first_value,
    "the value that stands last": _last_value,
    "the last value up to its own statement": _value_before,
}


def _follow(statements: Sequence[Statement], variable: str, count: int) -> str:
    definitions = {name: (sign, base) for name, sign, base in statements}
    return follow(definitions, variable, count)[0]


def _place(statements: Sequence[Statement], variable: str) -> int:
    return next(i for i, (name, _, _) in enumerate(statements) if name == variable)


def _values(statements: Sequence[Statement], among: Sequence[Statement] | None = None) -> list[str]:
    """Return what statements, or some among them, refer to that is no variable."""
    names = {name for name, _, _ in statements}
    return [base for _, _, base in (statements if among is None else among) if base not in names]
