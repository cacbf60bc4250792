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
from collections.abc import Sequence
from typing import Any, Literal, get_args

from tokenizers import Tokenizer

from layermem_bench.tasks.chain_statements import (
    END,
    ROOT,
    SIGNS,
    Statement,
    possible_answers,
    read_statements,
    shortcuts_for,
    solve,
    statements_as_text,
    try_shortcut,
    write_statement,
)
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
Order = Literal["shuffled", "levels", "interleaved", "chain"]
Ask = Literal["end", "statements"]
Names = Literal["random", "places"]


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
    or one chain after the other (chain).

    ``blanks`` is the number of blanks that stand before statements, at random, so that the place of
    a statement does not tell which it is.

    ``names`` is how variables are called: at random, or by the place of their statement, the first
    a, the second b (places), so that which statement defines a variable needs no search.

    Variables are asked for after all statements, in random order (``ask`` is end), or each where
    its statement ends (statements); in the training set only those up to level ``learned`` (None:
    all), so that the other splits show whether deeper ones are reached.

    ``values`` is the number of different values that chains may begin with; None: signs are asked
    for, and every chain begins with 1.

    ``variables`` is the number of letters that variables are named by, the first of the alphabet.

    Splits are disjoint whatever the seeds and other options: the set of statements decides.
    """
    check_split_and_count(split, count)
    _check_sizes(depth, chains, learned, variables)
    _check_arrangement(order, ask, names, blanks)
    _check_values(values, chains, order)
    draw = random.Random(f"{split}-{seed}")
    deepest = depth if learned is None or split != "train" else learned

    def draw_problem() -> Queried | None:
        statements = _draw_statements(draw, VARIABLES[:variables], depth, chains, values)
        statements = _arrange(draw, statements, depth, order)
        if names == "places":
            statements = _named_by_places(statements)
        if not is_in_split(statements_as_text(statements), split):
            return None
        return _as_problem(draw, statements, deepest, ask, blanks)

    sizes = f"depth {depth}, chains {chains}, order {order}, split {split}"
    return draw_different(draw_problem, count, sizes)


def grade(problem: Queried, text: str) -> Grade:
    """Grade the signs or values that were read, in the order of the queries, separated by spaces.

    A fault is "other" (the opposite sign, another chain's value), "foreign" or "missing".
    """
    return grade_answers(problem, text, possible_answers(problem))


def chance(problems: Sequence[Queried]) -> float:
    """Return the share that a guess among the signs, or the values of a problem, has right."""
    return statistics.fmean(1 / len(possible_answers(problem)) for problem in problems)


def word_tokenizer(values: int | None = None, **_: Any) -> Tokenizer:
    """Return a tokenizer with a token for each word."""
    roots = [ROOT] if values is None else map(str, range(values))
    return tokenizer_of_words([BLANK, *SIGNS, "=", END, "?", *roots, *VARIABLES])


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    """Return statistics of problems, and how often shortcuts have an answer right."""
    counts = describe_queried(problems)
    answers = [answer for problem in problems for answer in problem.answers]
    signs = set(answers) <= set(SIGNS)
    return {
        **counts,
        **({"share of +": answers.count("+") / len(answers)} if signs else {}),
        "right answers by shortcut": {
            name: statistics.fmean(ok for p in problems for ok in try_shortcut(name, p))
            for name in shortcuts_for(problems[0])
        },
    }


def overlap(tests: Sequence[Queried], training: Sequence[Queried]) -> dict[str, float]:
    """Return which share of the test problems has the statements of a training problem."""
    share = shared_with_training(
        tests, training, lambda problem: statements_as_text(read_statements(problem))
    )
    return {"the statements of a training problem, in any order": share}


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


def _check_values(values: int | None, chains: int, order: str) -> None:
    if values is None:
        return
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
    roots = [ROOT] * chains if values is None else draw.sample(range(values), chains)
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
        words += [BLANK] * gaps[number] + [*write_statement(statement).split(), END]
    if ask == "statements":
        ends = [at for at, word in enumerate(words) if word == END]
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
