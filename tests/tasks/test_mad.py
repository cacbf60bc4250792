"""MAD: oracles answer every query of the six kinds, shortcuts do not, splits share no sequence."""

import statistics
from itertools import groupby
from typing import get_args

import pytest

from layermem_bench.tasks import mad
from layermem_bench.tasks.mad import SHORTCUTS, Kind, generate, grade, try_shortcut
from layermem_bench.tasks.problems import Grade

SPLITS = ("train", "validation", "test")
KINDS = get_args(Kind)
HARDER = {
    "recall": {"vocabulary": 64, "length": 256},
    "noisy-recall": {"vocabulary": 48, "noise_share": 0.8},
    "fuzzy-recall": {"vocabulary": 32, "key_words": 2, "value_words": 4},
    "copying": {"length": 300, "copied": 96},
    "compression": {"vocabulary": 128, "length": 9},
    "memorization": {"vocabulary": 512, "length": 64},
}


def answers_of_recall(words):
    """Return what is predicted after each word, by the value that its key had before."""
    told, answers = {}, {}
    runs = [(sort, list(run)) for sort, run in groupby(words, key=lambda word: word[0])]
    place = 0
    for (sort, run), (_, value) in zip(runs, [*runs[1:], ("", [])], strict=True):
        # A pair of words stands in one run where both are noise.
        if sort == "k":
            before = told.get(tuple(run))
            told[tuple(run)] = value
            for number, word in enumerate(before or ()):
                answers[place + len(run) - 1 + number] = word
        place += len(run)
    return answers


def answers_of_copying(words):
    sign = words.index("copy")
    copied = [word for word in words[:sign] if word != "_"]
    return {sign + 1 + place: word for place, word in enumerate(copied)}


def answers_of_compression(words):
    return {place: words[int(word[1:])] for place, word in enumerate(words) if word.startswith("p")}


ORACLES = {
    "recall": answers_of_recall,
    "noisy-recall": answers_of_recall,
    "fuzzy-recall": answers_of_recall,
    "copying": answers_of_copying,
    "compression": answers_of_compression,
}


@pytest.mark.parametrize("sizes", ["paper", "harder"])
@pytest.mark.parametrize("kind", ORACLES)
def test_an_oracle_answers_every_query(kind, sizes):
    options = HARDER[kind] if sizes == "harder" else {}
    expected = mad.choose_sizes(kind, **options)
    for split in ("train", "test"):
        for problem in generate(split=split, count=40, seed=0, kind=kind, **options):
            words = problem.prompt.split()
            length = expected.length * 2 - 1 if kind == "compression" else expected.length
            assert len(words) == length
            answers = ORACLES[kind](words)
            assert list(answers) == list(problem.queries)
            assert list(answers.values()) == problem.answers
            right = (True,) * len(answers)
            assert grade(problem, problem.solution) == Grade(answer=True, steps=True, right=right)
            for query, answer, level in zip(
                problem.queries, problem.answers, problem.levels, strict=True
            ):
                distance = words[: query + 1][::-1].index(answer)
                assert level // 2 < distance <= level


@pytest.mark.parametrize("options", [{}, HARDER["memorization"]], ids=["paper", "harder"])
def test_memorized_values_are_the_same_in_all_splits_and_different_for_each_key(options):
    told = {}
    for split in SPLITS:
        for problem in generate(split=split, count=200, seed=1, kind="memorization", **options):
            words = problem.prompt.split()
            assert words[1::2] == ["insert"] * (len(words) // 2)
            assert set(problem.levels) == {0}
            for query, answer in zip(problem.queries, problem.answers, strict=True):
                assert told.setdefault(words[query - 1], answer) == answer
                assert answer not in words
    keys = (options.get("vocabulary", 256) - 1) // 2
    assert len(told) == len(set(told.values())) == keys


def test_the_papers_sizes():
    def words_of(kind):
        return set(mad.word_tokenizer(kind=kind).get_vocab()) - {"<pad>", "<end>", "<unknown>"}

    for kind, count in (
        *(("recall", 16), ("noisy-recall", 32), ("fuzzy-recall", 16), ("copying", 16)),
        *(("compression", 16 + 31), ("memorization", 256)),
    ):
        assert len(words_of(kind)) == count
        problems = generate(count=300, seed=0, kind=kind)
        used = {word for p in problems for word in (*p.prompt.split(), *p.answers)}
        # There is one value more than there are keys to memorize.
        assert used == words_of(kind) or (kind, len(used)) == ("memorization", 255)
    noisy = generate(count=300, seed=0, kind="noisy-recall")
    noise = [word[0] == "n" for problem in noisy for word in problem.prompt.split()]
    # One pair of 64 is never noise, nor is the last.
    assert abs(sum(noise) / len(noise) - 0.2 * 62 / 64) < 0.01
    # Keys are of any number of words in training, and of three in tests.
    for split, sizes in (("train", {1, 2, 3}), ("test", {3})):
        found = set()
        for problem in generate(split=split, count=50, seed=0, kind="fuzzy-recall"):
            runs = groupby(problem.prompt.split(), key=lambda word: word[0])
            found |= {len(list(run)) for sort, run in runs if sort == "k"}
        assert found == sizes


# The most that any shortcut has right.
MOST = {
    "recall": 0.40,
    "noisy-recall": 0.40,
    "fuzzy-recall": 0.30,
    "copying": 0.25,
    "compression": 0.20,
    "memorization": 0.0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_shortcut_solves_it(kind):
    problems = generate(split="test", count=150, seed=0, kind=kind)
    found = mad.describe(problems)
    assert found["problems"] == 150 and 0 < mad.chance(problems) <= 0.25
    shares = found["right answers by shortcut"]
    assert shares.keys() == SHORTCUTS.keys() and max(shares.values()) <= MOST[kind], shares


@pytest.mark.parametrize("kind", KINDS)
def test_splits_do_not_meet_whatever_the_seeds(kind):
    short = {
        "copying": {"length": 10, "copied": 2},
        "compression": {"length": 4},
        "fuzzy-recall": {"length": 12, "key_words": 1, "value_words": 1, "vocabulary": 7},
    }.get(kind, {"length": 6, "vocabulary": 24} if kind == "noisy-recall" else {"length": 6})
    found = {
        split: {
            p.prompt
            for seed in (0, 1)
            for p in generate(split=split, count=100, seed=seed, kind=kind, **short)
        }
        for split in SPLITS
    }
    assert not found["train"] & found["test"]
    assert not found["train"] & found["validation"]
    assert not found["validation"] & found["test"]


def test_a_seed_draws_the_same_problems():
    for kind in KINDS:
        first, again, other = (generate(count=5, seed=s, kind=kind) for s in (3, 3, 4))
        assert first == again != other


def test_wrong_answers_are_told_apart():
    (problem,) = generate(count=1, seed=0, length=16)
    shown = {word for word in problem.prompt.split() if word[0] == "v"}
    other = next(word for word in shown if word != problem.answers[0])
    for first, fault in ((other, "other"), ("k0", "foreign")):
        found = grade(problem, " ".join([first, *problem.answers[1:]]))
        assert (found.answer, found.fault, found.at) == (False, fault, 1)
        assert found.right == (False, *[True] * (len(problem.answers) - 1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "recalling"}, "kind .* got 'recalling'"),
        ({"split": "tests"}, "split .* got 'tests'"),
        ({"copied": 4}, "copied is an option of kind=copying"),
        ({"noise_share": 0.1}, "noise_share is an option of kind=noisy-recall"),
        ({"length": 3}, "length .* 4, got 3"),
        ({"length": 33}, "length .* even .*got 33"),
        ({"kind": "copying", "length": 33}, "length .* 34, got 33"),
        ({"kind": "copying", "copied": 0}, "copied .* got .* 0"),
        ({"kind": "fuzzy-recall", "length": 17}, "length .* 18, got 17"),
        ({"kind": "fuzzy-recall", "vocabulary": 7}, "vocabulary .* 8, got 7"),
        ({"vocabulary": 3}, "vocabulary .* 4, got 3"),
        ({"kind": "noisy-recall", "vocabulary": 19}, "vocabulary .* 20, got 19"),
        ({"kind": "noisy-recall", "noise_share": 1.0}, "noise_share .* got 1.0"),
        ({"kind": "noisy-recall", "noise_words": 0}, "noise_words, got 0.2 and 0"),
        ({"kind": "noisy-recall", "noise_words": -1}, "noise_words, got 0.2 and -1"),
        ({"length": 4, "vocabulary": 4, "count": 99}, "only . of 99 problems"),
    ],
)
def test_what_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"count": 1, "seed": 0, **wrong})


def test_shortcuts_are_those_of_the_words_before_each_query():
    by_hand = {
        "the latest possible answer": lambda before: before[-1],
        "the first possible answer": lambda before: before[0],
        "the commonest possible answer so far": statistics.mode,
    }
    assert by_hand.keys() == SHORTCUTS.keys()
    for kind in KINDS:
        for problem in generate(count=10, seed=3, kind=kind):
            sort, words = problem.solution[0], problem.prompt.split()
            for name, answer in by_hand.items():
                expected = []
                for query, right in zip(problem.queries, problem.answers, strict=True):
                    before = [w for w in words[: query + 1] if w[0] == sort and w[1:].isdigit()]
                    expected.append(bool(before) and answer(before) == right)
                assert try_shortcut(name, problem) == expected
