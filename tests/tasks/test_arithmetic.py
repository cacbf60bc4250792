"""Arithmetic: generated solutions are right, wrong ones are graded so, splits share no long step.

The splits are checked on texts, with code of its own.
"""

import ast
import functools
import hashlib
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layermem_bench.tasks.arithmetic import OPERANDS, describe, generate, grade, overlap
from layermem_bench.tasks.expressions import parse, solve, write
from layermem_bench.tasks.problems import Grade
from layermem_bench.tasks.registry import get_task

RIGHT = Grade(answer=True, steps=True)
SPLITS = ("train", "validation", "test")


@functools.cache
def drawn(operands, count, split="train", **options):
    """Return examples; tests share those that they draw alike."""
    return generate(operands, count, 0, split=split, **options)


def by_python(text):
    """The value of an expression by Python's own arithmetic, exactly."""
    spaced = text.replace("(", "( ").replace(")", " )").split()
    return eval(" ".join(f"Fraction({t})" if t.isdigit() else t for t in spaced))  # noqa: S307


@pytest.mark.parametrize(
    ("parentheses", "operands"),
    [
        *(("needed", n) for n in OPERANDS),
        *(("all", n) for n in (2, 5, 8)),
        ("none", 3),
        ("none", 6),
    ],
)
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
        assert max(int(number) for text in steps for number in re.findall(r"\d+", text)) <= 200
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


def test_a_seed_draws_the_same_examples():
    assert generate(4, 20, 7) == generate(4, 20, 7) != generate(4, 20, 8)
    # More of the same seed go on where fewer stopped.
    assert generate(4, 30, 7)[:20] == generate(4, 20, 7)


def test_the_distribution():
    found = describe(drawn(4, 1000, "train"))
    assert set(found["operators"]) == set("+-*/")
    assert all(0.15 < share < 0.35 for share in found["operators"].values())
    assert 0 < found["share with a trivial step"] < 0.15
    assert found["different answers"] > 150
    assert describe(generate(4, 300, 0, trivial=0.0))["share with a trivial step"] == 0
    assert describe(generate(4, 300, 0, trivial=1.0))["share with a trivial step"] > 0.3
    assert set(describe(generate(4, 50, 0, operators="+-"))["operators"]) == set("+-")
    with pytest.raises(ValueError, match="no examples"):
        describe([])


def test_the_tokenizer_has_one_token_for_each_number(tmp_path):
    from transformers import AutoTokenizer

    get_task("arithmetic").tokenizer(value_max=300).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "(300 - 7) * 12 / 3 = 293"
    ids = tokenizer(text)["input_ids"]
    assert " ".join(tokenizer.convert_ids_to_tokens(ids)) == "( 300 - 7 ) * 12 / 3 = 293"
    assert parse(tokenizer.decode(ids[:9])) == parse(text.partition("=")[0])
    assert tokenizer("301")["input_ids"] == [tokenizer.unk_token_id]
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"operands": 1}, "operands .* got 1"),
        ({"operands": 9}, "operands .* got 9"),
        ({"count": -1}, "count .* got -1"),
        ({"split": "dev"}, "split .* got 'dev'"),
        ({"operators": "+^"}, r"operators .* got '\+\^'"),
        ({"operators": ""}, "operators .* got ''"),
        ({"operand_max": 0}, "operand_max .* got 0 and 200"),
        ({"operand_max": 300}, "operand_max .* got 300 and 200"),
        ({"parentheses": "some"}, "parentheses .* got 'some'"),
        ({"held_out": "some"}, "held_out .* got 'some'"),
        ({"trivial": 2.0}, "trivial .* got 2.0"),
        ({"operators": "*", "operand_max": 1, "value_max": 1, "trivial": 0.0}, "only 0 of 5"),
        ({"operands": 2, "count": 10**6, "operand_max": 5}, r"only \d+ of 1000000"),
    ],
    ids=str,
)
def test_what_cannot_be(wrong, named):
    with pytest.raises(ValueError, match=named):
        generate(**{"operands": 4, "count": 5, "seed": 0, **wrong})


def test_any_text_is_graded():
    draw = random.Random(0)
    for _ in range(500):
        text = "".join(draw.choice("0123456789+-*/()= #x\n") for _ in range(draw.randrange(40)))
        assert grade("2 + 3 * 4 =", text).steps in (True, False)


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


def of_all_splits(drawn_by_split):
    """The long steps of each split's examples, none of which may be in another's."""
    steps = {split: long_steps(examples) for split, examples in drawn_by_split.items()}
    assert all(steps.values())
    assert sum(map(len, steps.values())) == len(set().union(*steps.values()))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("operands", [3, 5])
@pytest.mark.parametrize(
    "rules",
    [
        {"parentheses": "all"},
        {"parentheses": "none"},
        {"operators": "+*"},
        # Small numbers make few expressions of 3 operands.
        {"operand_max": 5, "value_max": 30, "trivial": 0.5},
    ],
    ids=str,
)
def test_no_long_step_is_in_two_splits(operands, rules):
    count = 40 if operands == 3 and len(rules) > 1 else 120
    of_all_splits(
        {
            split: [
                each
                for seed in range(2)
                for each in generate(operands, count, seed, split=split, **rules)
            ]
            for split in SPLITS
        }
    )


@pytest.mark.slow
def test_no_long_step_is_in_two_splits_of_any_operands():
    counts = {"train": 2500, "validation": 250, "test": 250}
    of_all_splits(
        {
            split: [each for operands in (3, 4, 5, 6) for each in drawn(operands, count, split)]
            for split, count in counts.items()
        }
    )
    learnt, tests = drawn(4, counts["train"], "train"), drawn(4, counts["test"], "test")
    assert set(overlap(tests, learnt).values()) == {0.0}


def test_nor_is_that_of_a_mirror():
    """Of few numbers both ``2 * 3 + 4 * 5`` and its mirror would be drawn."""
    rules = {"operators": "+*", "operand_max": 5}
    of_all_splits({split: generate(4, 800, 0, split=split, **rules) for split in SPLITS})


def test_nor_are_expressions_of_two_operands():
    found = [
        {unordered(e.prompt[:-2]) for e in generate(2, 40, seed, split=split)}
        for split in SPLITS
        for seed in range(2)
    ]
    by_split = [found[0] | found[1], found[2] | found[3], found[4] | found[5]]
    assert sum(map(len, by_split)) == len(set().union(*by_split))


def test_the_draw_where_texts_decide_is_as_it_was():
    texts = [
        f"{e.prompt} {e.solution}"
        for operands in (3, 4, 6)
        for split in SPLITS
        for e in generate(operands, 200, 1, split=split, held_out="expression")
    ]
    assert hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] == "f5306cb7185ff344"


def test_the_overlap_where_texts_decide_is_counted():
    learnt = drawn(4, 2000, held_out="expression")
    tests = drawn(4, 300, "test", held_out="expression")
    whole = {text for e in learnt for text in (e.prompt[:-2], *e.solution.split(" = "))}
    firsts = {unordered(e.prompt[:-2]) for e in learnt}
    steps = long_steps(learnt)
    expected = [
        sum(whole >= set(e.solution.split(" = ")) for e in tests),
        sum(unordered(e.prompt[:-2]) in firsts for e in tests),
        sum(bool(long_steps([e]) & steps) for e in tests),
    ]
    assert list(overlap(tests, learnt).values()) == [count / len(tests) for count in expected]
    assert all(0 < count < len(tests) for count in expected)
    for nothing in (([], learnt), (tests, [])):
        with pytest.raises(ValueError, match="problems to compare"):
            overlap(*nothing)


@pytest.mark.slow
@pytest.mark.parametrize(("operands", "count"), [(4, 1000), (5, 1000)])
def test_the_draws_and_the_splits_are_alike(operands, count):
    before = describe(drawn(operands, count, held_out="expression"))
    for split in SPLITS:
        now = describe(drawn(operands, count, split))
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
