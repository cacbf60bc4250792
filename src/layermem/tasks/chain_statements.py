"""The statements of a problem of chains: read, solved, written."""

from collections.abc import Mapping, Sequence

from layermem.tasks.queried import BLANK, Queried

SIGNS = ("+", "-")
END = ";"
"""What a statement ends with."""
ROOT = "1"
"""What the first variable of a chain is defined by, where signs are asked for."""
# A variable, its sign ("" where values are handed on), and what it is defined by.
Statement = tuple[str, str, str]


def read_statements(problem: Queried) -> list[Statement]:
    """Return the statements of a problem: each variable, its sign, and what it is defined by."""
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
    definitions = {name: (sign, base) for name, sign, base in statements}
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
