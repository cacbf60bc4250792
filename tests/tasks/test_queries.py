"""Recall and chains: an oracle that reads the sequence answers every query; distances and order."""

from collections import Counter

import pytest

from layermem_bench.tasks import chains, mqar
from layermem_bench.tasks.chains import read_statements, solve
from layermem_bench.tasks.registry import get_task


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocabulary": 256, "pairs": 8, "length": 64},
        {"vocabulary": 32, "pairs": 4, "length": 16},
        {"vocabulary": 8192, "pairs": 64, "length": 512},
    ],
    ids=lambda sizes: f"{sizes['length']} words",
)
def test_recall_is_answered_by_lookup(sizes):
    pairs, length = sizes["pairs"], sizes["length"]
    for problem in mqar.generate(count=20, seed=0, **sizes):
        words = problem.prompt.split()
        opening = dict(zip(words[: 2 * pairs : 2], words[1 : 2 * pairs : 2], strict=True))
        assert [opening[words[query]] for query in problem.queries] == problem.answers
        assert len(words) == length and len(opening) == len({*opening.values()}) == pairs
        # Every key is asked for once, at an even distance, with a word after it.
        assert sorted(words[query] for query in problem.queries) == sorted(opening)
        assert list(problem.queries) == sorted(set(problem.queries))
        for query, level in zip(problem.queries, problem.levels, strict=True):
            distance = query - words.index(words[query])
            assert distance % 2 == 0 and level // 2 < distance <= level
            assert query + 1 < length
        assert {words[i] for i in range(2 * pairs, length) if i not in problem.queries} <= {"_"}


def test_distances_follow_the_power_law():
    """Of the first key drawn, that is of one query alone, where pairs is 1."""
    problems = mqar.generate(count=1500, seed=0, pairs=1, length=22, vocabulary=8192)
    gaps = Counter((problem.queries[0] - 2) // 2 for problem in problems)
    weights = [distance**-0.9 for distance in range(1, 11)]
    for gap, weight in enumerate(weights):
        expected = weight / sum(weights)
        # Four standard deviations.
        assert abs(gaps[gap] / 1500 - expected) < 4 * (expected * (1 - expected) / 1500) ** 0.5


def test_neither_place_nor_distance_tells_what_is_recalled():
    problems = mqar.generate(count=700, seed=0)
    copied, at_place = Counter(), Counter()
    for problem in problems:
        words = problem.prompt.split()
        values = words[1:16:2]
        for number, (query, answer) in enumerate(
            zip(problem.queries, problem.answers, strict=True)
        ):
            copied[query - words.index(answer)] += 1
            at_place["in order"] += values[number] == answer
            at_place["in the opposite order"] += values[-1 - number] == answer
            at_place["nearest"] += values[-1] == answer
    answers = 8 * len(problems)
    assert max(copied.values()) / answers < 0.125
    # Four standard deviations of 5,600 guesses among 8 values.
    assert all(abs(right / answers - 1 / 8) < 0.018 for right in at_place.values())


def test_wrong_answers_are_told_apart():
    problem = mqar.generate(count=1, seed=0, pairs=4, length=16)[0]
    values = problem.answers
    foreign = next(f"v{i}" for i in range(9) if f"v{i}" not in values)
    right, wrong = (True,) * 4, (True, True, False, True)
    cases = [
        ([*values[:2], foreign, values[3]], "foreign", 3, wrong),
        ([*values[:2], values[3], values[3]], "other", 3, wrong),
        (values[:2], "missing", 3, (True, True, False, False)),
        ([*values, foreign], "foreign", 5, right),
        ([], "missing", 1, (False,) * 4),
    ]
    for given, fault, at, expected in cases:
        grade = get_task("mqar").grade(problem, " ".join(given))
        assert (grade.fault, grade.at, grade.right) == (fault, at, expected)


def read_causally(problem):
    """Return name to answer and level, read as a causal model would: from first to last."""
    told = problem.prompt.split(" ? ")[0].strip(" ;").split(" ; ")
    definitions = {text.split(" = ")[0]: text.split(" = ")[1].split() for text in told}
    known = {}
    while len(known) < len(definitions):
        for name, (*sign, base) in definitions.items():
            if base in definitions and base not in known:
                continue
            before, level = known.get(base, ("+" if sign else base, 0))
            flipped = {"+": "-", "-": "+"}
            known[name] = (flipped[before] if sign == ["-"] else before), level + 1
    return known


@pytest.mark.parametrize("names", ["random", "places"])
@pytest.mark.parametrize(
    ("values", "order", "ask"),
    [
        (None, "shuffled", "end"),
        (None, "levels", "statements"),
        (9, "levels", "end"),
        (9, "levels", "statements"),
    ],
)
def test_chains_are_answered_by_substitution(values, order, ask, names):
    sizes = {"depth": 4, "chains": 3, "values": values, "order": order, "names": names}
    for problem in chains.generate(count=60, seed=0, ask=ask, **sizes):
        words, known = problem.prompt.split(), read_causally(problem)
        ends = [number for number, word in enumerate(words) if word == ";"]
        begins = [0, *(end + 1 for end in ends[:-1])]
        places = problem.queries if ask == "end" else begins
        asked = [words[place] for place in places]
        assert sorted(asked) == sorted(known) and len(known) == 12
        found = zip(problem.answers, problem.levels, strict=True)
        assert list(found) == [known[name] for name in asked]
        assert solve(read_statements(problem)) == known
        if ask == "statements":
            assert list(problem.queries) == ends
        if names == "places":
            assert [words[begin] for begin in begins] == list("abcdefghijkl")
        if values:
            assert len({*problem.answers}) == 3 and {*problem.answers} <= {*"012345678"}


@pytest.mark.parametrize("order", ["shuffled", "levels"])
def test_statements_stand_in_the_order_that_is_asked_for(order):
    drawn, in_levels, chained = chains.generate(count=100, seed=0, depth=3, order=order), 0, set()
    for problem in drawn:
        told, levels = read_statements(problem), solve(read_statements(problem))
        names = [name for name, _, _ in told]
        in_levels += [levels[name][1] for name in names] == [1, 1, 2, 2, 3, 3]
        # Which chain comes first is drawn at each level.
        chained.add(tuple(names.index(base) for _, _, base in told[2:] if base in names))
    assert in_levels == 100 and len(chained) == 4 if order == "levels" else in_levels < 20


def test_no_short_way_answers_deep_levels():
    """The sign of the variable's own statement, and the product of all, are a guess of level 3."""
    right, problems = Counter(), chains.generate(count=800, seed=0)
    for problem in problems:
        told = {name: sign for name, sign, _ in read_statements(problem)}
        product = "-" if [*told.values()].count("-") % 2 else "+"
        for query, answer, level in zip(
            problem.queries, problem.answers, problem.levels, strict=True
        ):
            right["own", level] += told[problem.prompt.split()[query]] == answer
            right["all", level] += product == answer
            right["+", level] += answer == "+"
    count = 2 * len(problems)
    assert right["own", 1] == count
    assert all(
        abs(n / count - 0.5) < 0.06
        for (way, level), n in right.items()
        if (way, level) != ("own", 1)
    )
