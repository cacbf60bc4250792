"""Records of evaluation tasks, in the fields that the tasks' definitions (lm-eval's) read.

    ARC         {"question", "choices": {"text", "label"}, "answerKey"}
                or {"query": "Question: ...", "choices": [...], "gold": 0}
    OpenBookQA  {"question_stem", "choices": {"text", "label"}, "answerKey"}
                or a table: Question Stem, Choices "(A) ... (B) ...", Answer Key
    HellaSwag   {"activity_label", "ctx_a", "ctx_b", "endings", "label"}
                or {"ctx": "activity: text", "endings", "label"}
    COPA        {"premise", "question": "cause" or "effect", "choice1", "choice2", "label"}
    MultiRC     {"paragraph", "question", "answer", "label"}
    WiC         {"sentence1", "sentence2", "start1", "end1", "label"}
    QNLI        {"question", "sentence", "label": 0 or "entailment"}
    WNLI        {"sentence1", "sentence2", "label"}

Only these fields are kept. A label that is none of an item's choices is refused: lm-eval would
count every model as wrong.

It does not know: files, lm-eval, models.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
Doc = dict[str, Any]
_LETTERS = "ABCDEFGHIJ"


def arc(record: Record, where: str) -> Doc:
    """Return a record of ARC."""
    if "query" in record:
        question = _text(record, "query", where).removeprefix("Question: ")
        choices = _texts(record, "choices", where)
        gold = _label(record, "gold", where, len(choices))
        return {"question": question, **_lettered(choices, _LETTERS[gold])}
    return {"question": _text(record, "question", where), **_keyed(record, where)}


def openbookqa(record: Record, where: str) -> Doc:
    """Return a record of OpenBookQA."""
    if "Question Stem" not in record:
        return {"question_stem": _text(record, "question_stem", where), **_keyed(record, where)}
    stem, listed = (_text(record, name, where) for name in ("Question Stem", "Choices"))
    key = _text(record, "Answer Key", where).strip()
    choices = _split_choices(listed)
    letters = list(_LETTERS[: len(choices)])
    if len(choices) < 2 or not all(choices):
        raise ValueError(f"{where}: Choices must be (A) ... (B) ... in order, got {listed!r:.80}")
    if key not in letters:
        raise ValueError(f"{where}: Answer Key must be one of {', '.join(letters)}, got {key!r}")
    return {"question_stem": stem, **_lettered(choices, key)}


def hellaswag(record: Record, where: str) -> Doc:
    """Return a record of HellaSwag.

    Of one with ``ctx`` it is not known where ``ctx_b`` begins, whose first letter lm-eval writes
    large; it is left as it is.
    """
    endings = _texts(record, "endings", where)
    if "ctx" in record and "ctx_a" not in record:
        activity, colon, context = _text(record, "ctx", where).partition(": ")
        if not colon:
            raise ValueError(f"{where}: ctx must be 'activity: text', got {activity!r:.60}")
        texts = {"activity_label": activity, "ctx_a": context, "ctx_b": ""}
    else:
        texts = {name: _text(record, name, where) for name in ("activity_label", "ctx_a")}
        texts["ctx_b"] = _text(record, "ctx_b", where, blank=True)
    return {**texts, "endings": endings, "label": _label(record, "label", where, len(endings))}


def copa(record: Record, where: str) -> Doc:
    """Return a record of COPA."""
    if (question := _text(record, "question", where)) not in ("cause", "effect"):
        raise ValueError(f"{where}: question must be 'cause' or 'effect', got {question!r}")
    texts = {name: _text(record, name, where) for name in ("premise", "choice1", "choice2")}
    return {**texts, "question": question, "label": _label(record, "label", where, 2)}


def multirc(record: Record, where: str) -> Doc:
    """Return a record of MultiRC."""
    texts = {name: _text(record, name, where) for name in ("paragraph", "question", "answer")}
    return {**texts, "label": _label(record, "label", where, 2)}


def wic(record: Record, where: str) -> Doc:
    """Return a record of WiC."""
    texts = {name: _text(record, name, where) for name in ("sentence1", "sentence2")}
    start, end = (_number(record, name, where) for name in ("start1", "end1"))
    if not 0 <= start < end <= len(texts["sentence1"]):
        raise ValueError(
            f"{where}: start1 and end1 must be a word in sentence1, which has "
            f"{len(texts['sentence1'])} characters, got {start} and {end}"
        )
    return {**texts, "start1": start, "end1": end, "label": _label(record, "label", where, 2)}


def qnli(record: Record, where: str) -> Doc:
    """Return a record of QNLI."""
    texts = {name: _text(record, name, where) for name in ("question", "sentence")}
    names = ("entailment", "not_entailment")
    return {**texts, "label": _label(record, "label", where, 2, names)}


def wnli(record: Record, where: str) -> Doc:
    """Return a record of WNLI."""
    texts = {name: _text(record, name, where) for name in ("sentence1", "sentence2")}
    names = ("not_entailment", "entailment")
    return {**texts, "label": _label(record, "label", where, 2, names)}


def bigbench(record: Record, where: str) -> Doc:
    """Return a record of BIG-bench as the hub has it; ``bigbench_records`` reads its own JSON."""
    choices = _texts(record, "multiple_choice_targets", where)
    targets = _texts(record, "targets", where)
    if targets[0] not in choices:
        raise ValueError(f"{where}: targets[0], {targets[0]!r:.40}, is none of the choices")
    inputs = _text(record, "inputs", where)
    return {"inputs": inputs, "targets": targets, "multiple_choice_targets": choices}


SCHEMAS: Mapping[str, Callable[[Record, str], Doc]] = {
    "arc": arc,
    "openbookqa": openbookqa,
    "hellaswag": hellaswag,
    "copa": copa,
    "multirc": multirc,
    "wic": wic,
    "qnli": qnli,
    "wnli": wnli,
    "bigbench": bigbench,
}
"""Name of each kind of record to what reads it: a record and the name of its place, for errors."""


def _split_choices(listed: str) -> list[str]:
    """Return the choices of a text ``(A) ... (B) ...``; a letter out of its order is text."""
    choices, rest = [], listed
    for letter in _LETTERS:
        before, mark, after = rest.partition(f"({letter}) ")
        if not mark:
            break
        choices.append(before)
        rest = after
    return [choice.strip() for choice in [*choices[1:], rest]] if choices else []


def _field(record: Record, name: str, where: str) -> Any:
    if name not in record:
        raise ValueError(f"{where} has no field {name!r} (it has {', '.join(record)})")
    return record[name]


def _text(record: Record, name: str, where: str, *, blank: bool = False) -> str:
    value = _field(record, name, where)
    if not isinstance(value, str) or not (blank or value.strip()):
        raise ValueError(f"{where}: {name} must be a text, got {value!r:.60}")
    return value


def _texts(record: Record, name: str, where: str) -> list[str]:
    value = _field(record, name, where)
    texts = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    if not texts or not value:
        raise ValueError(f"{where}: {name} must be a list of texts, got {value!r:.60}")
    return list(value)


def _number(record: Record, name: str, where: str) -> int:
    value = _field(record, name, where)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if not isinstance(value, int):
        raise ValueError(f"{where}: {name} must be a whole number, got {value!r:.60}")
    return int(value)


def _label(record: Record, name: str, where: str, count: int, names: Sequence[str] = ()) -> int:
    """Return the number of the right choice, of ``count``; ``names`` are those of the choices."""
    if (value := _field(record, name, where)) in names:
        return names.index(value)
    number = _number(record, name, where)
    if not 0 <= number < count:
        raise ValueError(
            f"{where}: {name} must be from 0 to {count - 1}, got {number}; items without a label "
            "cannot be graded"
        )
    return number


def _keyed(record: Record, where: str) -> Doc:
    """Return the choices of a record that names each by a key, and the right one's key."""
    choices = _field(record, "choices", where)
    if not isinstance(choices, Mapping):
        raise ValueError(f"{where}: choices must have text and label, got {choices!r:.60}")
    texts, labels = (_texts(choices, name, f"{where}, choices") for name in ("text", "label"))
    key = _text(record, "answerKey", where).strip()
    if len(texts) != len(labels) or key not in labels:
        raise ValueError(
            f"{where}: answerKey must be one of {', '.join(labels)}, of {len(texts)} texts, got "
            f"{key!r}"
        )
    return {"choices": {"text": texts, "label": labels}, "answerKey": key}


def _lettered(choices: Sequence[str], key: str) -> Doc:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": key}
