"""Evaluation tasks whose items are at hand, in local records or in a data set of the hub.

A task's definition is read as it is, or filled in to read local records. Examples are then of the
split train if there are records of it, as in lm-eval; otherwise of the evaluated items, without the
item that is asked about. (lm-eval leaves it out only if ``fewshot_split`` names the split
``test_split``; its own definitions of BIG-bench tasks name none.)
"""

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layermem.models.files import write_atomically
from layermem_bench.evals.task_catalog import Definition, EvalTask, chosen_tasks, examples_split
from layermem_bench.evals.task_records import Doc, Files, expected_file, find_records, read_docs
from layermem_bench.results.eval import EvalOptions

# What a definition calls files of this machine.
_LOCAL = ("json", "csv", "parquet", "text")


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task whose items are at hand."""

    task: EvalTask
    definition: Definition
    """Its definition for lm-eval, with its data filled in."""
    source: str
    """Where its items are from."""
    few_shot_source: str
    """Where its few-shot examples are from."""

    @property
    def version(self) -> str:
        """Version of the definition."""
        return str((self.definition.get("metadata") or {}).get("version", "none"))

    @property
    def definition_digest(self) -> str:
        """Digest of the definition without the places of files."""
        kept = {name: v for name, v in self.definition.items() if name != "dataset_kwargs"}
        return digest(json.dumps(kept, sort_keys=True))

    @cached_property
    def loaded(self) -> Any:
        """lm-eval's task."""
        from layermem_bench.evals.harness import load_task

        try:
            return load_task(self.definition)
        # What cannot be fetched ends in errors of several packages.
        except Exception as error:
            if self.definition["dataset_path"] == "json" and self.task.file is None:
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{_missing(self.task)} ({type(error).__name__}: {reason})") from error

    @cached_property
    def records_digest(self) -> str:
        """Digest of the items and of what few-shot examples are drawn from."""
        docs = [*self.loaded.eval_docs, *self.loaded.fewshot_docs()]
        return digest("\n".join(map(_as_json, docs)))


def prepare_tasks(names: Sequence[str], options: EvalOptions, folder: Path) -> list[PreparedTask]:
    """Return the tasks of these names; their records are checked and written into ``folder``."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-eval is not installed; it is in the extra eval: pip install layermem[eval]"
        )
    tasks = chosen_tasks(names)
    files = find_records(options.records, tasks)
    for task in tasks:
        if task.name not in files and not task.data_set():
            raise ValueError(_missing(task))
    prepared = [
        _with_records(task, files[task.name], options.shots, folder)
        if task.name in files
        else _of_data_set(task)
        for task in tasks
    ]
    for each in prepared:
        # Fetched now, so that a hub that cannot be reached is said before a model is loaded.
        _ = each.records_digest
        if each.task.name not in files:
            definition, split = each.definition, each.task.split
            # Data sets of the hub have duplicates of their own.
            apart = definition["dataset_path"] in _LOCAL and examples_split(definition) != split
            items, pool = list(each.loaded.eval_docs), each.loaded.fewshot_docs
            if options.shots:
                check_examples(each.task.name, items, list(pool()), options.shots, apart=apart)
    return prepared


def _of_data_set(task: EvalTask) -> PreparedTask:
    """Return a task whose items are those of a data set of the hub, or of a user's definition."""
    definition = task.definition()
    source = f"{task.data_set()} ({f'by {task.file.name}' if task.file else 'hub'}), split "
    shown = examples_split(definition)
    return PreparedTask(
        task=task,
        definition=definition,
        source=source + task.split,
        few_shot_source=source + shown if shown else "the definition itself",
    )


def _with_records(task: EvalTask, files: Files, shots: int, folder: Path) -> PreparedTask:
    """Return a task whose items are those of files."""
    docs = {split: read_docs(task, paths) for split, paths in files.items()}
    items = docs[task.split]
    check_examples(task.name, items, docs.get("train", items), shots, apart="train" in docs)
    names = {split: ", ".join(path.name for path in paths) for split, paths in files.items()}
    return PreparedTask(
        task=task,
        definition=local_definition(task, write_docs(docs, task, folder)),
        source=names[task.split],
        few_shot_source=names.get("train", "the other evaluated items"),
    )


def local_definition(task: EvalTask, files: Mapping[str, Path]) -> Definition:
    """Return the definition that reads JSON lines, of each split one file."""
    definition = task.definition()
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
    counts, of_items = Counter(map(_as_json, pool)), set(map(_as_json, items))
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


def _missing(task: EvalTask) -> str:
    """Return what to say where a task's items are not to be had."""
    data, name = task.data_set(), expected_file(task)
    if task.file is not None:
        return f"{task.name} reads the data set {data}, as {task.file} says, which cannot be loaded"
    needs = (
        f"{task.name} needs the data set {data} of the hub, which cannot be fetched"
        if data
        else f"{task.name} needs local records: the hub has none of it"
    )
    return f"{needs}; give its records: --records {task.name}={name}, or a folder with {name}"


def _as_json(doc: Doc) -> str:
    return json.dumps(doc, sort_keys=True, default=str)


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
