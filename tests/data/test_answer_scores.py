"""Exact match and F1 on cases worked by hand, and against another implementation."""

import importlib.util
import random
from pathlib import Path

import pytest

from layermem_bench.data.question_records import exact_match, f1, normalized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Eiffel\tTower!", "eiffel tower"),
        ("a man, an egg", "man egg"),
        ("another theatre", "another theatre"),
        ("U.S.", "us"),
        ("well-known", "wellknown"),
        # Punctuation goes first, so that what it joins is no article any more.
        ("the-end", "theend"),
        ("a.", ""),
        # Only ASCII signs are punctuation.
        ("\u201cquoted\u201d \u2013 10\u00b0", "\u201cquoted\u201d \u2013 10\u00b0"),
        ("\u00c9COLE", "\u00e9cole"),
        ("", ""),
    ],
)
def test_texts_are_normalized(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "overlap"),
    [
        ("Eiffel tower!", ["the Eiffel Tower"], 1, 1),
        # One word of one, one of two: 2 x 1 x 1/2 / (3/2).
        ("1889", ["in 1889"], 0, 2 / 3),
        # Two of three words and two of four: 2 x 2 / 7.
        ("red green blue", ["green blue black white"], 0, 4 / 7),
        # A word counts as often as both have it.
        ("new new york", ["new york"], 0, 4 / 5),
        ("york new", ["new york"], 0, 1),
        ("blue", ["red"], 0, 0),
        ("blue", ["red", "dark blue", "blue sky now"], 0, 2 / 3),
        ("blue", ["red", "Blue."], 1, 1),
        ("", [], 1, 1),
        ("blue", [], 0, 0),
        ("", ["blue"], 0, 0),
        ("the", ["blue"], 0, 0),
        # A gold answer of articles alone does not count, unless there is no other.
        ("", ["the", "blue"], 0, 0),
        ("", ["the"], 1, 1),
    ],
)
def test_answers_are_scored(answer, gold, exact, overlap):
    assert exact_match(answer, gold) == exact
    assert f1(answer, gold) == pytest.approx(overlap)


def test_scores_are_those_of_another_implementation():
    """lm-eval has the rules of SQuAD 1.1, which differ where a text normalises to nothing."""
    found = importlib.util.find_spec("lm_eval")
    if found is None:
        pytest.skip("lm-eval is not installed")
    path = Path(found.origin).parent / "tasks" / "qasper" / "metrics.py"
    spec = importlib.util.spec_from_file_location("qasper_metrics", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    draw = random.Random(0)
    parts = ["the", "A", "an", "in", "1889,", "Paris", "paris.", "-", "U.S.", "\u00e9t\u00e9", "of"]
    compared = 0
    for _ in range(3000):
        ours, *gold = (" ".join(draw.choices(parts, k=draw.randrange(1, 5))) for _ in range(3))
        for text in (ours, *gold):
            assert normalized(text) == theirs.normalize_answer(text)
        if all(map(normalized, (ours, *gold))):
            compared += 1
            assert f1(ours, gold) == pytest.approx(
                max(theirs.f1_abstractive([ours], [each]) for each in gold)
            )
    assert compared > 1000
