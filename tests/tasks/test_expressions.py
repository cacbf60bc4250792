"""Expressions are read as they are written, and their last two operations decide their split."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermem_bench.tasks.expressions import (
    choose_mirror,
    deciding_key,
    evaluate,
    parse,
    rewrites,
    solve,
    sort_operands,
    write,
)

trees = st.recursive(
    st.integers(0, 999),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=8,
)


@given(trees, st.sampled_from(("needed", "all")))
def test_what_is_written_is_read_again(tree, parentheses):
    assert parse(write(tree, parentheses)) == tree
    assert parse(write(tree, parentheses).replace(" ", "")) == tree


def test_a_rewrite_does_one_thing():
    tree = parse("(2 + 3) * (4 - 1) / 0")
    assert [write(step) for step in rewrites(tree)] == ["5 * (4 - 1) / 0", "(2 + 3) * 3 / 0"]
    for text, carry_out in (("15 / 0", solve), ("7 / 2", evaluate), ("3 - 4", evaluate)):
        with pytest.raises(ValueError, match=text):
            carry_out(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "2 + ",
            "2 3",
            "(2 + 3",
            "2 + 3)",
            "-2",
            "+2",
            "2 x 3",
            "()",
            "2 + ٣",
            "2 + ²",
            "1_0",
        ),
        *(
            "2 ** 3",
            "2 // 3",
            "2 (3)",
            "2, 3",
            "2 + 3 # 4",
            "2 < 3",
            "0x1",
            "1.0",
            "1e3",
            "(" * 5000,
        ),
        *(" + ".join("1" * 101), "2 + 1" + "4" * 5000),
    ],
)
def test_no_expression(text):
    with pytest.raises(ValueError, match="expression"):
        parse(text)


def test_zeros_before_a_number_and_spaces_do_not_matter():
    assert parse("\t007+\n0 * (00)") == ("+", 7, ("*", 0, 0))


def unordered(text):
    """A text that all expressions share that differ in order alone, by Python's own parser."""

    def as_text(node):
        if isinstance(node, ast.Constant):
            return str(node.value)
        name, sides = type(node.op).__name__, [as_text(node.left), as_text(node.right)]
        return f"{name}({','.join(sorted(sides) if name in ('Add', 'Mult') else sides)})"

    return as_text(ast.parse(text.strip(), mode="eval").body)


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
