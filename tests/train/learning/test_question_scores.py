"""Scores of answers by hand: all, with and without an answer, guesses, faults."""

import pytest

from layermem_bench.data.question_records import Answer, QuestionRecord
from layermem_bench.results.intervals import proportion
from layermem_bench.results.solved import QuestionCounts
from layermem_bench.train.learning.questions import guesses, score, score_all, solved_of

CONTEXT = "In 1889 the tower of Paris was built by Eiffel and his men."


def record(number, *gold):
    answers = tuple(Answer(text=text, start=CONTEXT.index(text)) for text in gold)
    return QuestionRecord(id=str(number), context=CONTEXT, question="?", answers=answers, where="x")


RECORDS = [
    record(1, "1889", "In 1889"),
    record(2, "Eiffel and his men", "Eiffel"),
    record(3, "Paris"),
    record(4),
    record(5),
]
TEXTS = ["in 1889", "Eiffel and", "tower", "", "Paris"]
NUMBERS = ("training", "validation", "left_out", "training_windows", "validation_windows")
COUNTS = QuestionCounts(
    **dict.fromkeys((*NUMBERS, "training_out_of_reach", "validation_out_of_reach"), 0),
    separator=None,
    null_is_first=True,
)


def scored(records, texts):
    return score_all(records, texts, RECORDS, run_id="run", counts=COUNTS)


def test_scores_are_those_worked_by_hand():
    total = score(RECORDS, TEXTS)
    # F1: 1; 2 of 2 words and 2 of 4, or 1 of 2 and 1 of 1: both 2/3; 0; 1; 0.
    assert (total.count, total.exact) == (5, 2 / 5)
    assert total.f1 == pytest.approx((1 + 2 / 3 + 0 + 1 + 0) / 5)
    assert total.exact_interval == proportion(2, 5)
    assert total.f1_interval == pytest.approx(proportion(8 / 3, 5))
    answers = scored(RECORDS, TEXTS)
    has_answer, no_answer = answers.has_answer, answers.no_answer
    assert (answers.all, answers.guesses) == (total, guesses(RECORDS, RECORDS))
    assert (has_answer.count, has_answer.exact) == (3, 1 / 3)
    assert has_answer.f1 == pytest.approx((1 + 2 / 3) / 3)
    assert (no_answer.count, no_answer.exact, no_answer.f1) == (2, 1 / 2, 1 / 2)
    assert scored(RECORDS[:3], TEXTS[:3]).no_answer is None
    # Nothing right is no proof that nothing ever is.
    low, high = score(RECORDS[:3], ["", "", ""]).f1_interval
    assert low == 0 and high > 0.5


def test_guesses_need_no_model():
    # Training answers have 1, 1 and 3 words: a guess has one.
    training = [record(1, "1889"), record(2, "Paris"), record(3, "and his men"), record(4)]
    guessed = guesses(RECORDS, training)
    assert list(guessed) == ["none", "first words", "random words"]
    assert guessed["none"].exact == guessed["none"].f1 == 2 / 5
    # "In" is half of the second gold answer of the first question, and no other's.
    assert guessed["first words"].exact == 0
    assert guessed["first words"].f1 == pytest.approx((2 / 3) / 5)
    assert guesses(RECORDS, training)["random words"] == guessed["random words"]
    many = [record(i, "Paris") for i in range(2000)]
    # One of 12 words, each as often as another; whitespace parts them.
    assert guesses(many, training)["random words"].exact == pytest.approx(1 / 12, abs=0.02)


def test_the_result_has_shares_and_faults():
    solved = solved_of(scored(RECORDS, TEXTS), RECORDS, TEXTS)
    assert (solved.accuracy, solved.count, solved.chance) == (2 / 5, 5, 2 / 5)
    levels = solved.by["answer"]
    assert (levels["HasAns"].accuracy, levels["NoAns"].count) == (1 / 3, 2)
    assert solved.faults == {
        "a part of the answer, or more": 1,
        "elsewhere": 1,
        "an answer where there is none": 1,
    }
    texts = ["" for _ in RECORDS]
    silent = solved_of(scored(RECORDS, texts), RECORDS, texts)
    assert silent.faults == {"no answer where there is one": 3}
