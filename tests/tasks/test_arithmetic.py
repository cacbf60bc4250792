"""Arithmetic: steps have the value of the answer, attempts are graded, splits share no long step.

Values and splits are checked on texts, by Python's own parser and fractions.
"""

import ast
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermem_bench.tasks.arithmetic import (
    OPERANDS,
    Example,
    Rules,
    count_shapes,
    draw_form,
    fill_form,
    fitting_numbers,
    generate,
    grade,
    is_trivial,
    is_written,
)
from layermem_bench.tasks.expressions import (
    choose_mirror,
    deciding_key,
    evaluate,
    parse,
    rewrites,
    solve,
    write,
)
from layermem_bench.tasks.problems import Grade

RIGHT = Grade(answer=True, steps=True)
SPLITS = ("train", "validation", "test")
RULES = Rules(operand_max=20, value_max=200, trivial=0.0)
TREES = st.recursive(
    st.integers(0, 999),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=8,
)


def by_python(text):
    """Return the value of an expression by Python's own arithmetic, exactly."""
    spaced = text.replace("(", "( ").replace(")", " )").split()
    return eval(" ".join(f"Fraction({t})" if t.isdigit() else t for t in spaced))  # noqa: S307


@pytest.mark.parametrize("operands", OPERANDS)
def test_every_step_has_the_value_of_the_answer(operands):
    for example in generate(operands, 30, 3, split="test"):
        assert example.operands == operands
        expression, end = example.prompt[:-2], example.prompt[-2:]
        steps = example.solution.split(" = ")
        assert end == " =" and len(steps) == operands - 1
        assert {by_python(text) for text in (expression, *steps)} == {Fraction(example.answer)}
        assert steps[-1] == str(example.answer)
        assert max(int(number) for text in steps for number in re.findall(r"\d+", text)) <= 200
        assert grade(example, example.solution) == RIGHT
        assert write(parse(expression)) == expression


def test_the_papers_example():
    prompt = "(7 + 5) / (6 + 4 * 3 - 2 * 7) ="
    solution = (
        "12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7) = 12 / (18 - 14) "
        "= 12 / 4 = 3"
    )
    assert " = ".join(map(write, solve(parse(prompt[:-1])))) == solution
    example = Example(prompt, solution, 3)
    assert grade(example, solution) == RIGHT
    # Another order is as valid.
    other = (
        "(7 + 5) / (6 + 4 * 3 - 14) = (7 + 5) / (6 + 12 - 14) = (7 + 5) / (18 - 14) "
        "= 12 / (18 - 14) = 12 / 4 = 3"
    )
    assert grade(example, other) == RIGHT


@pytest.mark.parametrize(
    ("text", "answer", "fault", "at"),
    [
        ("=", False, "unreadable", 1),
        ("4 + 3 * = 9", False, "unreadable", 1),
        ("2 + 12 = 14", True, "", 0),
        ("14", True, "form", 1),
        ("2 + 12 = 13", False, "value", 2),
        ("2 + 11 = 13", False, "value", 1),
        ("2 + 11 = 14", True, "value", 1),
        ("5 * 4 = 20", False, "form", 1),
        ("2 + 12", False, "unfinished", 1),
        ("2 + 12 = 14 = 14", True, "form", 3),
        ("2 + 12 = 1" + "4" * 5000, False, "unreadable", 2),
        ("(" * 5000, False, "unreadable", 1),
        # Digits that int() reads, too: of other scripts, and wide ones.
        ("2 + 12 = ١٤", False, "unreadable", 2),
        ("2 + 1２ = 14", True, "unreadable", 1),
    ],
)
def test_attempts(text, answer, fault, at):
    expected = Grade(answer=answer, steps=not fault, fault=fault, at=at)
    assert grade(Example("2 + 3 * 4 =", "", 14), text) == expected


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(0, 50), st.randoms(use_true_random=False))
def test_a_mutated_solution_is_rejected(operands, seed, draw):
    example = generate(operands, 1, seed)[0]
    words = example.solution.replace("(", "( ").replace(")", " )").split()
    at = draw.randrange(len(words))
    kinds = {True: [str(n) for n in range(30)], False: [*"+-*/()="]}[words[at].isdigit()]
    changed = [*words[:at], draw.choice([k for k in kinds if k != words[at]]), *words[at + 1 :]]
    assert not grade(example, " ".join(changed)).steps


@given(TREES)
def test_what_is_written_is_read_again(tree):
    assert parse(write(tree)) == tree
    assert parse(write(tree).replace(" ", "")) == tree


@pytest.mark.parametrize(
    "text",
    [
        *("", "2 + ", "2 3", "(2 + 3", "-2", "2 x 3", "()", "2 + ٣", "2 + ²", "1_0", "2 ** 3"),
        *("2 // 3", "2 (3)", "2, 3", "2 + 3 # 4", "2 < 3", "0x1", "1.0", "(" * 5000),
        " + ".join("1" * 101),
    ],
)
def test_no_expression(text):
    with pytest.raises(ValueError, match="expression"):
        parse(text)


def test_a_rewrite_does_one_thing():
    tree = parse("\t(02 +3)*(4-1)/0")
    assert [write(step) for step in rewrites(tree)] == ["5 * (4 - 1) / 0", "(2 + 3) * 3 / 0"]
    for text, carry_out in (("15 / 0", solve), ("7 / 2", evaluate), ("3 - 4", evaluate)):
        with pytest.raises(ValueError, match=text):
            carry_out(parse(text))


def test_numbers_that_fit_a_value():
    # 6 * n, 42 - n and n / 7.
    assert fitting_numbers("*", 6, 1, False, RULES) == list(range(2, 21))
    assert fitting_numbers("-", 42, 1, False, RULES) == list(range(1, 21))
    assert fitting_numbers("/", 7, 0, False, RULES) == [14]
    assert fitting_numbers("/", 7, 0, True, RULES) == [7, 14]
    assert fitting_numbers("*", 100, 0, False, RULES) == [2]


def test_a_form_keeps_its_shape_and_gets_its_value():
    form = ("-", ("*", None, None), ("/", None, ("+", None, None)))
    draw = random.Random(0)
    filled = [pair for pair in (fill_form(form, RULES, draw) for _ in range(300)) if pair]
    assert len(filled) > 30
    for (operator, left, right), value in filled:
        assert (operator, left[0], right[0], right[2][0]) == ("-", "*", "/", "+")
        assert evaluate((operator, left, right)) == value
    assert not is_written(("+", None, ("-", None, None)))
    assert not is_written(("*", None, ("/", None, None)))
    assert is_written(("-", None, ("-", None, None)))
    assert is_written(("*", ("+", None, None), None))


def test_shapes_are_as_likely_as_each_other():
    assert [count_shapes(n) for n in range(1, 6)] == [1, 1, 2, 5, 14]

    def shape(form):
        return form and tuple(map(shape, form[1:]))

    draw = random.Random(0)
    forms = [shape(draw_form(4, draw)) for _ in range(5000)]
    counts = [forms.count(form) for form in set(forms)]
    assert len(counts) == 5 and all(count == pytest.approx(1000, abs=120) for count in counts)


def steps_of(tree):
    """Return every operation of a tree with its sides."""
    return [] if isinstance(tree, int) else [tree, *(s for x in tree[1:] for s in steps_of(x))]


@pytest.mark.parametrize(("trivial", "low", "high"), [(0.0, 0, 0), (0.1, 0, 0.15), (1.0, 0.3, 1)])
def test_operators_are_alike_and_trivial_steps_as_rare_as_asked(trivial, low, high):
    trees = [parse(e.prompt[:-2]) for e in generate(4, 400, 0, trivial=trivial)]
    with_trivial = [
        any(is_trivial(o, evaluate(x), evaluate(y)) for o, x, y in steps_of(tree)) for tree in trees
    ]
    assert low <= sum(with_trivial) / len(trees) <= high
    operators = [operator for tree in trees for operator, _, _ in steps_of(tree)]
    assert all(0.15 < operators.count(o) / len(operators) < 0.36 for o in "+-*/")


def unordered(text):
    """Return a text that all expressions share that differ in order alone."""

    def as_text(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        name, sides = type(node.op).__name__, [as_text(node.left), as_text(node.right)]
        return f"{name}({','.join(sorted(sides) if name in ('Add', 'Mult') else sides)})"

    return as_text(ast.parse(text.strip(), mode="eval").body)


def no_long_step_is_shared(drawn_by_split):
    """Assert that no expression of two operations or more of a solution is in two splits."""
    steps = []
    for examples in drawn_by_split:
        texts = {t for e in examples for t in (e.prompt[:-2], *e.solution.split(" = "))}
        steps.append({unordered(t) for t in texts if len(re.findall(r"[-+*/]", t)) > 1})
    assert all(steps) and sum(map(len, steps)) == len(set().union(*steps))


@pytest.mark.parametrize(
    ("operands", "count", "rules"),
    [
        # Of few numbers both ``2 * 3 + 4 * 5`` and its mirror would be drawn.
        ((4,), 500, {"operand_max": 5}),
        ((3,), 40, {"operand_max": 5, "value_max": 30, "trivial": 0.5}),
        pytest.param((3, 4, 5, 6), 1200, {}, marks=pytest.mark.slow),
    ],
)
def test_no_long_step_is_in_two_splits(operands, count, rules):
    no_long_step_is_shared(
        [
            [each for n in operands for each in generate(n, count, 0, split=split, **rules)]
            for split in SPLITS
        ]
    )


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("(7 + 5) / (6 + 4 * 3 - 2 * 7)", "12 / (18 - 14)"),
        ("(2 + 3 * 4) / 2", "(12 + 2) / 2"),
        ("9 - 4 - 2 * 2", "5 - 2 * 2"),
        ("3 * 2 + 5", "2 * 3 + 5"),
        ("(3 + 2) * 4 - 1", "5 * 4 - 1"),
        ("10 / 2 * 4 - 1", "5 * 4 - 1"),
        ("7", "7"),
    ],
)
def test_the_last_two_operations_decide(text, last):
    assert unordered(deciding_key(parse(text))) == unordered(last)
    assert deciding_key(parse(text)) == deciding_key(parse(last))


def test_of_an_expression_and_its_mirror_one_is_drawn():
    for sides in (("2 * 3", "8 / 4"), ("2 * 3", "9 - 1 - 2"), ("(2 + 3) * 4", "8 / 4")):
        trees = [parse(f"({a}) + ({b})") for a, b in (sides, sides[::-1])]
        first, second = map(choose_mirror, trees)
        assert first == second and first in trees and evaluate(first) == evaluate(trees[0])
    # Where one order needs no parentheses it is that.
    assert write(choose_mirror(parse("2 * 3 + (9 - 1)"))) == "9 - 1 + 2 * 3"
    for text in ("9 - 1 - 2 * 3", "4 + 2 * 3", "(2 + 3) / (4 - 3)", "5"):
        assert choose_mirror(parse(text)) == parse(text)
