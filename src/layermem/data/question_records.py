"""Questions whose answers stand in a text, in the manner of SQuAD's files.

    {"id": "56be", "context": "Denver beat Carolina.", "question": "Who won?",
     "answers": {"text": ["Denver"], "answer_start": [0]}}

``.jsonl`` has such an object on each line, with names that may be others. ``.json`` is the nested
file of SQuAD 1.1 and 2.0 (data, paragraphs, qas), whose questions may be marked ``is_impossible``.
An answer must stand in its context where it is said to; whitespace at its ends is left out.

It does not know: tokens, models, how records are split.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layermem.data import compression
from layermem.data.local_files import json_records

_FLAT = (".jsonl", ".ndjson")
_NESTED = ".json"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A piece of a context."""

    text: str
    """The piece."""
    start: int
    """Number of characters before it."""


@dataclass(frozen=True, kw_only=True)
class QuestionRecord:
    """One question about a text."""

    id: str
    """What names it in a file of predictions."""
    context: str
    """The text."""
    question: str
    """The question."""
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
    """Return the records of a file; one that is damaged is an error that names its place.

    ``unanswerable``: whether a record may have no answer.
    """
    records: list[QuestionRecord] = []
    places: dict[str, str] = {}
    for row, where in _rows(path, names):
        record = _record(row, where, names, unanswerable=unanswerable)
        if record.id in places:
            raise ValueError(
                f"{where}: {names.id} {record.id!r} is that of {places[record.id]} too: every "
                "question needs one of its own, by which its prediction is found"
            )
        places[record.id] = where
        records.append(record)
    if not records:
        raise ValueError(f"there are no questions in {path}")
    return records


def _rows(path: Path, names: QuestionFields) -> Iterator[tuple[Any, str]]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in compression.SUFFIXES:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if kind not in (*_FLAT, _NESTED):
        raise ValueError(
            f"{path} is of no kind of questions that is read: {', '.join(_FLAT)} (an object on "
            f"each line) or {_NESTED} (SQuAD's own files), plain or compressed"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is no file; name a file of questions")
    if kind in _FLAT:
        yield from json_records(path)
        return
    if names != QuestionFields():
        raise ValueError(
            f"{path} is read as one of SQuAD's own files, whose fields have names of their own: "
            "leave --fields, --label and --id-field out, or write the records as .jsonl"
        )
    yield from _nested_rows(path)


def _nested_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the questions of a file of SQuAD as flat records."""
    try:
        with compression.open_decompressed(path) as file:
            content = json.loads(file.read().decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); JSON lines end in .jsonl") from error
    for i, article in enumerate(_list_in(content, "data", str(path)), 1):
        of_article = f"{path}, article {i}"
        for j, paragraph in enumerate(_list_in(article, "paragraphs", of_article), 1):
            of_paragraph = f"{of_article}, paragraph {j}"
            for k, question in enumerate(_list_in(paragraph, "qas", of_paragraph), 1):
                where = f"{of_paragraph}, question {k}"
                if not isinstance(question, Mapping):
                    raise ValueError(f"{where} must be an object, got {question!r:.60}")
                context = {"context": paragraph["context"]} if "context" in paragraph else {}
                yield {**question, **context}, where


def _list_in(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get(name), list):
        raise ValueError(
            f"{where} has no list {name!r}: a .json must be one of SQuAD's own files (data, "
            "paragraphs, qas); flat records are written as .jsonl, one on each line"
        )
    return list(value[name])


def _record(row: Any, where: str, names: QuestionFields, *, unanswerable: bool) -> QuestionRecord:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} must hold an object, got {row!r:.60}")
    for name in (names.id, names.context, names.question, names.answers):
        if name not in row:
            raise ValueError(
                f"{where} has no field {name!r} (it has {', '.join(map(str, row))}); name the "
                "fields with --fields CONTEXT QUESTION, --label ANSWERS and --id-field"
            )
    for name in (names.context, names.question):
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{where}: {name} must be a text, got {row[name]!r:.60}")
    number = row[names.id]
    if isinstance(number, bool) or not isinstance(number, int | str) or number == "":
        raise ValueError(f"{where}: {names.id} must be a text or a number, got {number!r:.60}")
    context = row[names.context]
    answers = tuple(
        _answer(text, start, context, f"{where}: {names.answers}")
        for text, start in _pairs(row[names.answers], f"{where}: {names.answers}")
    )
    _check_answerable(row, where, bool(answers), unanswerable)
    return QuestionRecord(
        id=str(number),
        context=context,
        question=row[names.question].strip(),
        answers=answers,
        where=where,
    )


def _pairs(value: Any, where: str) -> list[tuple[Any, Any]]:
    """Return texts with their offsets: of two lists in an object, or of a list of objects."""
    if isinstance(value, Mapping) and {"text", "answer_start"} <= value.keys():
        texts, starts = value["text"], value["answer_start"]
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    if isinstance(value, list) and all(
        isinstance(each, Mapping) and {"text", "answer_start"} <= each.keys() for each in value
    ):
        return [(each["text"], each["answer_start"]) for each in value]
    raise ValueError(
        f"{where} must have a text and an answer_start for each answer, such as "
        f'{{"text": ["Denver"], "answer_start": [0]}}, got {value!r:.80}'
    )


def _answer(text: Any, start: Any, context: str, where: str) -> Answer:
    """Return an answer without whitespace at its ends, which must stand at its offset."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: an answer must be a text, got {text!r:.60}")
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise ValueError(f"{where}: answer_start must be a number from 0 on, got {start!r:.60}")
    stands = context[start : start + len(text)]
    if stands != text:
        at = context.find(text)
        raise ValueError(
            f"{where}: {text!r:.60} does not stand at character {start} of the context, where "
            f"{stands!r:.60} is"
            f"{f' (it stands at {at})' if at >= 0 else ' (it stands nowhere in it)'}"
        )
    stripped = text.strip()
    return Answer(text=stripped, start=start + text.index(stripped))


def _check_answerable(
    row: Mapping[str, Any], where: str, has_answers: bool, unanswerable: bool
) -> None:
    impossible = row.get("is_impossible")
    if isinstance(impossible, bool) and impossible == has_answers:
        raise ValueError(
            f"{where}: is_impossible is {str(impossible).lower()}, and there are "
            f"{'' if has_answers else 'no '}answers"
        )
    if not (has_answers or unanswerable):
        raise ValueError(
            f"{where} has no answer: with --unanswerable such questions are learnt as having none; "
            "otherwise leave them out"
        )
