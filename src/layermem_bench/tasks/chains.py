"""Chains of assignments: what every variable is, each defined by another (LEGO).

    prompt      c = - b ; a = + 1 ; x = - 1 ; b = - a ; y = - x ; z = + y ; ? b _ ? y _ ? z _ ...
    solution    - + + ...

Here ``b`` is ``- a`` and ``a`` is ``+ 1``, so ``b`` is ``-`` (level 2) and ``c`` is ``+`` (level
3). The task is that of Zhang et al. (2206.04301) for a causal model: statements stand in random
order, every variable is asked for once, and no answer stands in the sequence. A level is the number
of statements that an answer takes.

With ``values`` there are no signs: each chain begins with a value of its own, which its variables
hand on. What is left is to follow references:

    prompt      c = b ; a = 7 ; x = 3 ; b = a ; y = x ; z = y ; ? b _ ? y _ ? z _ ...
    solution    7 3 3 ...

With ``ask=statements`` nothing is asked at the end: what a variable is, is predicted where its
statement ends, as in the paper.

    prompt      a = 7 ; x = 3 ; y = x ; b = a ; c = b ; z = y ;
    solution    7 3 3 7 7 3
"""

import random
import string
from collections.abc import Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from layermem_bench.tasks.problems import (
    BLANK,
    Queried,
    Split,
    draw_different,
    is_in_split,
    require,
    tokenizer_of_words,
)

VARIABLES = string.ascii_lowercase
# What a statement ends with, and what the first of a chain refers to, where signs are asked for.
_END, _ROOT = ";", "1"
Order = Literal["shuffled", "levels"]
Ask = Literal["end", "statements"]
Names = Literal["random", "places"]
# A variable, its sign ("" where values are handed on), and what it is defined by.
Statement = tuple[str, str, str]


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    depth: int = 6,
    chains: int = 2,
    order: Order = "shuffled",
    ask: Ask = "end",
    names: Names = "random",
    values: int | None = None,
) -> list[Queried]:
    """Draw ``count`` different problems of ``chains`` chains, each of ``depth`` variables.

    ``order`` is that of the statements: at random, or level by level, at random within a level
    (levels). Variables are named by letters at random, or by the place of their statement, the
    first a, the second b (``names`` is places), so that which statement defines a variable needs no
    search.

    Variables are asked for after all statements, in random order (``ask`` is end), or each where
    its statement ends (statements).

    ``values`` is the number of different values that chains may begin with; None: signs are asked
    for, and every chain begins with 1.

    Splits are disjoint whatever the seeds and other options: the set of statements decides.
    """
    require(
        1 <= depth * chains <= len(VARIABLES),
        f"{chains} chains of {depth} have {depth * chains} variables, and there are names for "
        f"{len(VARIABLES)}: choose fewer or shorter chains",
    )
    require(
        values is None or 2 <= chains <= values,
        f"with values, chains must be at least 2 and at most values ({values}), got {chains}: each "
        "begins with another value",
    )
    require(
        (ask, order) != ("statements", "shuffled"),
        "with ask=statements a variable must stand after what it is defined by: choose order="
        "levels, not shuffled",
    )
    draw = random.Random(f"{split}-{seed}")

    def draw_problem() -> Queried | None:
        statements = _draw_statements(draw, depth, chains, values)
        # They stand chain after chain.
        levels = [statements[level::depth] for level in range(depth)]
        groups = levels if order == "levels" else [statements]
        statements = [each for group in groups for each in draw.sample(group, len(group))]
        if names == "places":
            statements = _named_by_places(statements)
        if not is_in_split(" ; ".join(sorted(map(_write, statements))), split):
            return None
        return _as_problem(draw, statements, ask)

    sizes = f"depth {depth}, chains {chains}, order {order}, split {split}"
    return draw_different(draw_problem, count, sizes)


def word_tokenizer(values: int | None = None, **_: Any) -> Tokenizer:
    roots = [_ROOT] if values is None else map(str, range(values))
    return tokenizer_of_words([BLANK, "+", "-", "=", _END, "?", *roots, *VARIABLES])


def read_statements(problem: Queried) -> list[Statement]:
    told = problem.prompt.partition(" ? ")[0].removesuffix(" ;").split(" ; ")
    return [(name, "".join(sign), base) for name, _, *sign, base in (text.split() for text in told)]


def solve(statements: Sequence[Statement]) -> dict[str, tuple[str, int]]:
    """Return the sign or value of each variable, and its level: how many statements it takes."""
    definitions = {name: (sign, base) for name, sign, base in statements}
    solved = dict[str, tuple[str, int]]()
    for name in definitions:
        signs, base, level = "", name, 0
        while base in definitions:
            sign, base = definitions[base]
            signs, level = signs + sign, level + 1
        product = "-" if signs.count("-") % 2 else "+"
        solved[name] = (product if signs else base), level
    return solved


def possible_answers(problem: Queried) -> set[str]:
    """Return the signs, or the values that a problem's chains begin with."""
    statements = read_statements(problem)
    names = {name for name, _, _ in statements}
    has_signs = bool(statements[0][1])
    return {"+", "-"} if has_signs else {base for _, _, base in statements if base not in names}


def _write(statement: Statement) -> str:
    name, sign, base = statement
    return f"{name} = {sign} {base}" if sign else f"{name} = {base}"


def _draw_statements(
    draw: random.Random, depth: int, chains: int, values: int | None
) -> list[Statement]:
    """Return statements, chain after chain."""
    names = draw.sample(VARIABLES, depth * chains)
    roots = [_ROOT] * chains if values is None else draw.sample(range(values), chains)
    return [
        (
            name,
            draw.choice("+-") if values is None else "",
            names[number - 1] if number % depth else str(roots[number // depth]),
        )
        for number, name in enumerate(names)
    ]


def _named_by_places(statements: Sequence[Statement]) -> list[Statement]:
    """Return statements whose variables are a, b, c in the order of the statements."""
    called = {name: VARIABLES[place] for place, (name, _, _) in enumerate(statements)}
    return [(called[name], sign, called.get(base, base)) for name, sign, base in statements]


def _as_problem(draw: random.Random, statements: Sequence[Statement], ask: Ask) -> Queried:
    """Write the statements, and ask for all variables."""
    solved = solve(statements)
    words = [word for statement in statements for word in (*_write(statement).split(), _END)]
    if ask == "statements":
        ends = [at for at, word in enumerate(words) if word == _END]
        queries = {name: end for (name, _, _), end in zip(statements, ends, strict=True)}
        asked = list(solved)
    else:
        asked = draw.sample(list(solved), len(solved))
        # Each query has three words.
        queries = {name: len(words) + 3 * number + 1 for number, name in enumerate(asked)}
        words += [word for name in asked for word in ("?", name, BLANK)]
    return Queried(
        prompt=" ".join(words),
        solution=" ".join(solved[name][0] for name in asked),
        queries=tuple(queries[name] for name in asked),
        levels=tuple(solved[name][1] for name in asked),
    )
