"""Records of evaluation tasks: files by task and split, in the fields that definitions read.

    --records FOLDER ...            names say it: arc_easy_test.jsonl, wnli_train.tsv,
                                    bigbench/key_value_maps__extends.json (a part of a task)
    --records TASK=FILE             the split that is evaluated
    --records TASK:train=FILE       what few-shot examples are drawn from

docs/evals.md lists the fields of each task; others are left out. A label that is none of an item's
choices is refused: lm-eval would count every model as wrong.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem_bench.data.records import (
    KINDS,
    Record,
    as_record,
    file_records,
    kind_of,
    open_decompressed,
    read_json,
)
from layermem_bench.evals.task_catalog import EvalTask, find_task

Doc = dict[str, Any]
Files = Mapping[str, tuple[Path, ...]]
"""Of a task: split to its files."""
_LETTERS = "ABCDEFGHIJ"


def find_records(places: Sequence[str], tasks: Sequence[EvalTask]) -> dict[str, Files]:
    """Return the name of each of the tasks that has files, and these by split."""
    folders, given = _read_places(places)
    found: dict[str, Files] = {}
    for task in tasks:
        if task.file is None:
            files = {
                split: given.get((task.name, split)) or _in_folders(folders, task, split)
                for split in task.splits
            }
            if files[task.split]:
                found[task.name] = {split: paths for split, paths in files.items() if paths}
    return found


def expected_file(task: EvalTask) -> str:
    return task.stems(task.split)[0] + (".json" if task.split == "default" else ".jsonl")


def read_docs(task: EvalTask, paths: Sequence[Path]) -> list[Doc]:
    """Return the records of files in the fields that the task's definition reads."""
    read = SCHEMAS[task.schema]
    docs = [read(record) for path in paths for record in _records(path)]
    if not docs:
        raise ValueError(f"there are no records in {', '.join(map(str, paths))}")
    return docs


def _read_places(
    places: Sequence[str],
) -> tuple[list[Path], dict[tuple[str, str], tuple[Path, ...]]]:
    folders: list[Path] = []
    given: dict[tuple[str, str], tuple[Path, ...]] = {}
    for place in places:
        name, equals, file = place.partition("=")
        path = Path(file if equals else place).expanduser()
        if not path.exists():
            raise FileNotFoundError(
                f"{path} does not exist; --records takes folders, and files as TASK=FILE"
            )
        if not equals:
            if not path.is_dir():
                raise ValueError(f"{path} is a file: say of which task, as in TASK={path}")
            for folder in (path, path / "bigbench"):
                if folder.is_dir() and folder.resolve() not in map(Path.resolve, folders):
                    folders.append(folder)
            continue
        task_name, colon, split = name.partition(":")
        task = find_task(task_name)
        split = split if colon else task.split
        if split not in task.splits:
            raise ValueError(f"{task.name} has no split {split!r}, only {', '.join(task.splits)}")
        if (task.name, split) in given:
            (other,) = given[task.name, split]
            raise ValueError(
                f"{task.name} has the records {other} and {path} for its split {split}: name one "
                "file, with all of them"
            )
        given[task.name, split] = (path,)
    return folders, given


def _in_folders(folders: Sequence[Path], task: EvalTask, split: str) -> tuple[Path, ...]:
    """Return the files of a split in one of the folders; raise where several have some."""
    found: list[tuple[Path, ...]] = []
    for folder in folders:
        files = {
            path: path.name.partition(".")[0]
            for path in sorted(folder.iterdir())
            if path.is_file() and kind_of(path) in KINDS
        }
        whole = [path for path, stem in files.items() if stem in task.stems(split)]
        if len(whole) > 1:
            raise ValueError(
                f"{' and '.join(map(str, whole))} are both of {task.name}: say which, as in "
                f"--records {task.name}={whole[0]}"
            )
        parts = [path for path, stem in files.items() if stem.startswith(f"{task.stem}__")]
        if whole or (split == "default" and parts):
            found.append(tuple(whole or parts))
    if len(found) > 1:
        raise ValueError(
            f"{' and '.join(str(files[0].parent) for files in found)} both have records of "
            f"{task.name}, split {split}: put them into one folder, or name one of them"
        )
    return found[0] if found else ()


def _records(path: Path) -> Iterator[Record]:
    """Return the records of a file of lines, or of one JSON value over all its lines."""
    if kind_of(path) != ".json":
        return file_records(path)
    with open_decompressed(path) as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            return _examples(path)
    is_whole = isinstance(first, dict) and "examples" in first
    return _examples(path) if is_whole else file_records(path)


def _arc(record: Record) -> Doc:
    if "query" in record.fields:
        question = record.text("query").removeprefix("Question: ")
        choices = record.texts("choices")
        gold = _label(record, "gold", len(choices))
        return {"question": question, **_lettered(choices, _LETTERS[gold])}
    return {"question": record.text("question"), **_keyed(record)}


def _openbookqa(record: Record) -> Doc:
    if "Question Stem" not in record.fields:
        return {"question_stem": record.text("question_stem"), **_keyed(record)}
    stem, listed, key = map(record.text, ("Question Stem", "Choices", "Answer Key"))
    choices, key = _split_choices(listed), key.strip()
    if len(choices) < 2 or not all(choices):
        raise record.error("Choices", "be (A) ... (B) ... in order", listed)
    if key not in (letters := list(_LETTERS[: len(choices)])):
        raise record.error("Answer Key", f"be one of {', '.join(letters)}", key)
    return {"question_stem": stem, **_lettered(choices, key)}


def _hellaswag(record: Record) -> Doc:
    endings = record.texts("endings")
    if "ctx" in record.fields and "ctx_a" not in record.fields:
        activity, colon, context = record.text("ctx").partition(": ")
        if not colon:
            raise record.error("ctx", "be 'activity: text'", activity)
        # It is not known where ctx_b begins, whose first letter lm-eval writes large.
        texts = {"activity_label": activity, "ctx_a": context, "ctx_b": ""}
    else:
        texts = _texts(record, "activity_label", "ctx_a")
        texts["ctx_b"] = record.text("ctx_b", blank=True)
    return {**texts, "endings": endings, "label": _label(record, "label", len(endings))}


def _copa(record: Record) -> Doc:
    if (question := record.text("question")) not in ("cause", "effect"):
        raise record.error("question", "be 'cause' or 'effect'", question)
    texts = _texts(record, "premise", "choice1", "choice2")
    return {**texts, "question": question, "label": _label(record, "label", 2)}


def _wic(record: Record) -> Doc:
    texts = _texts(record, "sentence1", "sentence2")
    start, end = map(record.number, ("start1", "end1"))
    if not 0 <= start < end <= len(texts["sentence1"]):
        raise ValueError(
            f"{record.where}: start1 and end1 must be a word in sentence1, which has "
            f"{len(texts['sentence1'])} characters, got {start} and {end}"
        )
    return {**texts, "start1": start, "end1": end, "label": _label(record, "label", 2)}


def _bigbench(record: Record) -> Doc:
    """Return a record as the hub has it."""
    choices = record.texts("multiple_choice_targets")
    targets = record.texts("targets")
    if targets[0] not in choices:
        raise ValueError(f"{record.where}: targets[0], {targets[0]!r:.40}, is none of the choices")
    inputs = record.text("inputs")
    return {"inputs": inputs, "targets": targets, "multiple_choice_targets": choices}


def _examples(path: Path) -> Iterator[Record]:
    """Yield a record, with its whole prompt, of each example of BIG-bench's own JSON.

    {"task_prefix": ..., "examples": [{"input": ..., "target_scores": {"yes": 1, "no": 0}}], ...}

    The right answers are those of the highest score.
    """
    task = read_json(path)
    examples = task.get("examples") if isinstance(task, Mapping) else None
    if not isinstance(examples, list):
        raise ValueError(f"{path} is not the JSON of a BIG-bench task: it has no list 'examples'")
    for number, value in enumerate(examples, 1):
        example = as_record(value, f"{path}, example {number}")
        question, scores = map(example.field, ("input", "target_scores"))
        if not isinstance(scores, Mapping) or not scores:
            raise example.error("target_scores", "hold a score of each choice", scores)
        best = max(scores.values())
        if best <= 0:
            raise ValueError(f"{example.where}: no choice of target_scores has a score above 0")
        fields = {
            "inputs": _prompt(task, str(question), sorted(scores)),
            "targets": [choice for choice, score in scores.items() if score == best],
            "multiple_choice_targets": list(scores),
        }
        yield Record(fields, example.where)


def _prompt(task: Mapping[str, Any], question: str, choices: list[str]) -> str:
    """Return the prompt of an example, by the defaults of BIG-bench's documentation.

    BIG-bench shuffles the appended choices; their order here does not depend on which is right.
    Ends have no white space: lm-eval puts a space before an answer.
    """
    parts = [task.get("task_prefix", ""), task.get("example_input_prefix", "\nQ: "), question]
    if task.get("append_choices_to_input", True):
        prefix = task.get("choice_prefix", "\n  choice: ")
        parts += [prefix + choice for choice in choices]
    parts.append(task.get("example_output_prefix", "\nA: "))
    return "".join(parts).strip()


def _labelled(record: Record, *texts: str, labels: Sequence[str] = ()) -> Doc:
    """Return a record of texts and a label, a number or one of two names."""
    return {**_texts(record, *texts), "label": _label(record, "label", 2, labels)}


_ENTAILED = ("entailment", "not_entailment")
SCHEMAS: Mapping[str, Callable[[Record], Doc]] = {
    "arc": _arc,
    "openbookqa": _openbookqa,
    "hellaswag": _hellaswag,
    "copa": _copa,
    "multirc": lambda record: _labelled(record, "paragraph", "question", "answer"),
    "wic": _wic,
    "qnli": lambda record: _labelled(record, "question", "sentence", labels=_ENTAILED),
    "wnli": lambda record: _labelled(record, "sentence1", "sentence2", labels=_ENTAILED[::-1]),
    "bigbench": _bigbench,
}
"""Name of each kind of record to what reads it."""


def _texts(record: Record, *names: str) -> Doc:
    return {name: record.text(name) for name in names}


def _split_choices(listed: str) -> list[str]:
    """Return the choices of a text ``(A) ... (B) ...``; a letter out of its order is text."""
    texts = [listed]
    for letter in _LETTERS:
        before, mark, after = texts[-1].partition(f"({letter}) ")
        if not mark:
            break
        texts[-1:] = [before, after]
    # What stands before the first letter is no choice.
    return [text.strip() for text in texts[1:]]


def _label(record: Record, name: str, count: int, names: Sequence[str] = ()) -> int:
    """Return the number of the right choice, of ``count``; ``names`` are those of the choices."""
    if (value := record.field(name)) in names:
        return names.index(value)
    number = record.number(name)
    if not 0 <= number < count:
        raise ValueError(
            f"{record.where}: {name} must be from 0 to {count - 1}, got {number}; items without a "
            "label cannot be graded"
        )
    return number


def _keyed(record: Record) -> Doc:
    """Return the choices of a record that names each by a key, and the right one's key."""
    choices = record.field("choices")
    if not isinstance(choices, Mapping):
        raise record.error("choices", "have text and label", choices)
    texts, labels = map(Record(choices, f"{record.where}, choices").texts, ("text", "label"))
    key = record.text("answerKey").strip()
    if len(texts) != len(labels) or key not in labels:
        of = f"be one of {', '.join(labels)}, of {len(texts)} texts"
        raise record.error("answerKey", of, key)
    return {"choices": {"text": texts, "label": labels}, "answerKey": key}


def _lettered(choices: Sequence[str], key: str) -> Doc:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": key}
