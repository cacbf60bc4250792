"""Definitions of evaluation tasks for lm-eval, of local records or of a data set on the hub.

A definition is the YAML file of a task with what it reads filled in:

    hub       as it is
    records   dataset_path: json, and data_files by split
              few-shot examples from the split train if there are records of it, as in lm-eval;
              otherwise from the evaluated items, without the item that is asked about

lm-eval leaves out the asked item only if ``fewshot_split`` names the split ``test_split``, so both
do. (Its own definitions of BIG-bench tasks name no ``fewshot_split``, and may show an item as its
own example.)
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from layermem.evals.own_definitions import read_own_definition
from layermem.evals.task_catalog import EvalTask
from layermem.evals.task_records import Doc
from layermem.runs import write_atomically

Definition = dict[str, Any]


def read_definition(task: EvalTask) -> Definition:
    """Return the definition as its file has it, which reads a data set of the hub or the user's."""
    if task.file is not None:
        return read_own_definition(task.file)
    definition: Definition = yaml.safe_load(task.definition.read_text(encoding="utf-8"))
    return definition


def data_set(task: EvalTask) -> str:
    """Return the name of the data set that a task's definition reads; empty: it names none."""
    definition = read_definition(task)
    return " ".join(
        definition[name] for name in ("dataset_path", "dataset_name") if definition.get(name)
    )


def local_definition(task: EvalTask, files: Mapping[str, Path]) -> Definition:
    """Return the definition that reads JSON lines, of each split one file."""
    definition = read_definition(task)
    for name in ("dataset_name", "training_split", "validation_split", "test_split"):
        definition.pop(name, None)
    definition["dataset_path"] = "json"
    definition["dataset_kwargs"] = {
        "data_files": {split: str(path.resolve()) for split, path in files.items()}
    }
    if "train" in files:
        definition["training_split"] = "train"
        # As in lm-eval's own definition: the draw of examples depends on which of the two it is.
        definition[f"{task.split}_split"] = task.split
    else:
        definition["test_split"] = definition["fewshot_split"] = task.split
    return definition


def write_docs(docs: Mapping[str, list[Doc]], task: EvalTask, folder: Path) -> dict[str, Path]:
    """Write records as JSON lines, a file for each split, and return the files by split.

    Their names hold a digest of what is in them, so that no other data is ever read in their place.
    """
    files = {}
    for split, records in docs.items():
        text = "".join(json.dumps(doc) + "\n" for doc in records)
        files[split] = folder / f"{task.name}-{split}-{digest(text)[:16]}.jsonl"
        if not files[split].exists():
            write_atomically(files[split], text)
    return files


def check_examples(
    name: str, items: Sequence[Doc], pool: Sequence[Doc], shots: int, *, apart: bool
) -> None:
    """Raise if few-shot examples of a task's items are too few, or are among the items.

    ``pool``: what examples are drawn from. ``apart``: whether it holds none of the items.
    """
    if not shots:
        return
    counts = Counter(json.dumps(doc, sort_keys=True, default=str) for doc in pool)
    of_items = {json.dumps(doc, sort_keys=True, default=str) for doc in items}
    if apart and (shared := sum(counts[item] for item in of_items)):
        raise ValueError(
            f"{shared} of the {len(pool)} records of {name} that examples are drawn from are among "
            "those that are evaluated; leave them out of either"
        )
    # One more than is shown is drawn, in case one of them is the item itself.
    equal = max((counts[item] for item in of_items), default=0)
    if len(pool) - max(equal, 1) < shots:
        why = f": an item is equal to {equal} of them, none of which it is shown" * (equal > 1)
        raise ValueError(
            f"{name} has {len(pool)} records to draw examples from, too few for {shots} shots{why}"
            "; give more different records or fewer --shots"
        )


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
