"""Arithmetic expressions (AET): rewrite one operation at a time until a number is left.

    prompt      (7 + 5) / (6 + 4 * 3 - 2 * 7) =
    solution    12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7)
                = 12 / (18 - 14) = 12 / 4 = 3

The example is the paper's (2502.09245, appendix B). Each step carries out the leftmost operation
whose operands are both numbers. The paper leaves open what numbers occur and how expressions are
drawn; docs/tasks.md says what was chosen here and why, ``describe`` what comes out of it.

It does not know: ids of tokens, models, training.
"""

import random
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layermem.tasks.expressions import (
    OPERATORS,
    RANK,
    Expression,
    apply,
    evaluate,
    fits,
    nodes,
    parse,
    rewrites,
    solve,
    write,
)
from layermem.tasks.grading import Grade
from layermem.tasks.held_out import Chain, place, settled
from layermem.tasks.held_out import overlap as chains_overlap
from layermem.text_hash import hash_to_unit_interval

Split = Literal["train", "validation", "test"]
OPERANDS = range(2, 9)
PARENTHESES = ("needed", "all", "none")
HELD_OUT = ("strict", "expression")
_SPLITS: dict[str, tuple[float, float]] = {
    "test": (0.0, 0.2),
    "validation": (0.2, 0.3),
    "train": (0.3, 1.0),
}
# Candidates in a row that bring nothing new, after which there is nothing new.
_PATIENCE = 20_000


@dataclass(frozen=True, slots=True)
class Example:
    """One expression, its solution, its value."""

    prompt: str
    solution: str
    answer: int

    @property
    def operands(self) -> int:
        """How many numbers the expression has."""
        return len(re.findall(r"\d+", self.prompt))

    @property
    def chain(self) -> Chain:
        """The expression and every step of its solution."""
        return [self.prompt.removesuffix(" ="), *self.solution.split(" = ")]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rules:
    """What an expression may be made of."""

    operators: str
    operand_max: int
    value_max: int
    parentheses: str
    trivial: float
    held_out: str

    def __post_init__(self) -> None:
        if not self.operators or set(self.operators) - set(OPERATORS):
            raise ValueError(f"operators must be some of {OPERATORS}, got {self.operators!r}")
        if not 1 <= self.operand_max <= self.value_max:
            raise ValueError(
                "operand_max must be at least 1 and at most value_max, "
                f"got {self.operand_max} and {self.value_max}"
            )
        if self.parentheses not in PARENTHESES:
            raise ValueError(
                f"parentheses must be one of {', '.join(PARENTHESES)}, got {self.parentheses!r}"
            )
        if not 0 <= self.trivial <= 1:
            raise ValueError(f"trivial must be from 0 to 1, got {self.trivial}")
        if self.held_out not in HELD_OUT:
            raise ValueError(
                f"held_out must be one of {', '.join(HELD_OUT)}, got {self.held_out!r}"
            )


def generate(
    operands: int,
    count: int,
    seed: int,
    *,
    split: Split = "train",
    operators: str = OPERATORS,
    operand_max: int = 20,
    value_max: int = 200,
    parentheses: Literal["needed", "all", "none"] = "needed",
    trivial: float = 0.1,
    held_out: Literal["strict", "expression"] = "strict",
) -> list[Example]:
    """Draw ``count`` different expressions of ``operands`` numbers.

    Operands are 1 to ``operand_max``; every value on the way is an exact integer from 0 to
    ``value_max``. Operators and shape are drawn first, uniformly, then numbers that fit them; steps
    like ``x * 1`` or ``x - x``, which small numbers would bring far too many of, are let in with
    probability ``trivial``.

    Splits are disjoint whatever the seeds, counts and other options. ``held_out="strict"``: an
    expression's last two operations decide which split it is in, so no step of two operations or
    more is, up to the order of operands, in solutions of two splits (docs/tasks.md).
    ``"expression"``: its text decides, so its steps, and it with operands exchanged, may be in
    another split; that is how problems were drawn before there was a choice.
    """
    if operands not in OPERANDS:
        raise ValueError(f"operands must be {OPERANDS[0]} to {OPERANDS[-1]}, got {operands}")
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    if count < 0:
        raise ValueError(f"count must be at least 0, got {count}")
    rules = _Rules(
        operators=operators,
        operand_max=operand_max,
        value_max=value_max,
        parentheses=parentheses,
        trivial=trivial,
        held_out=held_out,
    )
    draw, (low, high) = random.Random(seed), _SPLITS[split]
    found: dict[str, Expression] = {}
    fruitless = 0
    while len(found) < count:
        fruitless += 1
        if fruitless > _PATIENCE:
            raise ValueError(
                f"only {len(found)} of {count} expressions were found with {operands} operands up "
                f"to {operand_max}, values up to {value_max}, operators {operators}, parentheses "
                f"{parentheses}, trivial {trivial}, split {split}, held_out {held_out}; widen "
                "the range or ask for fewer"
            )
        expression = _draw(operands, rules, draw)
        if expression is None:
            continue
        text = write(expression, parentheses)
        if text not in found and low <= _place(expression, text, rules) < high:
            found[text] = expression
            fruitless = 0
    return [_example(expression, parentheses) for expression in found.values()]


def grade(prompt: str, text: str) -> Grade:
    """Grade a generated solution: what follows the prompt, up to the end token.

    A fault is "unreadable" (no expression), "form" (not the step before with one operation carried
    out), "value" (the right operation, a wrong result) or "unfinished" (it ends before a number).
    """
    before = parse(prompt.rpartition("=")[0] or prompt)
    right = evaluate(before)
    parts = text.split("=")
    answer = _number(parts[-1]) == right
    for at, part in enumerate(parts, 1):
        try:
            now = parse(part)
        except ValueError:
            return Grade(answer=answer, steps=False, fault="unreadable", at=at)
        if now not in list(rewrites(before)):
            near = any(fits(now, form) for form in rewrites(before, blank=True))
            fault = "value" if near else "form"
            return Grade(answer=answer, steps=False, fault=fault, at=at)
        before = now
    if not isinstance(before, int):
        return Grade(answer=answer, steps=False, fault="unfinished", at=len(parts))
    return Grade(answer=answer, steps=True)


def tokenizer(value_max: int = 200, **_: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token for each number from 0 to ``value_max``, and each sign."""
    words = ["<pad>", "<end>", "<unknown>", "=", *OPERATORS, "(", ")"]
    words += [str(number) for number in range(value_max + 1)]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>")
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[0-9]+|."), "isolated")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def describe(examples: Sequence[Example]) -> dict[str, Any]:
    """Return what examples are like: operators, answers, lengths, trivial steps."""
    if not examples:
        raise ValueError("there are no examples to describe")
    trees = [parse(example.prompt.rpartition("=")[0]) for example in examples]
    operators = Counter(node[0] for tree in trees for node in nodes(tree))
    answers = sorted(example.answer for example in examples)
    common, times = Counter(answers).most_common(1)[0]
    lengths = [len(re.findall(r"\d+|[^\s\d]", f"{e.prompt} {e.solution}")) + 1 for e in examples]
    values = [evaluate(node) for tree in trees for node in nodes(tree)]
    whole = sum(operators.values())
    return {
        "expressions": len(examples),
        "operators": {sign: operators[sign] / whole for sign in OPERATORS if operators[sign]},
        "answer: smallest, median, largest": [
            answers[0],
            statistics.median(answers),
            answers[-1],
        ],
        "different answers": len(set(answers)),
        "always answering the commonest": {"answer": common, "right": times / len(answers)},
        "share of values on the way above 100": sum(v > 100 for v in values) / len(values),
        "tokens: shortest, mean, longest": [
            min(lengths),
            statistics.fmean(lengths),
            max(lengths),
        ],
        "share with parentheses": sum("(" in e.prompt for e in examples) / len(examples),
        "share with a trivial step": sum(map(_has_trivial, trees)) / len(examples),
    }


def overlap(tests: Sequence[Example], learnt: Sequence[Example]) -> dict[str, float]:
    """Return which share of test problems has steps in what is learnt from, or is in it."""
    return chains_overlap([e.chain for e in tests], [e.chain for e in learnt])


def _example(expression: Expression, parentheses: str) -> Example:
    steps = solve(expression)
    return Example(
        prompt=f"{write(expression, parentheses)} =",
        solution=" = ".join(write(step, parentheses) for step in steps),
        answer=evaluate(expression),
    )


def _draw(operands: int, rules: _Rules, draw: random.Random) -> Expression | None:
    """Draw shape and operators, then try numbers a few times; None if none were found to fit."""
    form = _form(operands, rules, draw)
    if not _writes_as(form, rules.parentheses):
        return None
    for _ in range(20):
        filled = _fill(form, rules, draw)
        if filled is not None:
            return settled(filled[0]) if rules.held_out == "strict" else filled[0]
    return None


def _place(expression: Expression, text: str, rules: _Rules) -> float:
    """Return the lot that decides the split."""
    return place(expression) if rules.held_out == "strict" else hash_to_unit_interval(text)


def _form(operands: int, rules: _Rules, draw: random.Random) -> Any:
    """Draw a shape, each as likely as any other, with operators; None stands for a number."""
    if operands == 1:
        return None
    ways = [_shapes(left) * _shapes(operands - left) for left in range(1, operands)]
    (left,) = draw.choices(range(1, operands), ways)
    operator = draw.choice(rules.operators)
    return operator, _form(left, rules, draw), _form(operands - left, rules, draw)


@lru_cache
def _shapes(operands: int) -> int:
    """How many binary trees have so many leaves."""
    if operands == 1:
        return 1
    return sum(_shapes(left) * _shapes(operands - left) for left in range(1, operands))


def _writes_as(form: Any, parentheses: str) -> bool:
    """Whether the policy has this form: parentheses where the value asks for them, or none.

    a + (b - c) is the same as a + b - c, which is another form already; so is a * (b / c).
    """
    if form is None or parentheses == "all":
        return True
    operator, left, right = form
    for side, inner in enumerate((left, right)):
        if inner is None:
            continue
        enclosed = RANK[inner[0]] < RANK[operator] + side
        idle = side == 1 and operator in "+*" and RANK[inner[0]] == RANK[operator]
        if idle or (enclosed and parentheses == "none"):
            return False
    return _writes_as(left, parentheses) and _writes_as(right, parentheses)


def _fill(form: Any, rules: _Rules, draw: random.Random) -> tuple[Expression, int] | None:
    """Put numbers into a form; return it with its value, or None where none fit.

    A number beside a value is drawn among those that fit it; two values that do not fit each other
    are given up.
    """
    if form is None:
        number = draw.randint(1, rules.operand_max)
        return number, number
    operator, left, right = form
    lenient = draw.random() < rules.trivial
    first = None if left is None and right is not None else _fill(left, rules, draw)
    second = None if right is None else _fill(right, rules, draw)
    if (first is None and left is not None) or (second is None and right is not None):
        return None
    if first is None:
        first = _beside(second, operator, 0, lenient, rules, draw)
    elif second is None:
        second = _beside(first, operator, 1, lenient, rules, draw)
    if first is None or second is None or not _valid(operator, first[1], second[1], lenient, rules):
        return None
    return (operator, first[0], second[0]), evaluate((operator, first[1], second[1]))


def _beside(
    other: Any, operator: str, side: int, lenient: bool, rules: _Rules, draw: random.Random
) -> tuple[Expression, int] | None:
    """Draw a number that fits beside a value, on the side 0 (left) or 1 (right)."""
    fitting = _fitting(operator, other[1], side, lenient, rules)
    if not fitting:
        return None
    number = draw.choice(fitting)
    return number, number


@lru_cache(maxsize=65_536)
def _fitting(operator: str, other: int, side: int, lenient: bool, rules: _Rules) -> list[int]:
    numbers = range(1, rules.operand_max + 1)
    pairs = ((n, other) if side == 0 else (other, n) for n in numbers)
    return [
        n for n, pair in zip(numbers, pairs, strict=True) if _valid(operator, *pair, lenient, rules)
    ]


def _valid(operator: str, x: int, y: int, lenient: bool, rules: _Rules) -> bool:
    value = apply(operator, x, y)
    within = value is not None and value <= rules.value_max
    return within and (lenient or not _is_trivial(operator, x, y))


def _is_trivial(operator: str, x: int, y: int) -> bool:
    """Whether a step adds or takes 0, multiplies or divides by 0 or 1, or has 0 or 1 of equals."""
    if operator in "*/" and not {x, y}.isdisjoint((0, 1)):
        return True
    return (operator in "+-" and 0 in (x, y)) or (operator in "-/" and x == y)


def _has_trivial(expression: Expression) -> bool:
    return any(_is_trivial(sign, evaluate(x), evaluate(y)) for sign, x, y in nodes(expression))


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
