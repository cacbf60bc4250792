"""Chains: an oracle knows every sign and value, splits share no statements."""

import pytest

from layermem_bench.tasks import chains
from layermem_bench.tasks.chains import asked_variables, generate, grade, read_statements, solve
from layermem_bench.tasks.problems import Grade

SPLITS = ("train", "validation", "test")


def values_by_substitution(prompt):
    """Substitute until every variable is a number, with Python's own arithmetic."""
    told = {}
    for text in prompt.split(" ? ")[0].strip(" ;").split(" ; "):
        name, _, expression = text.partition(" = ")
        told[name] = expression.replace(" ", "")
    values = {}
    while len(values) < len(told):
        for name, expression in told.items():
            base = expression[1:]
            if base == "1" or base in values:
                values[name] = int(expression[0] + "1") * values.get(base, 1)
    return values


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"depth": 12, "chains": 1},
        {"depth": 4, "chains": 3, "order": "chain"},
        {"depth": 1, "chains": 5},
    ],
    ids=str,
)
def test_an_oracle_answers_every_query(sizes):
    depth, count = sizes.get("depth", 6), sizes.get("chains", 2)
    # Chains of one statement have few sets of statements.
    for problem in generate(count=100, seed=0, **sizes):
        values = values_by_substitution(problem.prompt)
        words = problem.prompt.split()
        expected = ["+" if values[words[query]] > 0 else "-" for query in problem.queries]
        assert expected == problem.answers
        right = (True,) * (depth * count)
        assert grade(problem, problem.solution) == Grade(answer=True, steps=True, right=right)
        assert sorted(words[query] for query in problem.queries) == sorted(values)
        assert sorted(problem.levels) == sorted([*range(1, depth + 1)] * count)
        assert all(words[q - 1] == "?" and words[q + 1] == "_" for q in problem.queries)
        solved = solve(read_statements(problem))
        for query, answer, level in zip(
            problem.queries, problem.answers, problem.levels, strict=True
        ):
            assert solved[words[query]] == (answer, level)


def test_an_oracle_knows_every_value_that_is_handed_on():
    for problem in generate(count=100, seed=0, depth=4, chains=3, values=9):
        told = dict(text.split(" = ") for text in problem.prompt.split(" ; ")[:-1])
        words = problem.prompt.split()
        assert len(told) == len(problem.queries) == 12
        for query, answer, level in zip(
            problem.queries, problem.answers, problem.levels, strict=True
        ):
            name, steps = words[query], 0
            while name in told:
                name, steps = told[name], steps + 1
            assert (name, steps) == (answer, level)
            assert words[query - 1] == "?" and words[query + 1] == "_"
        begun_with = set(told.values()) - set(told)
        assert set(problem.answers) == begun_with
        assert len(begun_with) == 3
        assert begun_with <= set(map(str, range(9)))


@pytest.mark.parametrize("names", ["random", "places"])
@pytest.mark.parametrize(
    ("values", "order"),
    [
        (None, "levels"),
        (None, "interleaved"),
        (None, "chain"),
        (9, "levels"),
        (9, "interleaved"),
    ],
)
def test_statements_are_asked_for_where_they_end(values, order, names):
    sizes = {"depth": 4, "chains": 3, "values": values, "order": order, "names": names}
    for problem in generate(count=100, seed=0, ask="statements", **sizes):
        words, known, expected = problem.prompt.split(), {}, []
        # Read as a causal model does: nothing after a statement is known at its end.
        for at, word in enumerate(words):
            if word != ";":
                continue
            *_, name, equals, told = " ".join(words[:at]).rpartition(" ; ")[2].partition(" = ")
            assert equals
            sign, base = told.split() if values is None else ("", told)
            value, level = known.get(base, ("+" if values is None else base, 0))
            flipped = {"+": "-", "-": "+"}
            known[name] = (flipped[value] if sign == "-" else value, level + 1)
            expected.append((at, *known[name]))
        found = zip(problem.queries, problem.answers, problem.levels, strict=True)
        assert list(found) == expected
        assert asked_variables(problem) == list(known)
        assert "?" not in words and "_" not in words
        assert len(known) == 12


def test_the_same_statements_are_drawn_whatever_is_asked():
    sizes = {"count": 30, "seed": 1, "order": "levels", "values": 9, "depth": 3, "chains": 3}
    # Queries at the end draw their order: the first problem is the same.
    first, dense = (generate(ask=ask, **sizes)[0] for ask in ("end", "statements"))
    assert read_statements(first) == read_statements(dense)
    assert dict(zip(asked_variables(first), first.answers, strict=True)) == dict(
        zip(asked_variables(dense), dense.answers, strict=True)
    )


@pytest.mark.parametrize("ask", ["end", "statements"])
def test_blanks_stand_before_statements_and_nowhere_else(ask):
    sizes = {"count": 200, "seed": 0, "order": "levels", "values": 9, "depth": 2, "chains": 3}
    firsts = set()
    for problem in generate(ask=ask, blanks=6, **sizes):
        words = problem.prompt.split()
        told = words[: words.index("?")] if ask == "end" else words
        assert told.count("_") == 6 and len(told) == 6 + 6 * 4
        assert all(words[at - 1] in "_;" for at in range(1, len(told)) if words[at] == "_")
        firsts.add(words.index("="))
        # Without them it is a problem, with the same answers.
        solved = solve(read_statements(problem))
        found = zip(asked_variables(problem), problem.answers, problem.levels, strict=True)
        assert [(answer, level) for _, answer, level in found] == [
            solved[name] for name in asked_variables(problem)
        ]
        kinds = {words[query] == ";" for query in problem.queries}
        assert kinds == {ask == "statements"}
    assert firsts >= {1, 2, 3}
    # None draws nothing, so that problems are what they were.
    assert generate(ask=ask, blanks=0, **sizes) == generate(ask=ask, **sizes)


def test_only_the_learned_statements_are_asked_for_in_training():
    for split in SPLITS:
        sizes = {"order": "levels", "learned": 2, "ask": "statements"}
        for problem in generate(split=split, count=20, seed=0, **sizes):
            assert set(problem.levels) == set(range(1, 3 if split == "train" else 7))
            assert len(read_statements(problem)) == 12
            assert len(problem.queries) == (4 if split == "train" else 12)


def test_variables_are_the_first_letters():
    sizes = {"depth": 3, "chains": 2, "count": 50, "seed": 0}
    for problem in generate(variables=6, **sizes):
        assert {name for name, _, _ in read_statements(problem)} == set("abcdef")
    assert len({name for p in generate(**sizes) for name, _, _ in read_statements(p)}) == 26


@pytest.mark.parametrize(
    ("order", "values"),
    [
        *(("shuffled", None), ("levels", None), ("interleaved", None), ("chain", None)),
        *(("shuffled", 9), ("levels", 9), ("interleaved", 9)),
    ],
)
def test_variables_are_called_by_the_places_of_their_statements(order, values):
    """Else all is as with random names: the order and the levels."""
    sizes = {"depth": 3, "chains": 2, "count": 50, "order": order, "values": values}
    found = generate(names="places", seed=0, **sizes)
    for problem in found:
        statements = read_statements(problem)
        assert "".join(name for name, _, _ in statements) == "abcdef"
        assert sorted(level for _, level in solve(statements).values()) == [1, 1, 2, 2, 3, 3]
        assert order == "shuffled" or in_order(problem)


def test_values_are_words_of_the_tokenizer():
    problems = generate(count=20, seed=0, depth=3, chains=4, values=12)
    words = chains.word_tokenizer(values=12)
    for problem in problems:
        ids = words.encode(f"{problem.prompt} {problem.solution}").ids
        assert words.token_to_id("<unknown>") not in ids
    # Those of signs are what they were, so that trained models go on reading them.
    assert chains.word_tokenizer().get_vocab_size() == 36


def test_a_guess_among_signs_or_values():
    assert chains.chance(generate(count=20, seed=0)) == 0.5
    assert chains.chance(generate(count=20, seed=0, depth=3, chains=4, values=9)) == 0.25


def in_order(problem):
    """Return whether every variable stands after what it is defined by."""
    names = [name for name, _, _ in read_statements(problem)]
    return all(
        base not in names or names.index(base) < names.index(name)
        for name, _, base in read_statements(problem)
    )


def one_after_the_other(problem):
    """Return whether no chain is begun before another ends, where each is in order."""
    names = {name for name, _, _ in read_statements(problem)}
    begun = [base not in names for _, _, base in read_statements(problem)]
    return [place for place, first in enumerate(begun) if first] == [0, 6]


def test_statements_are_shuffled_or_in_the_order_of_the_chain():
    whole, mixed = (generate(count=200, seed=0, order=o) for o in ("chain", "interleaved"))
    assert all(map(in_order, whole)) and all(map(one_after_the_other, whole))
    assert all(map(in_order, mixed))
    # Two of the 924 ways to mix two chains of 6 leave each whole.
    assert sum(map(one_after_the_other, mixed)) < 5
    # One of 720 * 720 orders is.
    assert not any(map(in_order, generate(count=200, seed=0)))


@pytest.mark.parametrize("values", [None, 5], ids=["signs", "values"])
def test_statements_stand_level_by_level(values):
    chained = set()
    for problem in generate(count=200, seed=0, depth=3, order="levels", values=values):
        levels = solve(read_statements(problem))
        names = [name for name, _, _ in read_statements(problem)]
        assert [levels[name][1] for name in names] == [1, 1, 2, 2, 3, 3]
        assert in_order(problem)
        bases = [base for _, _, base in read_statements(problem)]
        # Which chain comes first is drawn at each level.
        chained.add(tuple(names.index(base) for base in bases[2:]))
    assert chained == {(0, 1, 2, 3), (0, 1, 3, 2), (1, 0, 2, 3), (1, 0, 3, 2)}


def test_only_the_learned_levels_are_asked_for_in_training():
    for split in SPLITS:
        for problem in generate(split=split, count=20, seed=0, learned=2):
            assert set(problem.levels) == set(range(1, 3 if split == "train" else 7))
            assert len(read_statements(problem)) == 12


def test_signs_are_fair():
    for split in SPLITS:
        found = chains.describe(generate(split=split, count=500, seed=0))
        # Levels of a chain depend on each other; this is four deviations of as many chains.
        assert abs(found["share of +"] - 0.5) < 4 * 0.5 / 1000**0.5


def told(problem):
    return frozenset(problem.prompt.split(" ? ")[0].removesuffix(" ;").split(" ; "))


def test_splits_do_not_meet_whatever_the_seeds():
    sizes = {"depth": 2, "chains": 1}
    drawn = {
        split: [
            problem
            for seed, learned in ((0, None), (1, 1))
            for problem in generate(split=split, count=250, seed=seed, learned=learned, **sizes)
        ]
        for split in SPLITS
    }
    found = {split: set(map(told, problems)) for split, problems in drawn.items()}
    assert not found["train"] & found["test"]
    assert not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]
    # There are 2,600 sets of statements: without the rule they would meet.
    assert len(found["test"]) > 100
    ((_, share),) = chains.overlap(drawn["test"], drawn["train"]).items()
    assert share == 0
    half = [*drawn["test"][:100], *drawn["train"][:100]]
    assert list(chains.overlap(half, drawn["train"]).values()) == [0.5]
    for nothing in (([], half), (half, [])):
        with pytest.raises(ValueError, match="problems.*to compare"):
            chains.overlap(*nothing)


def test_a_seed_draws_the_same_problems():
    first, again, other = (generate(count=20, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len({problem.prompt for problem in first}) == 20


def test_wrong_answers_are_told_apart():
    (problem,) = generate(count=1, seed=0, depth=4, chains=1)
    signs = problem.answers
    opposite = "-" if signs[2] == "+" else "+"
    for third, fault in ((opposite, "other"), ("a", "foreign"), ("", "missing")):
        given = " ".join([*signs[:2], third, signs[3]]) if third else " ".join(signs[:2])
        found = grade(problem, given)
        assert (found.answer, found.fault, found.at) == (False, fault, 3)
        assert found.right == (True, True, False, bool(third))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": "tests"}, "split .* got 'tests'"),
        ({"depth": 0}, "depth .* got 0, 2"),
        ({"chains": 0}, "depth .* got 6, 0"),
        ({"depth": 14}, "28 variables, and there are names for 26"),
        ({"order": "random"}, "order .* got 'random'"),
        ({"blanks": -1}, "blanks .* got -1"),
        ({"ask": "start"}, "ask .* got 'start'"),
        ({"names": "letters"}, "names .* got 'letters'"),
        ({"ask": "statements"}, "ask=statements .* not shuffled"),
        ({"learned": 7}, "learned .* got 7"),
        ({"learned": 0}, "learned .* got 0"),
        ({"variables": 27}, "variables .* got 27"),
        ({"variables": 11}, "12 variables, and there are names for 11"),
        ({"values": 1}, r"values .*\(2\), got 1"),
        ({"values": 8, "chains": 1}, "chains .* got 1"),
        ({"values": 8, "order": "chain"}, "order=chain"),
        ({"depth": 1, "chains": 1, "count": 99}, r"only \d+ of 99 problems"),
    ],
)
def test_what_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"count": 1, "seed": 0, **wrong})
