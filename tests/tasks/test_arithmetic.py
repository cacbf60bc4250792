"""Arithmetic: generated solutions are right, wrong ones are graded so, splits are disjoint."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermem.tasks.arithmetic import OPERANDS, describe, generate, grade
from layermem.tasks.arithmetic_drawing import PARENTHESES
from layermem.tasks.expressions import evaluate, parse, rewrites, solve, write
from layermem.tasks.problems import Grade
from layermem.tasks.registry import get_task

RIGHT = Grade(answer=True, steps=True)
trees = st.recursive(
    st.integers(0, 999),
    lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner),
    max_leaves=8,
)


def by_python(text):
    """The value of an expression by Python's own arithmetic, exactly."""
    spaced = text.replace("(", "( ").replace(")", " )").split()
    return eval(" ".join(f"Fraction({t})" if t.isdigit() else t for t in spaced))  # noqa: S307


@given(trees, st.sampled_from(("needed", "all")))
def test_what_is_written_is_read_again(tree, parentheses):
    assert parse(write(tree, parentheses)) == tree
    assert parse(write(tree, parentheses).replace(" ", "")) == tree


@pytest.mark.parametrize("operands", OPERANDS)
@pytest.mark.parametrize("parentheses", PARENTHESES)
def test_every_step_has_the_value_of_the_answer(operands, parentheses):
    examples = generate(operands, 30, 3, parentheses=parentheses, split="test")
    assert len({e.prompt for e in examples}) == 30
    for example in examples:
        assert example.operands == operands
        expression, end = example.prompt[:-2], example.prompt[-2:]
        steps = example.solution.split(" = ")
        assert end == " =" and len(steps) == operands - 1
        assert {by_python(text) for text in (expression, *steps)} == {Fraction(example.answer)}
        assert steps[-1] == str(example.answer)
        numbers = [
            int(n)
            for text in steps
            for n in text.replace("(", " ").replace(")", " ").split()
            if n.isdigit()
        ]
        assert max(numbers) <= 200
        assert grade(example.prompt, example.solution) == RIGHT
        if parentheses == "none":
            assert "(" not in example.prompt
        if parentheses == "needed":
            assert not idle_parentheses(expression)


def idle_parentheses(text):
    """Whether some pair can go without changing the value."""
    for start, sign in enumerate(text):
        if sign == "(":
            depth, at = 1, start
            while depth:
                at += 1
                depth += {"(": 1, ")": -1}.get(text[at], 0)
            without = text[:start] + text[start + 1 : at] + text[at + 1 :]
            left, right = text[:start].rstrip()[-1:], text[at + 1 :].lstrip()[:1]
            inner = parse(text[start + 1 : at])[0]
            # Chance may leave the value as it is; what precedence says does not depend on chance.
            looser = inner in "+-" and ("*" in left + right or "/" in left + right)
            guarded = looser or (left == "-" and inner in "+-") or (left == "/" and inner in "*/")
            if not guarded and by_python(without) == by_python(text):
                return True
    return False


def test_the_papers_example():
    prompt = "(7 + 5) / (6 + 4 * 3 - 2 * 7) ="
    solution = (
        "12 / (6 + 4 * 3 - 2 * 7) = 12 / (6 + 12 - 2 * 7) = 12 / (18 - 2 * 7) = 12 / (18 - 14) "
        "= 12 / 4 = 3"
    )
    steps = solve(parse(prompt[:-1]))
    assert " = ".join(map(write, steps)) == solution
    assert grade(prompt, solution) == RIGHT
    # Another order is as valid.
    other = (
        "(7 + 5) / (6 + 4 * 3 - 14) = (7 + 5) / (6 + 12 - 14) = (7 + 5) / (18 - 14) "
        "= 12 / (18 - 14) = 12 / 4 = 3"
    )
    assert grade(prompt, other) == RIGHT


@pytest.mark.parametrize(
    ("text", "answer", "fault", "at"),
    [
        ("", False, "unreadable", 1),
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
        ("2 + 12 = 14 <unknown>", False, "unreadable", 2),
        ("2 + 12 = 1" + "4" * 5000, False, "unreadable", 2),
        ("(" * 5000, False, "unreadable", 1),
        ("2 + 12 = ²", False, "unreadable", 2),
        # Digits that int() reads, too: of other scripts, and wide ones.
        ("2 + 12 = ١٤", False, "unreadable", 2),
        ("٢ + 12 = 14", True, "unreadable", 1),
        ("2 + １２ = 14", True, "unreadable", 1),
        ("2 + 1２ = 14", True, "unreadable", 1),
    ],
)
def test_attempts(text, answer, fault, at):
    expected = Grade(answer=answer, steps=not fault, fault=fault, at=at)
    assert grade("2 + 3 * 4 =", text) == expected


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(0, 50), st.randoms(use_true_random=False))
def test_a_mutated_solution_is_rejected(operands, seed, draw):
    example = generate(operands, 1, seed)[0]
    words = example.solution.replace("(", "( ").replace(")", " )").split()
    at = draw.randrange(len(words))
    kinds = {True: [str(n) for n in range(30)], False: [*"+-*/()="]}[words[at].isdigit()]
    changed = [*words[:at], draw.choice([k for k in kinds if k != words[at]]), *words[at + 1 :]]
    assert not grade(example.prompt, " ".join(changed)).steps
    assert not grade(example.prompt, " ".join(words[:-1])).steps


def test_a_rewrite_does_one_thing():
    tree = parse("(2 + 3) * (4 - 1) / 0")
    assert [write(step) for step in rewrites(tree)] == ["5 * (4 - 1) / 0", "(2 + 3) * 3 / 0"]
    with pytest.raises(ValueError, match="15 / 0 cannot be carried out exactly"):
        solve(parse("15 / 0"))
    with pytest.raises(ValueError, match="7 / 2 is not an exact integer"):
        evaluate(parse("7 / 2"))


def test_splits_do_not_meet_whatever_the_seeds():
    found = {
        split: {e.prompt for seed in range(3) for e in generate(3, 400, seed, split=split)}
        for split in ("train", "validation", "test")
    }
    assert not found["train"] & found["test"] and not found["train"] & found["validation"]
    assert not found["test"] & found["validation"]
    assert generate(4, 20, 7) == generate(4, 20, 7) != generate(4, 20, 8)
    # More of the same seed go on where fewer stopped.
    assert generate(4, 30, 7)[:20] == generate(4, 20, 7)


def test_the_distribution():
    found = describe(generate(4, 3000, 0))
    assert set(found["operators"]) == set("+-*/")
    assert all(0.15 < share < 0.35 for share in found["operators"].values())
    assert 0 < found["share with a trivial step"] < 0.15
    none = describe(generate(4, 1000, 0, trivial=0.0))
    assert none["share with a trivial step"] == 0
    assert found["different answers"] > 150
    often = describe(generate(4, 1000, 0, trivial=1.0))
    assert often["share with a trivial step"] > 0.3
    assert set(describe(generate(4, 50, 0, operators="+-"))["operators"]) == set("+-")
    with pytest.raises(ValueError, match="no examples"):
        describe([])


def test_the_tokenizer_has_one_token_for_each_number(tmp_path):
    from transformers import AutoTokenizer

    get_task("arithmetic").tokenizer(value_max=300).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "(300 - 7) * 12 / 3 = 293"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        "(",
        "300",
        "-",
        "7",
        ")",
        "*",
        "12",
        "/",
        "3",
        "=",
        "293",
    ]
    assert parse(tokenizer.decode(ids[:9])) == parse(text.partition("=")[0])
    assert tokenizer("301")["input_ids"] == [tokenizer.unk_token_id]
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"operands": 1}, "operands must be 2 to 8, got 1"),
        ({"operands": 9}, "operands must be 2 to 8, got 9"),
        ({"count": -1}, "count must be at least 0, got -1"),
        ({"split": "dev"}, "split must be one of test, validation, train, got 'dev'"),
        ({"operators": "+^"}, r"operators must be some of \+-\*/, got '\+\^'"),
        ({"operators": ""}, "operators must be some of"),
        ({"operand_max": 0}, "operand_max must be at least 1 and at most value_max, got 0 and 200"),
        ({"operand_max": 300}, "got 300 and 200"),
        ({"parentheses": "some"}, "parentheses must be one of needed, all, none, got 'some'"),
        ({"trivial": 2.0}, "trivial must be from 0 to 1, got 2.0"),
        (
            {"operators": "*", "operand_max": 1, "value_max": 1, "trivial": 0.0},
            "only 0 of 5 expressions were found with 4 operands up to 1, .*; widen the range",
        ),
        (
            {"operands": 2, "count": 10**6, "operand_max": 5},
            "expressions were found .* ask for fewer",
        ),
    ],
)
def test_what_cannot_be(wrong, message):
    asked = {"operands": 4, "count": 5, "seed": 0, **wrong}
    with pytest.raises(ValueError, match=message):
        generate(**asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1 to 200 numbers, operators and parentheses, got 0"),
        ("2 + ", "lacks a number before end"),
        ("2 3", "lacks an operator before 3"),
        ("(2 + 3", "leaves a parenthesis open"),
        ("2 + 3)", "closes a parenthesis"),
        ("-2", "lacks a number before -"),
        ("2 x 3", "holds 'x'"),
        ("()", r"lacks a number before \)"),
        ("2 + ٣", "holds '٣'"),
    ],
)
def test_no_expression(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_any_text_is_graded():
    draw = random.Random(0)
    for _ in range(500):
        text = "".join(draw.choice("0123456789+-*/()= #x\n") for _ in range(draw.randrange(40)))
        assert grade("2 + 3 * 4 =", text).steps in (True, False)
