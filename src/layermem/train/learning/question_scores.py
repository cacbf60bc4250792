"""Scores of what a model answers to questions, and of guesses that need no model; predictions.

It does not know: models, how questions are read, the trainer.
"""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from layermem.data.question_records import QuestionRecord
from layermem.intervals import proportion
from layermem.results.answers import AnswerScore
from layermem.results.solved import Shares, Solved
from layermem.tasks.answer_scores import exact_match, f1
from layermem.text_hash import hash_to_unit_interval
from layermem.train.learning.question_windows import GivenAnswer

# What questions with and without an answer are called in a result, as SQuAD 2.0 calls them.
_LEVEL, _HAS, _HAS_NONE = "answer", "HasAns", "NoAns"
_WORD = re.compile(r"\S+")


def score(records: Sequence[QuestionRecord], texts: Sequence[str]) -> AnswerScore | None:
    """Return the scores of answers with intervals; None: there are none."""
    if not records:
        return None
    exact, overlap = (math.fsum(scores) for scores in _scores(records, texts))
    count = len(records)
    return AnswerScore(
        count=count,
        exact=exact / count,
        exact_interval=proportion(exact, count),
        f1=overlap / count,
        f1_interval=proportion(overlap, count),
    )


def score_by_answer(
    records: Sequence[QuestionRecord], texts: Sequence[str]
) -> tuple[AnswerScore | None, AnswerScore | None]:
    """Return the scores of questions that have an answer, and of those that have none."""
    pairs = list(zip(records, texts, strict=True))
    sides = ([pair for pair in pairs if bool(pair[0].answers) is has] for has in (True, False))
    has_answer, no_answer = (score([r for r, _ in side], [t for _, t in side]) for side in sides)
    return has_answer, no_answer


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
    return {name: _guess(records, each) for name, each in texts.items()}


def solved_of(
    records: Sequence[QuestionRecord], texts: Sequence[str], guessed: Mapping[str, AnswerScore]
) -> Solved:
    """Return the exact matches as shares, for result.json, beside those of the best guess.

    ``steps`` has no meaning of its own here, and is the same share.
    """
    levels = dict(zip((_HAS, _HAS_NONE), score_by_answer(records, texts), strict=True))
    by = {name: _shares(each) for name, each in levels.items() if each is not None}
    total = score(records, texts)
    if total is None:
        raise ValueError("there are no validation questions")
    faults = Counter(map(_fault, records, texts))
    faults.pop("", None)
    return Solved(
        **vars(_shares(total)),
        split="validation",
        chance=max(each.exact for each in guessed.values()),
        by={_LEVEL: by},
        faults=dict(faults.most_common()),
    )


def prediction_rows(
    records: Sequence[QuestionRecord], given: Sequence[GivenAnswer]
) -> list[dict[str, Any]]:
    """Return an object of predictions.jsonl for each question: all that a grader needs."""
    return [
        {
            "id": record.id,
            "question": record.question,
            "context": record.context,
            "answers": record.gold,
            "prediction": answer.text,
            "start": answer.start,
            "score": answer.score,
            "null_score": answer.null_score,
            "exact": exact_match(answer.text, record.gold),
            "f1": f1(answer.text, record.gold),
        }
        for record, answer in zip(records, given, strict=True)
    ]


def questions_text(records: Sequence[QuestionRecord]) -> list[str]:
    """Return each question as one text, by which the validation set is recognised."""
    return [json.dumps([each.id, each.context, each.question, each.gold]) for each in records]


def _scores(
    records: Sequence[QuestionRecord], texts: Sequence[str]
) -> tuple[list[float], list[float]]:
    pairs = [(text, record.gold) for record, text in zip(records, texts, strict=True)]
    return [exact_match(*pair) for pair in pairs], [f1(*pair) for pair in pairs]


def _guess(records: Sequence[QuestionRecord], texts: Sequence[str]) -> AnswerScore:
    exact, overlap = _scores(records, texts)
    return AnswerScore(
        count=len(records), exact=sum(exact) / len(records), f1=sum(overlap) / len(records)
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


def _shares(of: AnswerScore) -> Shares:
    return Shares(
        count=of.count,
        accuracy=of.exact,
        interval=of.exact_interval,
        steps=of.exact,
        steps_interval=of.exact_interval,
    )
