"""Records of evaluation tasks in the fields that lm-eval's definitions read.

One function for each task or family: the forms that the hub's data sets have are taken as they are,
and those in which tasks are published are turned into them. docs/evals.md lists the fields.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem_bench.evals.scoring import read_rows
from layermem_bench.evals.task_catalog import EvalTask

Doc = dict[str, Any]
_LETTERS = "ABCDEFGHIJ"


def read_docs(task: EvalTask, paths: Sequence[Path]) -> list[Doc]:
    """Return the records of files in the fields that the task's definition reads."""
    read, docs = _READERS.get(task.stem, _bigbench), list[Doc]()
    for path in paths:
        for number, row in enumerate(_items(read_rows(path)), 1):
            try:
                docs.append(read(row))
            except (KeyError, ValueError, IndexError, TypeError) as error:
                fault = f"no field {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(
                    f"{path}, record {number} is not of {task.name}: {fault}"
                ) from error
    return docs


def _items(rows: Sequence[Doc]) -> list[Doc]:
    """Return rows; in place of BIG-bench's JSON its examples, each with the fields of the whole."""
    return [{**row, **example} for row in rows for example in row.get("examples", [{}])]


def _arc(row: Doc) -> Doc:
    if "query" in row:
        question = row["query"].removeprefix("Question: ")
        return {"question": question, **_lettered(row["choices"], _LETTERS[int(row["gold"])])}
    return _only(row, "question", "choices", "answerKey")


def _openbookqa(row: Doc) -> Doc:
    if "Question Stem" not in row:
        return _only(row, "question_stem", "choices", "answerKey")
    # "(A) one (B) two": a letter out of its order is text.
    choices = [row["Choices"]]
    for letter in _LETTERS:
        choices[-1:] = choices[-1].split(f"({letter}) ", 1)
    lettered = _lettered([choice.strip() for choice in choices[1:]], row["Answer Key"].strip())
    return {"question_stem": row["Question Stem"], **lettered}


def _hellaswag(row: Doc) -> Doc:
    if "ctx_a" in row:
        texts = _only(row, "activity_label", "ctx_a", "ctx_b")
    else:
        # It is not known where ctx_b begins, whose first letter lm-eval writes large.
        activity, _, context = row["ctx"].partition(": ")
        texts = {"activity_label": activity, "ctx_a": context, "ctx_b": ""}
    return {**texts, "endings": row["endings"], "label": int(row["label"])}


def _labelled(*names: str, labels: Sequence[str] = ()) -> Callable[[Doc], Doc]:
    """Return what reads some fields and a label: its number, or one of the names ``labels``."""

    def read(row: Doc) -> Doc:
        label = row["label"]
        number = labels.index(label) if label in labels else int(label)
        return {**_only(row, *names), "label": number}

    return read


def _bigbench(row: Doc) -> Doc:
    """Return a record as the hub has it, or an example of BIG-bench's own JSON.

    {"task_prefix": ..., "examples": [{"input": ..., "target_scores": {"yes": 1, "no": 0}}], ...}

    The prompt is made by the defaults of BIG-bench's documentation, which shuffles choices that are
    shown; their order here does not depend on which is right. Ends have no white space, as lm-eval
    puts a space before an answer. The right answers are those of the highest score.
    """
    if "target_scores" not in row:
        return _only(row, "inputs", "targets", "multiple_choice_targets")
    scores = row["target_scores"]
    parts = [row.get("task_prefix", ""), row.get("example_input_prefix", "\nQ: ")]
    parts.append(str(row["input"]))
    if row.get("append_choices_to_input", True):
        parts += [row.get("choice_prefix", "\n  choice: ") + choice for choice in sorted(scores)]
    parts.append(row.get("example_output_prefix", "\nA: "))
    return {
        "inputs": "".join(parts).strip(),
        "targets": [choice for choice, score in scores.items() if score == max(scores.values())],
        "multiple_choice_targets": list(scores),
    }


_READERS: Mapping[str, Callable[[Doc], Doc]] = {
    "arc_easy": _arc,
    "arc_challenge": _arc,
    "openbookqa": _openbookqa,
    "hellaswag": _hellaswag,
    "copa": _labelled("premise", "question", "choice1", "choice2"),
    "multirc": _labelled("paragraph", "question", "answer"),
    "wic": _labelled("sentence1", "sentence2", "start1", "end1"),
    "qnli": _labelled("question", "sentence", labels=("entailment", "not_entailment")),
    "wnli": _labelled("sentence1", "sentence2", labels=("not_entailment", "entailment")),
}


def _only(row: Doc, *names: str) -> Doc:
    return {name: row[name] for name in names}


def _lettered(choices: Sequence[str], key: str) -> Doc:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": key}
