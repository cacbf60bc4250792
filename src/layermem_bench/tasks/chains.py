"""Chains of assignments: what every variable is, each defined by another (LEGO).

    prompt      c = - b ; a = + 1 ; x = - 1 ; b = - a ; y = - x ; z = + y ; ? b _ ? y _ ? z _ ...
    solution    - + + ...

Here ``b`` is ``- a`` and ``a`` is ``+ 1``, so ``b`` is ``-`` (level 2) and ``c`` is ``+`` (level
3). The task is that of Zhang et al. (2206.04301) for a causal model: statements stand in random
order, every variable is asked for once, and no answer stands in the sequence. A level is the number
of statements that an answer takes. docs/tasks.md says which shortcuts solve which levels.

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
import statistics
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from tokenizers import Tokenizer

from layermem_bench.tasks.problems import (
    BLANK,
    Grade,
    Queried,
    Split,
    check_split_and_count,
    describe_queried,
    draw_different,
    grade_answers,
    is_in_split,
    require,
    require_one_of,
    shared_with_training,
    tokenizer_of_words,
)

VARIABLES = string.ascii_lowercase
# What a statement ends with, and what the first of a chain refers to, where signs are asked for.
_END, _ROOT = ";", "1"
Order = Literal["shuffled", "levels", "interleaved", "chain"]
Ask = Literal["end", "statements"]
Names = Literal["random", "places"]
# A variable, its sign ("" where values are handed on), and what it is defined by.
Statement = tuple[str, str, str]
# Returns an answer, given the statements and a variable, by fewer statements than it takes.
Shortcut = Callable[[Sequence[Statement], str], str]


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    depth: int = 6,
    chains: int = 2,
    order: Order = "shuffled",
    ask: Ask = "end",
    blanks: int = 0,
    names: Names = "random",
    learned: int | None = None,
    values: int | None = None,
    variables: int = len(VARIABLES),
) -> list[Queried]:
    """Draw ``count`` different problems of ``chains`` chains, each of ``depth`` variables.

    ``order`` is that of the statements: at random; level by level, at random within a level
    (levels); chains mixed at random, but each variable after what it is defined by (interleaved);
    or one chain after the other (chain). ``blanks`` stand before statements, at random, so that the
    place of a statement does not tell which it is. Variables are named at random by the first
    ``variables`` letters, or by the place of their statement, the first a, the second b (``names``
    is places), so that which statement defines a variable needs no search.

    Variables are asked for after all statements, in random order (``ask`` is end), or each where
    its statement ends (statements); in the training set only those up to level ``learned`` (None:
    all), so that the other splits show whether deeper ones are reached.

    ``values`` is the number of different values that chains may begin with; None: signs are asked
    for, and every chain begins with 1.

    Splits are disjoint whatever the seeds and other options: the set of statements decides.
    """
    check_split_and_count(split, count)
    _check_sizes(depth, chains, learned, variables)
    _check_arrangement(order, ask, names, blanks)
    if values is not None:
        _check_values(values, chains, order)
    draw = random.Random(f"{split}-{seed}")
    deepest = depth if learned is None or split != "train" else learned

    def draw_problem() -> Queried | None:
        statements = _draw_statements(draw, VARIABLES[:variables], depth, chains, values)
        statements = _arrange(draw, statements, depth, order)
        if names == "places":
            statements = _named_by_places(statements)
        if not is_in_split(_as_text(statements), split):
            return None
        return _as_problem(draw, statements, deepest, ask, blanks)

    sizes = f"depth {depth}, chains {chains}, order {order}, split {split}"
    return draw_different(draw_problem, count, sizes)


def grade(problem: Queried, text: str) -> Grade:
    """Grade signs or values; of faults, "other" is the opposite sign, another chain's value."""
    return grade_answers(problem, text, _possible_answers(problem))


def chance(problems: Sequence[Queried]) -> float:
    return statistics.fmean(1 / len(_possible_answers(problem)) for problem in problems)


def word_tokenizer(values: int | None = None, **_: Any) -> Tokenizer:
    roots = [_ROOT] if values is None else map(str, range(values))
    return tokenizer_of_words([BLANK, "+", "-", "=", _END, "?", *roots, *VARIABLES])


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    counts = describe_queried(problems)
    answers = [answer for problem in problems for answer in problem.answers]
    if set(answers) <= {"+", "-"}:
        counts["share of +"] = answers.count("+") / len(answers)
    shortcuts = FOR_SIGNS if _has_signs(read_statements(problems[0])) else FOR_VALUES
    counts["right answers by shortcut"] = {
        name: statistics.fmean(ok for problem in problems for ok in try_shortcut(name, problem))
        for name in shortcuts
    }
    return counts


def overlap(tests: Sequence[Queried], training: Sequence[Queried]) -> dict[str, float]:
    share = shared_with_training(tests, training, lambda p: _as_text(read_statements(p)))
    return {"the statements of a training problem, in any order": share}


def read_statements(problem: Queried) -> list[Statement]:
    words = [word for word in problem.prompt.partition(" ? ")[0].split() if word != BLANK]
    told = " ".join(words).removesuffix(" ;").split(" ; ")
    return [(name, "".join(sign), base) for name, _, *sign, base in (text.split() for text in told)]


def asked_variables(problem: Queried) -> list[str]:
    """Return the variable of each query, which stands at it or at the head of its statement."""
    words, names = problem.prompt.split(), [name for name, _, _ in read_statements(problem)]
    return [
        names[words[:query].count(_END)] if words[query] == _END else words[query]
        for query in problem.queries
    ]


def solve(statements: Sequence[Statement]) -> dict[str, tuple[str, int]]:
    """Return the sign or value of each variable, and its level."""
    return {name: _follow(statements, name, len(statements)) for name, _, _ in statements}


def try_shortcut(name: str, problem: Queried) -> list[bool]:
    """Return which answers of a problem a shortcut has right."""
    statements = read_statements(problem)
    shortcut = (FOR_SIGNS if _has_signs(statements) else FOR_VALUES)[name]
    return [
        shortcut(statements, variable) == answer
        for variable, answer in zip(asked_variables(problem), problem.answers, strict=True)
    ]


def _value_before(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the last value up to the variable's own statement, or the first of all."""
    values = _values(statements)
    so_far = [base for _, _, base in _up_to(statements, variable) if base in values]
    return so_far[-1] if so_far else values[0]


FOR_SIGNS: dict[str, Shortcut] = {
    "the sign of its own statement": lambda told, name: _follow(told, name, 1)[0],
    "all minus signs counted": lambda told, _: _product(sign for _, sign, _ in told),
    "minus signs up to its own statement counted": lambda told, name: _product(
        sign for _, sign, _ in _up_to(told, name)
    ),
    "the sign of the first statement": lambda told, _: told[0][1],
    "the sign of the last statement": lambda told, _: told[-1][1],
    "its own statement and the one it refers to": lambda told, name: _follow(told, name, 2)[0],
}
FOR_VALUES: dict[str, Shortcut] = {
    "its own statement": lambda told, name: _follow(told, name, 1)[0],
    "its own statement and the one it refers to": lambda told, name: _follow(told, name, 2)[0],
    "the value that stands first": lambda told, _: _values(told)[0],
    "the value that stands last": lambda told, _: _values(told)[-1],
    "the last value up to its own statement": _value_before,
}


def _follow(statements: Sequence[Statement], variable: str, most: int) -> tuple[str, int]:
    """Return the product of signs on the way to the root, and how many statements there were.

    Without signs, it is what the last statement refers to: the value of the chain if it is the
    first. At most ``most`` statements are followed.
    """
    definitions = {name: (sign, base) for name, sign, base in statements}
    signs = list[str]()
    while variable in definitions and len(signs) < most:
        sign, variable = definitions[variable]
        signs.append(sign)
    return _product(signs) if all(signs) else variable, len(signs)


def _product(signs: Iterable[str]) -> str:
    return "-" if list(signs).count("-") % 2 else "+"


def _has_signs(statements: Sequence[Statement]) -> bool:
    return bool(statements[0][1])


def _up_to(statements: Sequence[Statement], variable: str) -> Sequence[Statement]:
    names = [name for name, _, _ in statements]
    return statements[: names.index(variable) + 1]


def _values(statements: Sequence[Statement]) -> list[str]:
    """Return what statements refer to that is no variable, in their order."""
    names = {name for name, _, _ in statements}
    return [base for _, _, base in statements if base not in names]


def _possible_answers(problem: Queried) -> set[str]:
    """Return the signs, or the values that a problem's chains begin with."""
    statements = read_statements(problem)
    return {"+", "-"} if _has_signs(statements) else set(_values(statements))


def _write(statement: Statement) -> str:
    name, sign, base = statement
    return f"{name} = {sign} {base}" if sign else f"{name} = {base}"


def _as_text(statements: Sequence[Statement]) -> str:
    """Return the text of statements in the order of the alphabet."""
    return " ; ".join(sorted(map(_write, statements)))


def _check_sizes(depth: int, chains: int, learned: int | None, variables: int) -> None:
    require(min(depth, chains) >= 1, f"depth and chains must be at least 1, got {depth}, {chains}")
    require(
        1 <= variables <= len(VARIABLES),
        f"variables must be from 1 to {len(VARIABLES)}, got {variables}",
    )
    require(
        depth * chains <= variables,
        f"{chains} chains of {depth} have {depth * chains} variables, and there are names for "
        f"{variables}: choose fewer or shorter chains, or more variables",
    )
    require(
        learned is None or 1 <= learned <= depth,
        f"learned must be from 1 to depth ({depth}), got {learned}",
    )


def _check_arrangement(order: str, ask: str, names: str, blanks: int) -> None:
    require(blanks >= 0, f"blanks must be at least 0, got {blanks}")
    require_one_of("order", order, get_args(Order))
    require_one_of("ask", ask, get_args(Ask))
    require_one_of("names", names, get_args(Names))
    require(
        (ask, order) != ("statements", "shuffled"),
        "with ask=statements a variable must stand after what it is defined by: choose order="
        "levels, interleaved or chain, not shuffled",
    )


def _check_values(values: int, chains: int, order: str) -> None:
    require(
        order != "chain",
        "with values, order=chain puts the answer before every variable of a chain: choose "
        "shuffled, levels or interleaved",
    )
    require(chains >= 2, f"with values, chains must be at least 2, got {chains}: one has one value")
    require(
        values >= chains,
        f"values must be at least the number of chains ({chains}), got {values}: each begins with "
        "another",
    )


def _draw_statements(
    draw: random.Random, letters: str, depth: int, chains: int, values: int | None
) -> list[Statement]:
    """Return statements, chain after chain."""
    names = draw.sample(letters, depth * chains)
    roots = [_ROOT] * chains if values is None else draw.sample(range(values), chains)
    return [
        (
            name,
            draw.choice("+-") if values is None else "",
            names[number - 1] if number % depth else str(roots[number // depth]),
        )
        for number, name in enumerate(names)
    ]


def _arrange(
    draw: random.Random, statements: list[Statement], depth: int, order: str
) -> list[Statement]:
    """Return statements, given chain after chain, in another order."""
    if order == "shuffled":
        return draw.sample(statements, len(statements))
    if order == "levels":
        levels = [statements[level::depth] for level in range(depth)]
        return [each for level in levels for each in draw.sample(level, len(level))]
    if order == "interleaved":
        # Which chain is continued at each place; all ways to mix them are equally likely.
        turns = [number // depth for number in range(len(statements))]
        draw.shuffle(turns)
        chains = [iter(statements[start : start + depth]) for start in range(0, len(turns), depth)]
        return [next(chains[turn]) for turn in turns]
    return statements


def _named_by_places(statements: Sequence[Statement]) -> list[Statement]:
    """Return statements whose variables are a, b, c in the order of the statements."""
    called = {name: VARIABLES[place] for place, (name, _, _) in enumerate(statements)}
    return [(called[name], sign, called.get(base, base)) for name, sign, base in statements]


def _as_problem(
    draw: random.Random, statements: Sequence[Statement], deepest: int, ask: Ask, blanks: int
) -> Queried:
    """Write the statements, and ask for all variables up to a level."""
    solved = {name: found for name, found in solve(statements).items() if found[1] <= deepest}
    gaps = Counter(draw.randrange(len(statements)) for _ in range(blanks))
    words = list[str]()
    for number, statement in enumerate(statements):
        words += [BLANK] * gaps[number] + [*_write(statement).split(), _END]
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
