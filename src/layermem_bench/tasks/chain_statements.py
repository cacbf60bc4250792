"""The statements of a problem of chains, and shortcuts that follow fewer than an answer takes.

A shortcut takes the statements and a variable and returns an answer. docs/tasks.md says which
levels each solves. ``layermem list tasks chains`` measures all of them.
"""

from collections.abc import Callable, Mapping, Sequence

from layermem_bench.tasks.problems import BLANK, Queried

SIGNS = ("+", "-")
END = ";"
"""What a statement ends with."""
ROOT = "1"
"""What the first variable of a chain is defined by, where signs are asked for."""
# A variable, its sign ("" where values are handed on), and what it is defined by.
Statement = tuple[str, str, str]


def read_statements(problem: Queried) -> list[Statement]:
    """Return the statements of a problem."""
    words = [word for word in problem.prompt.partition(" ? ")[0].split() if word != BLANK]
    told = " ".join(words).removesuffix(" ;").split(" ; ")
    return [(name, "".join(sign), base) for name, _, *sign, base in (text.split() for text in told)]


def asked_variables(problem: Queried) -> list[str]:
    """Return the variable of each query, which stands at it or at the head of its statement."""
    words, names = problem.prompt.split(), [name for name, _, _ in read_statements(problem)]
    return [
        names[words[:query].count(END)] if words[query] == END else words[query]
        for query in problem.queries
    ]


def solve(statements: Sequence[Statement]) -> dict[str, tuple[str, int]]:
    """Return the sign or value of each variable, and its level."""
    definitions = _definitions(statements)
    return {name: follow(definitions, name, len(definitions)) for name in definitions}


def follow(
    definitions: Mapping[str, tuple[str, str]], variable: str, statements: int
) -> tuple[str, int]:
    """Return the product of signs on the way to the root, and how many statements there were.

    Without signs, it is what the last statement refers to: the value of the chain if it is the
    first. At most ``statements`` are followed.
    """
    signs = list[str]()
    while variable in definitions and len(signs) < statements:
        sign, variable = definitions[variable]
        signs.append(sign)
    return multiply(signs) if all(signs) else variable, len(signs)


def multiply(signs: Sequence[str]) -> str:
    """Return the sign of a product."""
    return "-" if signs.count("-") % 2 else "+"


def possible_answers(problem: Queried) -> set[str]:
    """Return the signs, or the values that a problem's chains begin with."""
    statements = read_statements(problem)
    if statements[0][1]:
        return set(SIGNS)
    return {base for _, _, base in statements} - {name for name, _, _ in statements}


def write_statement(statement: Statement) -> str:
    """Return the text of a statement."""
    name, sign, base = statement
    return f"{name} = {sign} {base}" if sign else f"{name} = {base}"


def statements_as_text(statements: Sequence[Statement]) -> str:
    """Return the text of statements in the order of the alphabet."""
    return " ; ".join(sorted(map(write_statement, statements)))


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


def _follow_statements(count: int) -> Shortcut:
    """Answer with the variable's own statement and those it refers to, ``count`` in all."""
    return lambda statements, variable: follow(_definitions(statements), variable, count)[0]


def _minus_signs_so_far(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the signs of the statements up to the variable's own, in the order they stand."""
    return multiply([sign for _, sign, _ in _up_to(statements, variable)])


def _value_before(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the last value up to the variable's own statement, or the first of all."""
    values = _values(statements)
    so_far = [base for _, _, base in _up_to(statements, variable) if base in values]
    return so_far[-1] if so_far else values[0]


FOR_SIGNS: dict[str, Shortcut] = {
    "the sign of its own statement": _follow_statements(1),
    "all minus signs counted": lambda told, _: multiply([sign for _, sign, _ in told]),
    "minus signs up to its own statement counted": _minus_signs_so_far,
    "the sign of the first statement": lambda told, _: told[0][1],
    "the sign of the last statement": lambda told, _: told[-1][1],
    "its own statement and the one it refers to": _follow_statements(2),
}
FOR_VALUES: dict[str, Shortcut] = {
    "its own statement": _follow_statements(1),
    "its own statement and the one it refers to": _follow_statements(2),
    "the value that stands first": lambda told, _: _values(told)[0],
    "the value that stands last": lambda told, _: _values(told)[-1],
    "the last value up to its own statement": _value_before,
}


def _definitions(statements: Sequence[Statement]) -> dict[str, tuple[str, str]]:
    return {name: (sign, base) for name, sign, base in statements}


def _up_to(statements: Sequence[Statement], variable: str) -> Sequence[Statement]:
    """Return the statements up to a variable's own."""
    names = [name for name, _, _ in statements]
    return statements[: names.index(variable) + 1]


def _values(statements: Sequence[Statement]) -> list[str]:
    """Return what statements refer to that is no variable, in their order."""
    names = {name for name, _, _ in statements}
    return [base for _, _, base in statements if base not in names]
