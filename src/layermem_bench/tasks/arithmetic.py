"""Arithmetic expressions (AET): rewrite one operation at a time until a number is left.

    prompt      (7 + 5) / (6 + 4 * 3 - 2 * 7) =
    solution    12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7)
                = 12 / (18 - 14) = 12 / 4 = 3

The example is the paper's (2502.09245, appendix B). Each step carries out the leftmost operation
whose operands are both numbers. The paper does not say which numbers occur and how expressions are
drawn; docs/tasks.md says what was chosen here and why, and ``describe`` measures the outcome.
"""

import random
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, Tokenizer, pre_tokenizers

from layermem_bench.config.hashing import hash_to_unit_interval
from layermem_bench.tasks.arithmetic_drawing import (
    HeldOut,
    Parentheses,
    Rules,
    draw_expression,
    is_trivial,
)
from layermem_bench.tasks.expressions import (
    OPERATORS,
    Expression,
    choose_mirror,
    evaluate,
    matches,
    operations,
    parse,
    rewrites,
    solve,
    sort_operands,
    split_position,
    write,
)
from layermem_bench.tasks.problems import (
    SPLITS,
    Grade,
    Split,
    check_split_and_count,
    draw_different,
    require,
    require_some,
    spread,
    tokenizer_of_words,
)

OPERANDS = range(2, 9)


@dataclass(frozen=True, slots=True)
class Example:
    """One expression with its solution and value."""

    prompt: str
    solution: str
    answer: int

    @property
    def operands(self) -> int:
        return len(re.findall(r"\d+", self.prompt))

    @property
    def chain(self) -> list[str]:
        """The expression and every step of its solution."""
        return [self.prompt.removesuffix(" ="), *self.solution.split(" = ")]


def generate(
    operands: int,
    count: int,
    seed: int,
    *,
    split: Split = "train",
    operators: str = OPERATORS,
    operand_max: int = 20,
    value_max: int = 200,
    parentheses: Parentheses = "needed",
    trivial: float = 0.1,
    held_out: HeldOut = "strict",
) -> list[Example]:
    """Draw ``count`` different expressions of ``operands`` numbers.

    Operands are 1 to ``operand_max``; every value on the way is an exact integer from 0 to
    ``value_max``. Operators and shape are drawn first, uniformly, then numbers that fit them; steps
    like ``x * 1`` or ``x - x``, of which small numbers would bring far too many, are allowed with
    probability ``trivial``.

    Splits are disjoint whatever the seeds, counts and other options. ``held_out="strict"``: the
    last two operations of an expression decide its split, so that no step of two operations or
    more is, up to the order of operands, in solutions of two splits (docs/tasks.md).
    ``"expression"``: the text of the expression decides, so its steps, and itself with operands
    exchanged, may be in another split; it repeats results recorded so.
    """
    least, most = OPERANDS[0], OPERANDS[-1]
    require(operands in OPERANDS, f"operands must be {least} to {most}, got {operands}")
    check_split_and_count(split, count)
    rules = Rules(
        operators=operators,
        operand_max=operand_max,
        value_max=value_max,
        parentheses=parentheses,
        trivial=trivial,
        held_out=held_out,
    )
    draw, (low, high) = random.Random(seed), SPLITS[split]

    def draw_example() -> Example | None:
        expression = draw_expression(operands, rules, draw)
        if expression is None:
            return None
        if held_out == "strict":
            expression = choose_mirror(expression)
            position = split_position(expression)
        else:
            position = hash_to_unit_interval(write(expression, parentheses))
        if not low <= position < high:
            return None
        steps = [write(step, parentheses) for step in (expression, *solve(expression))]
        return Example(f"{steps[0]} =", " = ".join(steps[1:]), evaluate(expression))

    sizes = ", ".join(f"{name} {value}" for name, value in vars(rules).items())
    sizes = f"{operands} operands, {sizes}, split {split}"
    return draw_different(draw_example, count, sizes, patience=20_000)


def grade(prompt: str, text: str) -> Grade:
    """Grade a generated solution: what follows the prompt, up to the end token.

    Steps may carry out operations in any order. A fault is "unreadable" (no expression), "form"
    (not the step before with one operation carried out), "value" (the right operation with a wrong
    result) or "unfinished" (it ends before a number). Attempts at ``2 + 3 * 4 =``:

        2 + 12 = 14     right
        2 + 11 = 13     "value" at step 1
        5 * 4 = 20      "form" at step 1
        2 + 12          "unfinished"
    """
    current = parse(prompt.rpartition("=")[0] or prompt)
    value = evaluate(current)
    parts = text.split("=")
    answer = _read_number(parts[-1]) == value
    for number, part in enumerate(parts, 1):
        try:
            step = parse(part)
        except ValueError:
            return Grade(answer=answer, steps=False, fault="unreadable", at=number)
        if step not in list(rewrites(current)):
            forms = rewrites(current, blank=True)
            fault = "value" if any(matches(step, form) for form in forms) else "form"
            return Grade(answer=answer, steps=False, fault=fault, at=number)
        current = step
    if not isinstance(current, int):
        return Grade(answer=answer, steps=False, fault="unfinished", at=len(parts))
    return Grade(answer=answer, steps=True)


def word_tokenizer(value_max: int = 200, **_: Any) -> Tokenizer:
    inner = tokenizer_of_words(["=", *OPERATORS, "(", ")", *map(str, range(value_max + 1))])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[0-9]+|."), "isolated")]
    )
    return inner


def describe(examples: Sequence[Example]) -> dict[str, Any]:
    require(len(examples) > 0, "there are no examples to describe")
    trees = [list(operations(parse(example.chain[0]))) for example in examples]
    steps = [step for tree in trees for step in tree]
    operators = Counter(operator for operator, _, _ in steps)
    answers = sorted(example.answer for example in examples)
    commonest, times = Counter(answers).most_common(1)[0]
    lengths = [len(re.findall(r"\d+|[^\s\d]", f"{e.prompt} {e.solution}")) + 1 for e in examples]
    with_trivial_step = [
        any(is_trivial(operator, evaluate(x), evaluate(y)) for operator, x, y in tree)
        for tree in trees
    ]
    return {
        "expressions": len(examples),
        "operators": {sign: operators[sign] / len(steps) for sign in OPERATORS if operators[sign]},
        "answer: smallest, median, largest": [
            summary(answers) for summary in (min, statistics.median, max)
        ],
        "different answers": len(set(answers)),
        "always answering the commonest": {"answer": commonest, "right": times / len(answers)},
        "share of values on the way above 100": statistics.fmean(evaluate(s) > 100 for s in steps),
        "tokens: shortest, mean, longest": spread(lengths),
        "share with parentheses": statistics.fmean("(" in e.prompt for e in examples),
        "share with a trivial step": statistics.fmean(with_trivial_step),
    }


def chance(examples: Sequence[Example]) -> float:
    """Return the share of the commonest answer, which is what a constant guess would score."""
    return Counter(example.answer for example in examples).most_common(1)[0][1] / len(examples)


def overlap(tests: Sequence[Example], training: Sequence[Example]) -> dict[str, float]:
    """Return which share of the test problems has its steps, or itself, in training solutions.

    Later steps are compared word for word, the others up to the order of operands.
    """
    require_some(tests, training)
    texts = {text for example in training for text in example.chain}
    steps = {step for example in training for step in _long_steps(example)}
    questions = {sort_operands(parse(example.chain[0])) for example in training}
    return {
        "every later step in training solutions": statistics.fmean(
            texts.issuperset(example.chain[1:]) for example in tests
        ),
        "a training expression, up to order": statistics.fmean(
            sort_operands(parse(example.chain[0])) in questions for example in tests
        ),
        "a step of 2 operations or more in training solutions, up to order": statistics.fmean(
            not steps.isdisjoint(_long_steps(example)) for example in tests
        ),
    }


def _long_steps(example: Example) -> set[Expression]:
    """Return the expressions of two operations or more of a solution, with operands in order."""
    expressions = map(parse, example.chain)
    return {sort_operands(step) for step in expressions if len(list(operations(step))) > 1}


def probe_words(value_max: int = 200, **_: Any) -> tuple[str, ...]:
    """Return the smallest numbers, which are frequent operands."""
    return tuple(map(str, range(1, 5) if value_max >= 4 else range(value_max + 1)))


def options_of_splits(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that decide the split of a problem.

    Where its text decides, superfluous parentheses change it, and so the split.
    """
    strict = options.get("held_out", "strict") == "strict"
    return ("held_out",) if strict else ("held_out", "parentheses")


def _read_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
