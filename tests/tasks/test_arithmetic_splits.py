"""The splits of arithmetic share no long step, checked on texts with code of its own."""

import ast
import hashlib
import re

import pytest

from layermem.tasks.arithmetic import describe, generate, overlap
from layermem.tasks.arithmetic_drawing import HELD_OUT
from layermem.tasks.expressions import (
    choose_mirror,
    deciding_key,
    evaluate,
    parse,
    solve,
    sort_operands,
    write,
)

SPLITS = ("train", "validation", "test")
RANGES = {
    "usual": {},
    "all parentheses": {"parentheses": "all"},
    "no parentheses": {"parentheses": "none"},
    "sums and products": {"operators": "+*"},
    "small": {"operand_max": 5, "value_max": 30, "trivial": 0.5},
}


def unordered(text):
    """A text that all expressions share that differ in order alone, by Python's own parser."""

    def as_text(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        name, sides = type(node.op).__name__, [as_text(node.left), as_text(node.right)]
        return f"{name}({','.join(sorted(sides) if name in ('Add', 'Mult') else sides)})"

    return as_text(ast.parse(text.strip(), mode="eval").body)


def long_steps(examples):
    """Every expression of two operations or more of every solution, up to order."""
    texts = {t for e in examples for t in (e.prompt[:-2], *e.solution.split(" = "))}
    return {unordered(t) for t in texts if len(re.findall(r"[-+*/]", t)) > 1}


@pytest.mark.parametrize("operands", [3, 4, 6])
@pytest.mark.parametrize("rules", RANGES.values(), ids=RANGES)
def test_no_long_step_is_in_two_splits(operands, rules):
    # Small numbers make few expressions of 3 operands.
    count = 40 if operands == 3 and len(rules) > 1 else 120
    steps = {
        split: set().union(
            *(
                long_steps(generate(operands, count, seed, split=split, **rules))
                for seed in range(2)
            )
        )
        for split in SPLITS
    }
    assert all(steps.values())
    assert not steps["train"] & steps["test"]
    assert not steps["train"] & steps["validation"]
    assert not steps["validation"] & steps["test"]


def test_of_many_neither():
    learnt, tests = generate(4, 20_000, 0), generate(4, 2000, 1, split="test")
    steps = long_steps(learnt)
    assert not steps & long_steps(tests)
    # Nor of fewer or more operands.
    for operands in (3, 5):
        assert not steps & long_steps(generate(operands, 1000, 2, split="test"))
    assert set(overlap(tests, learnt).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize(("operands", "seed"), [(3, 3), (5, 1), (6, 2)])
def test_of_as_many_as_are_learnt_neither(operands, seed):
    learnt = generate(operands, 20_000, seed)
    tests = generate(operands, 2000, seed + 1, split="test")
    assert not long_steps(learnt) & long_steps(tests)


def test_what_is_left_of_two_operands():
    found = [generate(2, 150, 0, split=split) for split in ("train", "test")]
    learnt, tests = ({unordered(e.prompt[:-2]) for e in examples} for examples in found)
    assert not learnt & tests


def test_the_draw_before_is_as_it_was():
    texts = [
        f"{e.prompt} {e.solution}"
        for operands in (3, 4, 6)
        for split in SPLITS
        for e in generate(operands, 200, 1, split=split, held_out="expression")
    ]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "f5306cb7185ff344"


def test_the_overlap_of_the_draw_before_is_counted():
    found = overlap(*(generate(4, n, 0, split=s, held_out="expression") for s, n in COUNTS))
    learnt, tests = (generate(4, n, 0, split=s, held_out="expression") for s, n in COUNTS[::-1])
    whole = {text for e in learnt for text in (e.prompt[:-2], *e.solution.split(" = "))}
    firsts = {unordered(e.prompt[:-2]) for e in learnt}
    steps = long_steps(learnt)
    expected = [
        sum(whole >= set(e.solution.split(" = ")) for e in tests),
        sum(unordered(e.prompt[:-2]) in firsts for e in tests),
        sum(bool(long_steps([e]) & steps) for e in tests),
    ]
    assert list(found.values()) == [count / len(tests) for count in expected]
    assert all(0 < count < len(tests) for count in expected)
    for nothing in (([], learnt), (tests, [])):
        with pytest.raises(ValueError, match="problems to compare"):
            overlap(*nothing)


COUNTS = (("test", 400), ("train", 4000))


@pytest.mark.parametrize("operands", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_the_draws_and_the_splits_are_alike(operands):
    before = describe(generate(operands, 2000, 0, held_out="expression"))
    for split in SPLITS:
        now = describe(generate(operands, 2000, 0, split=split))
        for sign, share in before["operators"].items():
            assert now["operators"][sign] == pytest.approx(share, abs=0.03)
        for what, width in (
            ("share with a trivial step", 0.03),
            ("share with parentheses", 0.03),
            ("share of values on the way above 100", 0.02),
        ):
            assert now[what] == pytest.approx(before[what], abs=width)
        commonest = "always answering the commonest"
        assert now[commonest]["right"] == pytest.approx(before[commonest]["right"], abs=0.03)


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("(7 + 5) / (6 + 4 * 3 - 2 * 7)", "12 / (18 - 14)"),
        ("(2 + 3 * 4) / 2", "(12 + 2) / 2"),
        ("9 - 4 - 2 * 2", "5 - 2 * 2"),
        ("3 * 2 + 5", "2 * 3 + 5"),
        ("5 + 2 * 3", "2 * 3 + 5"),
        ("4 + 3", "3 + 4"),
        ("7", "7"),
    ],
)
def test_the_last_two_operations_decide(text, last):
    assert unordered(deciding_key(parse(text))) == unordered(last)
    if "+ 3" not in text:
        assert deciding_key(parse(text)) == deciding_key(parse(last))


def test_the_worked_examples_of_the_docstrings():
    texts = ("(2 + 3) * 4 - 1", "(3 + 2) * 4 - 1", "5 * 4 - 1", "10 / 2 * 4 - 1")
    assert {deciding_key(parse(text)) for text in texts} == {"4 * 5 - 1"}
    assert sort_operands(parse("(3 + 2) * 4")) == sort_operands(parse("4 * (2 + 3)"))
    assert sort_operands(parse("4 * (2 + 3)")) == ("*", ("+", 2, 3), 4)
    assert [write(step) for step in solve(parse("(2 + 3) * (4 - 1)"))] == [
        "5 * (4 - 1)",
        "5 * 3",
        "15",
    ]


def test_of_an_expression_and_its_mirror_one_is_drawn():
    for sides in (("2 * 3", "8 / 4"), ("2 * 3", "9 - 1 - 2"), ("(2 + 3) * 4", "8 / 4")):
        trees = [parse(f"({a}) + ({b})") for a, b in (sides, sides[::-1])]
        first, second = map(choose_mirror, trees)
        assert first == second and first in trees and evaluate(first) == evaluate(trees[0])
    # Where one order needs no parentheses it is that.
    assert write(choose_mirror(parse("2 * 3 + (9 - 1)"))) == "9 - 1 + 2 * 3"
    for text in ("9 - 1 - 2 * 3", "4 + 2 * 3", "(2 + 3) / (4 - 3)", "5"):
        assert choose_mirror(parse(text)) == parse(text)


def test_an_unknown_way():
    with pytest.raises(ValueError, match="held_out must be one of strict, expression, got 'some'"):
        generate(4, 1, 0, held_out="some")
    assert HELD_OUT[0] == "strict"
