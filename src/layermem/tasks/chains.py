"""Chains of assignments: the sign of every variable, each defined by another (LEGO).

    prompt      c = - b ; a = + 1 ; x = - 1 ; b = - a ; y = - x ; z = + y ; ? b _ ? y _ ? z _ ...
    solution    - + + ...

Here ``b`` is ``- a`` and ``a`` is ``+ 1``, so ``b`` is ``-`` (level 2) and ``c`` is ``+`` (level
3). The task is that of Zhang et al. (2206.04301) for a causal model: statements stand in random
order, every variable is asked for once, and no answer stands in the sequence. A level is the number
of statements that an answer takes. docs/tasks.md says which shortcuts solve which levels.

It does not know: ids of tokens, models, training.
"""

import random
import statistics
import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Tokenizer

from layermem.tasks import queried
from layermem.tasks.grading import Grade
from layermem.tasks.hashed_splits import Split, check_split_and_count, is_in_split
from layermem.tasks.queried import BLANK, Queried, count_answers, grade_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VARIABLES = string.ascii_lowercase
SIGNS = ("+", "-")
ROOT = "1"
"""What the first variable of a chain is defined by."""
# After so many draws in a row without a new problem, there are taken to be no more.
_PATIENCE = 2_000
# A variable, its sign, and what it is defined by.
Statement = tuple[str, str, str]


def generate(
    *,
    split: Split = "train",
    count: int,
    seed: int,
    depth: int = 6,
    chains: int = 2,
    order: Literal["shuffled", "chain"] = "shuffled",
    learned: int | None = None,
) -> list[Queried]:
    """Draw ``count`` different problems of ``chains`` chains, each of ``depth`` variables.

    ``order`` is that of the statements: at random, or each variable after what it is defined by.
    Variables are asked for in random order; in the training set only those up to level ``learned``
    (None: all), so that the other splits show whether deeper ones are reached.

    Splits are disjoint whatever the seeds and other options: the set of statements decides.
    """
    check_split_and_count(split, count)
    _check_sizes(depth, chains, order, learned)
    draw, problems, fruitless = random.Random(f"{split}-{seed}"), dict[str, Queried](), 0
    while len(problems) < count:
        fruitless += 1
        if fruitless > _PATIENCE:
            raise ValueError(
                f"only {len(problems)} of {count} problems were found with depth {depth}, chains "
                f"{chains}, order {order}, split {split}; choose longer chains or ask for fewer"
            )
        statements = _draw_statements(draw, depth, chains, order)
        if not is_in_split(_statements_as_text(statements), split):
            continue
        deepest = depth if learned is None or split != "train" else learned
        problem = _as_problem(draw, statements, deepest)
        if problem.prompt not in problems:
            problems[problem.prompt] = problem
            fruitless = 0
    return list(problems.values())


def read_statements(problem: Queried) -> list[Statement]:
    """Return the statements of a problem: each variable, its sign, and what it is defined by."""
    told = problem.prompt.partition(" ? ")[0].removesuffix(" ;").split(" ; ")
    return [(name, sign, base) for name, _, sign, base in map(str.split, told)]


def solve(statements: Sequence[Statement]) -> dict[str, tuple[str, int]]:
    """Return the sign of each variable, and its level."""
    definitions = {name: (sign, base) for name, sign, base in statements}
    return {name: _follow(definitions, name, len(definitions)) for name in definitions}


def grade(problem: Queried, text: str) -> Grade:
    """Grade the signs that were read, in the order of the queries, separated by spaces.

    A fault is "other" (the opposite sign), "foreign" (no sign) or "missing".
    """
    return grade_answers(problem, text, SIGNS)


def tokenizer(**_: Any) -> "PreTrainedTokenizerFast":
    """Return a tokenizer with a token for each variable and symbol."""
    return queried.tokenizer(_all_words())


def word_tokenizer(**_: Any) -> Tokenizer:
    """Return the same without transformers' interface."""
    return queried.word_tokenizer(_all_words())


def probe_words(**_: Any) -> tuple[str, ...]:
    """Return the first variables."""
    return tuple(VARIABLES[:4])


def describe(problems: Sequence[Queried]) -> dict[str, Any]:
    """Return statistics of problems, and how often shortcuts have an answer right."""
    counts = count_answers(problems)
    answers = [answer for problem in problems for answer in problem.answers]
    return {
        **counts,
        "share of +": answers.count("+") / len(answers),
        "right answers by shortcut": {
            name: statistics.fmean(ok for p in problems for ok in try_shortcut(name, p))
            for name in SHORTCUTS
        },
    }


def overlap(tests: Sequence[Queried], training: Sequence[Queried]) -> dict[str, float]:
    """Return which share of the test problems has the statements of a training problem."""
    if not tests or not training:
        raise ValueError("there are no test problems, or no training problems, to compare")
    trained_on = {_statements_as_text(read_statements(problem)) for problem in training}
    shared = sum(_statements_as_text(read_statements(problem)) in trained_on for problem in tests)
    return {"the statements of a training problem, in any order": shared / len(tests)}


def try_shortcut(name: str, problem: Queried) -> list[bool]:
    """Return which answers of a problem a shortcut has right."""
    statements, words = read_statements(problem), problem.prompt.split()
    return [
        SHORTCUTS[name](statements, words[query]) == answer
        for query, answer in zip(problem.queries, problem.answers, strict=True)
    ]


def _own_sign(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the sign of the variable's own statement."""
    return next(sign for name, sign, _ in statements if name == variable)


def _all_minus_signs(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the signs of all statements."""
    return _multiply([sign for _, sign, _ in statements])


def _minus_signs_so_far(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the signs of the statements up to the variable's own, in the order they stand."""
    place = next(i for i, (name, _, _) in enumerate(statements) if name == variable)
    return _multiply([sign for _, sign, _ in statements[: place + 1]])


def _first_sign(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the sign of the first statement."""
    return statements[0][1]


def _last_sign(statements: Sequence[Statement], variable: str) -> str:
    """Answer with the sign of the last statement."""
    return statements[-1][1]


def _two_statements(statements: Sequence[Statement], variable: str) -> str:
    """Multiply the sign of the variable's own statement and that of what it is defined by."""
    definitions = {name: (sign, base) for name, sign, base in statements}
    return _follow(definitions, variable, 2)[0]


SHORTCUTS: dict[str, Callable[[Sequence[Statement], str], str]] = {
    "the sign of its own statement": _own_sign,
    "all minus signs counted": _all_minus_signs,
    "minus signs up to its own statement counted": _minus_signs_so_far,
    "the sign of the first statement": _first_sign,
    "the sign of the last statement": _last_sign,
    "its own statement and the one it refers to": _two_statements,
}


def _multiply(signs: Sequence[str]) -> str:
    return "-" if signs.count("-") % 2 else "+"


def _follow(
    definitions: Mapping[str, tuple[str, str]], variable: str, statements: int
) -> tuple[str, int]:
    """Return the product of signs on the way to the root, and how many there were.

    At most ``statements`` are followed.
    """
    signs = list[str]()
    while variable != ROOT and len(signs) < statements:
        sign, variable = definitions[variable]
        signs.append(sign)
    return _multiply(signs), len(signs)


def _check_sizes(depth: int, chains: int, order: str, learned: int | None) -> None:
    if depth < 1 or chains < 1:
        raise ValueError(f"depth and chains must be at least 1, got {depth} and {chains}")
    if depth * chains > len(VARIABLES):
        raise ValueError(
            f"{chains} chains of {depth} have {depth * chains} variables, and there are names for "
            f"{len(VARIABLES)}: choose fewer or shorter chains"
        )
    if order not in ("shuffled", "chain"):
        raise ValueError(f"order must be shuffled or chain, got {order!r}")
    if learned is not None and not 1 <= learned <= depth:
        raise ValueError(f"learned must be from 1 to depth ({depth}), got {learned}")


def _all_words() -> list[str]:
    return [BLANK, *SIGNS, "=", ";", "?", ROOT, *VARIABLES]


def _statements_as_text(statements: Sequence[Statement]) -> str:
    return " ; ".join(sorted(f"{name} = {sign} {base}" for name, sign, base in statements))


def _draw_statements(draw: random.Random, depth: int, chains: int, order: str) -> list[Statement]:
    names = draw.sample(VARIABLES, depth * chains)
    statements = [
        (name, draw.choice("+-"), names[number - 1] if number % depth else ROOT)
        for number, name in enumerate(names)
    ]
    return draw.sample(statements, len(statements)) if order == "shuffled" else statements


def _as_problem(draw: random.Random, statements: Sequence[Statement], deepest: int) -> Queried:
    """Write the statements, and ask for all variables up to a level in random order."""
    solved = {name: found for name, found in solve(statements).items() if found[1] <= deepest}
    asked = draw.sample(list(solved), len(solved))
    told = " ; ".join(f"{name} = {sign} {base}" for name, sign, base in statements)
    # Each statement has five words with the semicolon, and each query three.
    before = 5 * len(statements)
    return Queried(
        prompt=f"{told} ; " + " ".join(f"? {name} {BLANK}" for name in asked),
        solution=" ".join(solved[name][0] for name in asked),
        queries=tuple(before + 3 * number + 1 for number in range(len(asked))),
        levels=tuple(solved[name][1] for name in asked),
    )
