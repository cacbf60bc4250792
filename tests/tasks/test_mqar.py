"""MQAR: an oracle answers every query, shortcuts do not, splits share no pairs."""

from collections import Counter

import pytest

from layermem_bench.tasks import mqar
from layermem_bench.tasks.mqar import SHORTCUTS, generate, grade
from layermem_bench.tasks.problems import Grade

SPLITS = ("train", "validation", "test")


def answers_by_lookup(problem, pairs):
    """Read the pairs and look up the word at each query."""
    words = problem.prompt.split()
    opening = dict(zip(words[: 2 * pairs : 2], words[1 : 2 * pairs : 2], strict=True))
    return " ".join(opening[words[query]] for query in problem.queries)


@pytest.mark.parametrize("filler", ["blank", "random"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"vocabulary": 256, "pairs": 8, "length": 64},
        {"vocabulary": 32, "pairs": 4, "length": 16},
        {"vocabulary": 8192, "pairs": 64, "length": 512},
    ],
    ids=lambda sizes: f"{sizes['length']} words",
)
def test_an_oracle_answers_every_query(sizes, filler):
    pairs, length = sizes["pairs"], sizes["length"]
    for problem in generate(count=20, seed=0, filler=filler, **sizes):
        assert answers_by_lookup(problem, pairs) == problem.solution
        assert grade(problem, problem.solution) == Grade(
            answer=True, steps=True, right=(True,) * pairs
        )
        words = problem.prompt.split()
        assert len(words) == length
        keys, values = words[: 2 * pairs : 2], words[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert {key[0] for key in keys} == {"k"} and {value[0] for value in values} == {"v"}
        # Every key is asked for once, at an even distance, with a word after it.
        assert sorted(words[query] for query in problem.queries) == sorted(keys)
        assert list(problem.queries) == sorted(set(problem.queries))
        for query, level in zip(problem.queries, problem.levels, strict=True):
            distance = query - words.index(words[query])
            assert distance % 2 == 0 and level // 2 < distance <= level
            assert query + 1 < length
        others = [words[i] for i in range(2 * pairs, length) if i not in problem.queries]
        assert (set(others) <= {"_"}) == (filler == "blank")


def test_what_follows_a_query_does_not_tell_its_answer():
    """Random words are the answer no more often than any other word of the vocabulary."""
    problems = generate(count=500, seed=0, filler="random")
    told = [
        problem.prompt.split()[query + 1] == answer
        for problem in problems
        for query, answer in zip(problem.queries, problem.answers, strict=True)
    ]
    # 16 of 4,000 are expected; this is three standard deviations more.
    assert sum(told) <= 28


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_distances_follow_the_power_law(alpha):
    """Of the first key drawn, that is of one query alone, where pairs is 1."""
    problems = generate(count=2000, seed=0, pairs=1, length=22, vocabulary=8192, alpha=alpha)
    gaps = Counter((problem.queries[0] - 2) // 2 for problem in problems)
    weights = [distance ** (alpha - 1) for distance in range(1, 11)]
    for gap, weight in enumerate(weights):
        expected = weight / sum(weights)
        # Four standard deviations.
        assert abs(gaps[gap] / 2000 - expected) < 4 * (expected * (1 - expected) / 2000) ** 0.5


@pytest.mark.parametrize("filler", ["blank", "random"])
def test_no_shortcut_is_worth_taking(filler):
    problems = generate(count=700, seed=0, filler=filler)
    shares = mqar.describe(problems)["right answers by shortcut"]
    assert shares.keys() == SHORTCUTS.keys()
    # Four standard deviations of 5,600 guesses among 8 values.
    assert all(abs(share - 1 / 8) < 0.018 for share in shares.values()), shares
    assert mqar.chance(problems) == 1 / 8


def test_no_distance_points_at_the_answer():
    """The best of all rules that copy the word a fixed number of words before the query."""
    problems = generate(count=700, seed=0)
    copied = Counter()
    for problem in problems:
        words = problem.prompt.split()
        for query, answer in zip(problem.queries, problem.answers, strict=True):
            copied[query - words.index(answer)] += 1
    assert max(copied.values()) / (8 * len(problems)) < 0.125


def pairs_of(problems):
    return {
        frozenset(zip(words[:8:2], words[1:8:2], strict=True))
        for words in (problem.prompt.split() for problem in problems)
    }


def test_splits_do_not_meet_whatever_the_seeds():
    sizes = {"pairs": 4, "vocabulary": 10, "length": 18}
    drawn = {
        split: [
            problem
            for seed, filler in ((0, "blank"), (1, "random"))
            for problem in generate(split=split, count=300, seed=seed, filler=filler, **sizes)
        ]
        for split in SPLITS
    }
    found = {split: pairs_of(problems) for split, problems in drawn.items()}
    assert not found["train"] & found["test"]
    assert not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]
    # There are few sets of pairs: without the rule they would meet.
    assert len(found["test"]) < 300
    ((_, share),) = mqar.overlap(drawn["test"], drawn["train"]).items()
    assert share == 0
    half = [*drawn["test"][:100], *drawn["train"][:100]]
    assert mqar.overlap(half, drawn["train"]) == {"the pairs of a training problem": 0.5}
    for nothing in (([], half), (half, [])):
        with pytest.raises(ValueError, match="problems.*to compare"):
            mqar.overlap(*nothing)


def test_a_seed_draws_the_same_problems():
    first, again, other = (generate(count=20, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len({problem.prompt for problem in first}) == 20
    assert generate(count=0, seed=0) == []


def test_wrong_answers_are_told_apart():
    problem = generate(count=1, seed=0, pairs=4, length=16)[0]
    values = problem.answers
    foreign = next(f"v{i}" for i in range(9) if f"v{i}" not in values)
    right, wrong = (True,) * 4, (True, True, False, True)
    cases = [
        (values, "", 0, right),
        ([*values[:2], foreign, values[3]], "foreign", 3, wrong),
        ([*values[:2], values[3], values[3]], "other", 3, wrong),
        (values[:2], "missing", 3, (True, True, False, False)),
        ([*values, foreign], "foreign", 5, right),
        ([], "missing", 1, (False,) * 4),
    ]
    for given, fault, at, expected in cases:
        grade_ = grade(problem, " ".join(given))
        assert (grade_.fault, grade_.at, grade_.right) == (fault, at, expected)
        assert grade_.answer == grade_.steps == (not fault)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": "tests"}, "split .* got 'tests'"),
        ({"count": -1}, "count .* got -1"),
        ({"pairs": 0}, "pairs .* got 0"),
        ({"vocabulary": 255}, "vocabulary .* got 255"),
        ({"vocabulary": 14}, "vocabulary .* got 14"),
        ({"length": 30}, "length .* got 30"),
        ({"length": 65}, "length .* got 65"),
        ({"alpha": 1.5}, "alpha .* got 1.5"),
        ({"alpha": float("nan")}, "alpha .* got nan"),
        ({"filler": "zero"}, "filler .* got 'zero'"),
        ({"vocabulary": 2, "pairs": 1, "length": 4, "count": 9}, "only . of 9 problems"),
    ],
)
def test_what_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"count": 1, "seed": 0, **wrong})
