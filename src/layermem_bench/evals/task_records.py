"""Records of evaluation tasks: files by task and split, in the fields that definitions read.

    --records FOLDER ...            names say which: arc_easy_test.jsonl, wnli_train.tsv,
                                    bigbench/key_value_maps__extends.json (a part of a task)

docs/evals.md lists the fields of each task. The forms that the hub's data sets have are taken as
they are, and others are turned into them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem_bench.evals import read_rows
from layermem_bench.evals.task_catalog import EvalTask

Doc = dict[str, Any]
_KINDS = (".jsonl", ".tsv", ".json")
# Of a split, the ends that names of its files may have.
_ENDS = {
    "train": ("_train",),
    "validation": ("_validation", "_valid", "_val", "_dev"),
    "test": ("_test",),
    "default": ("",),
}
_LETTERS = "ABCDEFGHIJ"


def find_records(folders: Sequence[str], task: EvalTask) -> dict[str, list[Path]]:
    """Return the files of a task by split: of the one that is evaluated, and of "train" if there
    are some; nothing, if there are none of the evaluated one."""
    found: dict[str, list[Path]] = {}
    for split in dict.fromkeys((task.split, "train")) if task.stem else ():
        stems = [task.stem + end for end in _ENDS[split]]
        files = [
            path
            for folder in map(Path, folders)
            for path in sorted([*folder.iterdir(), *folder.glob("bigbench/*")])
            if path.suffixes and path.suffixes[0] in _KINDS
        ]
        whole = [path for path in files if path.name.partition(".")[0] in stems]
        parts = [path for path in files if path.name.startswith(f"{task.stem}__")]
        if len(whole) > 1:
            raise ValueError(
                f"{' and '.join(map(str, whole))} are both of {task.name}, split {split}: name the "
                "folder of one of them"
            )
        if chosen := whole or (parts if split == "default" else []):
            found[split] = chosen
    return found if task.split in found else {}


def expected_file(task: EvalTask) -> str:
    """Return the name that a file of a task's evaluated split may have."""
    return f"{task.stem}.json" if task.split == "default" else f"{task.stem}_{task.split}.jsonl"


def read_docs(task: EvalTask, paths: Sequence[Path]) -> list[Doc]:
    """Return the records of files in the fields that the task's definition reads."""
    read, docs = SCHEMAS[task.schema], list[Doc]()
    for path in paths:
        for number, row in enumerate(read_rows(path), 1):
            try:
                docs += read(row)
            except (KeyError, ValueError, IndexError, TypeError) as error:
                fault = f"no field {error}" if isinstance(error, KeyError) else str(error)
                raise ValueError(
                    f"{path}, record {number} is not of {task.name}: {fault}"
                ) from error
    return docs


def _arc(row: Doc) -> list[Doc]:
    if "query" in row:
        question = row["query"].removeprefix("Question: ")
        return [{"question": question, **_lettered(row["choices"], _LETTERS[int(row["gold"])])}]
    return [_only(row, "question", "choices", "answerKey")]


def _openbookqa(row: Doc) -> list[Doc]:
    if "Question Stem" not in row:
        return [_only(row, "question_stem", "choices", "answerKey")]
    # "(A) one (B) two": a letter out of its order is text.
    choices = [row["Choices"]]
    for letter in _LETTERS:
        choices[-1:] = choices[-1].split(f"({letter}) ", 1)
    lettered = _lettered([choice.strip() for choice in choices[1:]], row["Answer Key"].strip())
    return [{"question_stem": row["Question Stem"], **lettered}]


def _hellaswag(row: Doc) -> list[Doc]:
    if "ctx_a" in row:
        texts = _only(row, "activity_label", "ctx_a", "ctx_b")
    else:
        # It is not known where ctx_b begins, whose first letter lm-eval writes large.
        activity, _, context = row["ctx"].partition(": ")
        texts = {"activity_label": activity, "ctx_a": context, "ctx_b": ""}
    return [{**texts, "endings": row["endings"], "label": int(row["label"])}]


def _glue(row: Doc) -> list[Doc]:
    """Return a record of QNLI or WNLI, whose label may be a name: entailment is 0 of QNLI's labels,
    and 1 of WNLI's."""
    names = ("question", "sentence") if "question" in row else ("sentence1", "sentence2")
    labels = ["entailment", "not_entailment"][:: 1 if "question" in row else -1]
    label = row["label"]
    return [{**_only(row, *names), "label": labels.index(label) if label in labels else int(label)}]


def _labelled(*names: str) -> Callable[[Doc], list[Doc]]:
    """Return what reads a record of some fields and a label."""
    return lambda row: [{**_only(row, *names), "label": int(row["label"])}]


def _bigbench(row: Doc) -> list[Doc]:
    """Return a record as the hub has it, or those of BIG-bench's own JSON with their whole prompts.

    {"task_prefix": ..., "examples": [{"input": ..., "target_scores": {"yes": 1, "no": 0}}], ...}

    The right answers are those of the highest score.
    """
    if "examples" not in row:
        return [_only(row, "inputs", "targets", "multiple_choice_targets")]
    docs = []
    for example in row["examples"]:
        scores = example["target_scores"]
        best = max(scores.values())
        docs.append(
            {
                "inputs": _prompt(row, str(example["input"]), sorted(scores)),
                "targets": [choice for choice, score in scores.items() if score == best],
                "multiple_choice_targets": list(scores),
            }
        )
    return docs


def _prompt(task: Mapping[str, Any], question: str, choices: Sequence[str]) -> str:
    """Return the prompt of an example, by the defaults of BIG-bench's documentation.

    BIG-bench shuffles the appended choices; their order here does not depend on which is right.
    Ends have no white space: lm-eval puts a space before an answer.
    """
    parts = [task.get("task_prefix", ""), task.get("example_input_prefix", "\nQ: "), question]
    if task.get("append_choices_to_input", True):
        parts += [task.get("choice_prefix", "\n  choice: ") + choice for choice in choices]
    parts.append(task.get("example_output_prefix", "\nA: "))
    return "".join(parts).strip()


SCHEMAS: Mapping[str, Callable[[Doc], list[Doc]]] = {
    "arc": _arc,
    "openbookqa": _openbookqa,
    "hellaswag": _hellaswag,
    "copa": _labelled("premise", "question", "choice1", "choice2"),
    "multirc": _labelled("paragraph", "question", "answer"),
    "wic": _labelled("sentence1", "sentence2", "start1", "end1"),
    "glue": _glue,
    "bigbench": _bigbench,
}
"""Name of each kind of record to what reads it."""


def _only(row: Doc, *names: str) -> Doc:
    return {name: row[name] for name in names}


def _lettered(choices: Sequence[str], key: str) -> Doc:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": key}
