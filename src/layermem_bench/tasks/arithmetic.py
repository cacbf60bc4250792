"""Arithmetic expressions (AET): rewrite one operation at a time until a number is left.

    prompt      (7 + 5) / (6 + 4 * 3 - 2 * 7) =
    solution    12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7)
                = 12 / (18 - 14) = 12 / 4 = 3

The example is the paper's (2502.09245, appendix B). Each step carries out the leftmost operation
whose operands are both numbers. The paper does not say which numbers occur and how expressions are
drawn; docs/tasks.md says what was chosen here and why.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, pre_tokenizers

from layermem_bench.tasks.arithmetic_drawing import Rules, draw_expression
from layermem_bench.tasks.expressions import (
    OPERATORS,
    choose_mirror,
    evaluate,
    matches,
    parse,
    rewrites,
    solve,
    split_key,
    write,
)
from layermem_bench.tasks.problems import (
    Grade,
    Split,
    check_split_and_count,
    draw_different,
    is_in_split,
    require,
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


def generate(
    operands: int,
    count: int,
    seed: int,
    *,
    split: Split = "train",
    operators: str = OPERATORS,
    operand_max: int = 20,
    value_max: int = 200,
    trivial: float = 0.1,
    held_out: Literal["strict"] = "strict",
) -> list[Example]:
    """Draw ``count`` different expressions of ``operands`` numbers.

    Operands are 1 to ``operand_max``; every value on the way is an exact integer from 0 to
    ``value_max``. Operators and shape are drawn first, uniformly, then numbers that fit them; steps
    like ``x * 1`` or ``x - x``, of which small numbers would bring far too many, are allowed with
    probability ``trivial``. Only the parentheses that are needed are written.

    Splits are disjoint whatever the seeds, counts and other options. The last two operations of an
    expression decide its split, so that no step of two operations or more is, up to the order of
    operands, in solutions of two splits (docs/tasks.md). ``held_out`` names that rule, so that a
    recorded config says how its problems were drawn.
    """
    least, most = OPERANDS[0], OPERANDS[-1]
    require(operands in OPERANDS, f"operands must be {least} to {most}, got {operands}")
    check_split_and_count(split, count)
    rules = Rules(
        operators=operators, operand_max=operand_max, value_max=value_max, trivial=trivial
    )
    draw = random.Random(seed)

    def draw_example() -> Example | None:
        expression = draw_expression(operands, rules, draw)
        if expression is None:
            return None
        expression = choose_mirror(expression)
        if not is_in_split(split_key(expression), split):
            return None
        steps = [write(step) for step in (expression, *solve(expression))]
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


def _read_number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def word_tokenizer(value_max: int = 200, **_: Any) -> Tokenizer:
    inner = tokenizer_of_words(["=", *OPERATORS, "(", ")", *map(str, range(value_max + 1))])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[0-9]+|."), "isolated")]
    )
    return inner


def chance(examples: Sequence[Example]) -> float:
    """Return the share of the commonest answer, which is what a constant guess would score."""
    return Counter(example.answer for example in examples).most_common(1)[0][1] / len(examples)


def probe_words(value_max: int = 200, **_: Any) -> tuple[str, ...]:
    """Return the smallest numbers, which are frequent operands."""
    return tuple(map(str, range(1, 5) if value_max >= 4 else range(value_max + 1)))
