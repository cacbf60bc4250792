"""Questions whose answers stand in a text, in the manner of SQuAD, and scores of answers.

    {"id": "56be", "context": "Denver beat Carolina.", "question": "Who won?",
     "answers": {"text": ["Denver"], "answer_start": [0]}}

A file has such records, with names that may be others, or is the nested ``.json`` of SQuAD 1.1 and
2.0 (data, paragraphs, qas), whose questions may be marked ``is_impossible``.

An answer is scored as SQuAD does, by exact match and F1 of its words:

    gold "the Eiffel Tower", answer "Eiffel tower!"   exact match 1, F1 1
    gold "in 1889",          answer "1889"            exact match 0, F1 2/3

Both are of normalised texts: in lower case, without ASCII punctuation and the words a, an and the,
and with single spaces. Of several gold answers the best counts. No answer is the empty text. As in
SQuAD 2.0's rules, gold answers that normalise to nothing are left out, and where that is all of
them the right answer is none.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermem_bench.data.records import Record, as_record, file_records, kind_of, read_json

_MEND = "; name the fields with --fields CONTEXT QUESTION, --label ANSWERS and --id-field"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A piece of a context, after ``start`` characters."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class QuestionRecord:
    """One question about a text."""

    id: str
    """What names it in a file of predictions."""
    context: str
    question: str
    answers: tuple[Answer, ...]
    """Gold answers; none: the text does not answer the question."""
    where: str
    """File and line, for errors."""

    @property
    def gold(self) -> list[str]:
        """Return the texts of the gold answers."""
        return [answer.text for answer in self.answers]

    @property
    def split_key(self) -> str:
        """Return the context, whatever its whitespace is."""
        return " ".join(self.context.split())


@dataclass(frozen=True, kw_only=True)
class QuestionFields:
    """Names of the fields of a flat record."""

    context: str = "context"
    question: str = "question"
    answers: str = "answers"
    id: str = "id"


def read_questions(
    path: Path, names: QuestionFields, *, unanswerable: bool
) -> list[QuestionRecord]:
    """Return the records of a file; ``unanswerable``: they may have no answer."""
    records: list[QuestionRecord] = []
    places: dict[str, str] = {}
    for each in _squad(path, names) if kind_of(path) == ".json" else file_records(path):
        record = _question(each, names, unanswerable=unanswerable)
        if record.id in places:
            raise ValueError(
                f"{each.where}: {names.id} {record.id!r} is that of {places[record.id]} too: give "
                "every question one of its own"
            )
        places[record.id] = each.where
        records.append(record)
    if not records:
        raise ValueError(f"there are no questions in {path}")
    return records


def _squad(path: Path, names: QuestionFields) -> Iterator[Record]:
    """Yield the questions of one of SQuAD's own files as flat records."""
    if names != QuestionFields():
        raise ValueError(
            f"{path} is one of SQuAD's own files, whose names are fixed: leave --fields, --label "
            "and --id-field out, or write the records as .jsonl"
        )
    for i, article in enumerate(_list_in(read_json(path), "data", str(path)), 1):
        of_article = f"{path}, article {i}"
        for j, paragraph in enumerate(_list_in(article, "paragraphs", of_article), 1):
            of_paragraph = f"{of_article}, paragraph {j}"
            for k, question in enumerate(_list_in(paragraph, "qas", of_paragraph), 1):
                record = as_record(question, f"{of_paragraph}, question {k}")
                yield Record({**record.fields, "context": paragraph.get("context")}, record.where)


def _list_in(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get(name), list):
        raise ValueError(
            f"{where} has no list {name!r}: a .json must be one of SQuAD's own files; write flat "
            "records as .jsonl, one on each line"
        )
    return list(value[name])


def _question(record: Record, names: QuestionFields, *, unanswerable: bool) -> QuestionRecord:
    context, question = (record.text(name, _MEND) for name in (names.context, names.question))
    number = record.field(names.id, _MEND)
    if isinstance(number, bool) or not isinstance(number, int | str) or number == "":
        raise record.error(names.id, "be a text or a number", number)
    answers = tuple(
        _answer(text, start, context, f"{record.where}: {names.answers}")
        for text, start in _pairs(record, names.answers)
    )
    impossible = record.fields.get("is_impossible")
    if isinstance(impossible, bool) and impossible == bool(answers):
        there = "answers" if answers else "no answers"
        raise ValueError(f"{record.where}: is_impossible is {impossible}, and there are {there}")
    if not (answers or unanswerable):
        raise ValueError(
            f"{record.where} has no answer: leave it out, or add --unanswerable to learn it as such"
        )
    return QuestionRecord(
        id=str(number),
        context=context,
        question=question.strip(),
        answers=answers,
        where=record.where,
    )


def _pairs(record: Record, name: str) -> list[tuple[Any, Any]]:
    """Return texts with their offsets: of two lists in an object, or of a list of objects."""
    value = record.field(name, _MEND)
    if isinstance(value, Mapping) and {"text", "answer_start"} <= value.keys():
        texts, starts = value["text"], value["answer_start"]
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    if isinstance(value, list) and all(
        isinstance(each, Mapping) and {"text", "answer_start"} <= each.keys() for each in value
    ):
        return [(each["text"], each["answer_start"]) for each in value]
    example = '{"text": ["Denver"], "answer_start": [0]}'
    raise record.error(
        name, f"have a text and an answer_start for each answer, such as {example}", value
    )


def _answer(text: Any, start: Any, context: str, where: str) -> Answer:
    """Return an answer without whitespace at its ends, which must stand at its offset."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: an answer must be a text, got {text!r:.60}")
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise ValueError(f"{where}: answer_start must be a number from 0 on, got {start!r:.60}")
    stands, at = context[start : start + len(text)], context.find(text)
    if stands != text:
        raise ValueError(
            f"{where}: {text!r:.60} does not stand at character {start} of the context, where "
            f"{stands!r:.60} is ({f'it stands at {at}' if at >= 0 else 'it stands nowhere in it'})"
        )
    stripped = text.strip()
    return Answer(text=stripped, start=start + text.index(stripped))


def normalized(text: str) -> str:
    """Return a text as it is compared."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer is one of the gold answers, else 0; no gold answers: there is none."""
    return float(normalized(answer) in _normalized_gold(gold))


def f1(answer: str, gold: Sequence[str]) -> float:
    """Return the largest F1 of an answer's words with those of a gold answer."""
    words = normalized(answer).split()
    return max(_f1_of_words(words, each.split()) for each in _normalized_gold(gold))


def _normalized_gold(gold: Sequence[str]) -> list[str]:
    return list(filter(None, map(normalized, gold))) or [""]


def _f1_of_words(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Return the harmonic mean of the shares of words that both have, a repeated word counted."""
    if not ours or not theirs:
        return float(ours == theirs)
    common = (Counter(ours) & Counter(theirs)).total()
    return 2 * common / (len(ours) + len(theirs))
