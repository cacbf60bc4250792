"""The evaluation tasks of the paper: lm-eval's names of them, and records of their items.

    Table 1       MultiRC WiC QNLI ARC-E ARC-C, key-value maps, induction, logical deduction of 3
    Tables 4-6    GLUE and SuperGLUE, questions, BIG-bench

Names are lm-eval's, those of BIG-bench without what all of them share: ``implicit_relations`` is
``bigbench_implicit_relations_multiple_choice``. Records have the fields of the hub's data sets, or
a form in which a task is published, which becomes these fields. docs/evals.md lists both.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from layermem_base.plugins import unknown_name

FOLDERS = ("arc", "hellaswag", "openbookqa", "super_glue", "glue", "bigbench/multiple_choice")
"""Folders of lm-eval that define the tasks."""
Doc = dict[str, Any]
# Of a split, the ends that names of its files may have.
_ENDS = {
    "train": ("_train",),
    "validation": ("_validation", "_valid", "_val", "_dev"),
    "test": ("_test",),
    "default": ("",),
}
_LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """A task of the paper's tables."""

    stem: str
    """Start of the names of its files of records."""
    split: str
    """Split that is evaluated: "test", "validation", or "default" where there is no other."""

    @property
    def name(self) -> str:
        """Its name for commands; of logical deduction a part has a name of its own."""
        return self.stem.replace("__", "_")

    @property
    def is_on_hub(self) -> bool:
        """Whether the hub has it as a data set: of logical deduction there is the whole alone."""
        return "__" not in self.stem

    @property
    def definition(self) -> str:
        """The name of lm-eval's definition, which is one for any number of objects."""
        whole = self.stem.partition("__")[0]
        return f"bigbench_{whole}_multiple_choice" if self.split == "default" else whole

    @property
    def expected_file(self) -> str:
        """The name that a file of its evaluated split may have."""
        kind = "json" if self.split == "default" else "jsonl"
        return f"{self.stem}{_ENDS[self.split][0]}.{kind}"

    def find_records(self, folders: Sequence[str]) -> dict[str, list[Path]]:
        """Return its files by split: of the one that is evaluated, and of "train" if there are
        some; nothing, if there are none of the evaluated one. The first folder that has some
        counts; BIG-bench's may be parts (``key_value_maps__extends.json``)."""
        places = [Path(folder, inner) for folder in folders for inner in (".", "bigbench")]
        found: dict[str, list[Path]] = {}
        for split in dict.fromkeys((self.split, "train")):
            for place in places:
                files = [path for end in _ENDS[split] for path in place.glob(f"{self.stem}{end}.*")]
                parts = place.glob(f"{self.stem}__*") if split == "default" else ()
                if chosen := sorted(files)[:1] or sorted(parts):
                    found.setdefault(split, chosen)
        return found if self.split in found else {}


# Starts of the names of files, by the split that is evaluated.
_STEMS = {
    "validation": ("multirc", "wic", "qnli", "copa", "wnli", "hellaswag"),
    "test": ("arc_easy", "arc_challenge", "openbookqa"),
    "default": (
        *("key_value_maps", "mathematical_induction", "disambiguation_qa"),
        *("logical_deduction__three_objects", "logical_deduction__five_objects"),
        *("implicit_relations", "reasoning_about_colored_objects"),
    ),
}
_ALL = [EvalTask(stem=stem, split=split) for split, stems in _STEMS.items() for stem in stems]
TASKS = {task.name: task for task in _ALL}
"""The paper's tasks by name."""


def find_tasks(names: Sequence[str]) -> list[EvalTask]:
    """Return the tasks of some names, each once; ``paper`` stands for all of them."""
    asked = [each for name in names for each in (TASKS if name == "paper" else [name])]
    for name in asked:
        if name not in TASKS:
            raise unknown_name("task", name, [*TASKS, "paper"])
    return [TASKS[name] for name in dict.fromkeys(asked)]


def read_rows(path: Path) -> list[Doc]:
    """Return the objects of a file, plain or compressed (.xz, .gz, .bz2): of JSON lines, of a .tsv
    with a header, whose quotation marks are text, or of one JSON object over all lines."""
    with fsspec.open(path, "rt", encoding="utf-8-sig", compression="infer", newline="") as file:
        if ".tsv" in path.suffixes:
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        text = file.read()
    try:
        if ".json" in path.suffixes:
            return [json.loads(text)]
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path} is not JSON, an object a line: {error}") from error


def read_docs(paths: Sequence[Path]) -> list[Doc]:
    """Return the records of files in the fields that a task's definition reads."""
    docs = list[Doc]()
    for row in (row for path in paths for row in read_rows(path)):
        # In place of BIG-bench's JSON its examples, each with the fields of the whole.
        for doc in ({**row, **each} for each in row.get("examples", [{}])):
            forms = (make for field, make in _PUBLISHED.items() if field in doc)
            docs.append(next(forms, _labelled)(doc))
    return docs


def _labelled(row: Doc) -> Doc:
    """Return a record of the hub's fields; a table has its label as a text, or as QNLI's names."""
    if "label" not in row:
        return row
    names: Mapping[Any, Any] = {"entailment": 0, "not_entailment": 1}
    return {**row, "label": int(names.get(row["label"], row["label"]))}


def _arc(row: Doc) -> Doc:
    question = row["query"].removeprefix("Question: ")
    return {"question": question, **_lettered(row["choices"], _LETTERS[int(row["gold"])])}


def _openbookqa(row: Doc) -> Doc:
    # "(A) one (B) two": a letter out of its order is text.
    choices = [row["Choices"]]
    for letter in _LETTERS:
        choices[-1:] = choices[-1].split(f"({letter}) ", 1)
    lettered = _lettered([choice.strip() for choice in choices[1:]], row["Answer Key"].strip())
    return {"question_stem": row["Question Stem"], **lettered}


def _lettered(choices: Sequence[str], key: str) -> Doc:
    labels = list(_LETTERS[: len(choices)])
    return {"choices": {"text": list(choices), "label": labels}, "answerKey": key}


def _hellaswag(row: Doc) -> Doc:
    # Where the hub's fields are not beside it, it is not known where ctx_b begins, whose first
    # letter lm-eval writes large.
    activity, _, context = row["ctx"].partition(": ")
    return _labelled({"activity_label": activity, "ctx_a": context, "ctx_b": "", **row})


def _bigbench(row: Doc) -> Doc:
    """Return an example of BIG-bench's own JSON as the hub has it.

    {"task_prefix": ..., "examples": [{"input": ..., "target_scores": {"yes": 1, "no": 0}}], ...}

    The prompt is made by the defaults of BIG-bench's documentation, which shuffles choices that are
    shown; their order here does not depend on which is right. Ends have no white space, as lm-eval
    puts a space before an answer. The right answers are those of the highest score.
    """
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


# By a field that the hub's records do not have, or not alone.
_PUBLISHED: Mapping[str, Callable[[Doc], Doc]] = {
    "query": _arc,
    "Question Stem": _openbookqa,
    "ctx": _hellaswag,
    "target_scores": _bigbench,
}
