"""Scores of answers to questions, beside guesses that need no model."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence

from layermem.data.question_records import QuestionRecord, exact_match, f1
from layermem.intervals import proportion
from layermem.results.solved import Answers, AnswerScore, QuestionCounts, Solved
from layermem.text_hash import hash_to_unit_interval
from layermem.train.learning.record_inputs import shares_without_steps

_WORD = re.compile(r"\S+")


def score(
    records: Sequence[QuestionRecord], texts: Sequence[str], *, is_guess: bool = False
) -> AnswerScore:
    """Return the mean scores of answers, with intervals unless they are guesses."""
    count, pairs = len(records), list(zip(texts, records, strict=True))
    exact, overlap = (
        math.fsum(of(text, record.gold) for text, record in pairs) for of in (exact_match, f1)
    )
    return AnswerScore(
        count=count,
        exact=exact / count,
        exact_interval=() if is_guess else proportion(exact, count),
        f1=overlap / count,
        f1_interval=() if is_guess else proportion(overlap, count),
    )


def score_all(
    records: Sequence[QuestionRecord],
    texts: Sequence[str],
    training: Sequence[QuestionRecord],
    *,
    run_id: str,
    counts: QuestionCounts,
) -> Answers:
    """Return the scores of a run's answers, and of guesses from what it was trained on."""
    by_answer: dict[bool, AnswerScore | None] = {True: None, False: None}
    for has_answer in by_answer:
        side = [
            pair for pair in zip(records, texts, strict=True) if bool(pair[0].answers) is has_answer
        ]
        if side:
            by_answer[has_answer] = score(*zip(*side, strict=True))
    return Answers(
        run_id=run_id,
        counts=counts,
        all=score(records, texts),
        has_answer=by_answer[True],
        no_answer=by_answer[False],
        guesses=guesses(records, training),
    )


def guesses(
    records: Sequence[QuestionRecord], training: Sequence[QuestionRecord]
) -> dict[str, AnswerScore]:
    """Return the scores of guesses that need no model, by name."""
    lengths = [len(record.gold[0].split()) for record in training if record.answers]
    words = round(statistics.median(lengths)) if lengths else 1
    texts = {
        "none": ["" for _ in records],
        "first words": [_piece(record, words, 0.0) for record in records],
        "random words": [
            _piece(record, words, hash_to_unit_interval(record.id)) for record in records
        ],
    }
    return {name: score(records, each, is_guess=True) for name, each in texts.items()}


def solved_of(answers: Answers, records: Sequence[QuestionRecord], texts: Sequence[str]) -> Solved:
    """Return the exact matches as shares, for result.json, beside those of the best guess.

    Questions with and without an answer are called as SQuAD 2.0 calls them.
    """
    levels = {"HasAns": answers.has_answer, "NoAns": answers.no_answer}
    shares = {
        name: shares_without_steps(of.count, of.exact, of.exact_interval)
        for name, of in {"": answers.all, **levels}.items()
        if of is not None
    }
    faults = Counter(map(_fault, records, texts))
    faults.pop("", None)
    return Solved(
        **vars(shares.pop("")),
        split="validation",
        chance=max(each.exact for each in answers.guesses.values()),
        by={"answer": shares},
        faults=dict(faults.most_common()),
    )


def _piece(record: QuestionRecord, words: int, where: float) -> str:
    """Return some words in a row of a context; ``where``: 0 for the first, below 1 for the last."""
    found = [match.span() for match in _WORD.finditer(record.context)]
    count = min(words, len(found))
    begin = int(where * (len(found) - count + 1))
    return record.context[found[begin][0] : found[begin + count - 1][1]]


def _fault(record: QuestionRecord, text: str) -> str:
    """Return what is wrong with an answer; empty: nothing is."""
    if exact_match(text, record.gold):
        return ""
    if not record.answers:
        return "an answer where there is none"
    if not text:
        return "no answer where there is one"
    return "a part of the answer, or more" if f1(text, record.gold) else "elsewhere"
