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
from pathlib import Path
from typing import Any

from layermem_base.files import write_atomically
from layermem_bench.evals.task_catalog import Definition, EvalTask, chosen_tasks, examples_split
from layermem_bench.evals.task_records import Doc, Files, expected_file, find_records, read_docs
from layermem_bench.results.eval import EvalOptions

# What a definition calls files of this machine.
_LOCAL = ("json", "csv", "parquet", "text")


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task whose items are at hand."""

    task: EvalTask
    loaded: Any
    """lm-eval's task."""
    source: str
    """Where its items are from."""
    few_shot_source: str
    """Where its few-shot examples are from."""
    version: str
    """Version of its definition."""
    definition: str
    """Digest of its definition without the places of files."""
    records: str
    """Digest of the items and of what few-shot examples are drawn from."""


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
    sources = [
        _of_files(task, files[task.name], folder) if task.name in files else _of_data_set(task)
        for task in tasks
    ]
    # Fetched now, so that a hub that cannot be reached is said before a model is loaded.
    return [
        _load(task, *source, options.shots) for task, source in zip(tasks, sources, strict=True)
    ]


def _of_data_set(task: EvalTask) -> tuple[Definition, str, str]:
    """Return a definition as it is, and where its items and its few-shot examples are from."""
    definition = task.definition()
    source = f"{task.data_set()} ({f'by {task.file.name}' if task.file else 'hub'}), split "
    shown = examples_split(definition)
    return definition, source + task.split, source + shown if shown else "the definition itself"


def _of_files(task: EvalTask, files: Files, folder: Path) -> tuple[Definition, str, str]:
    """Return a definition that reads files, and where its items and few-shot examples are from."""
    docs = {split: read_docs(task, paths) for split, paths in files.items()}
    names = {split: ", ".join(path.name for path in paths) for split, paths in files.items()}
    definition = local_definition(task, write_docs(docs, task, folder))
    return definition, names[task.split], names.get("train", "the other evaluated items")


def _load(
    task: EvalTask, definition: Definition, source: str, few_shot_source: str, shots: int
) -> PreparedTask:
    """Have lm-eval read a task's items; raise if few-shot examples of them are not to be had."""
    from layermem_bench.evals.harness import load_task

    try:
        loaded = load_task(definition)
    # What cannot be fetched ends in errors of several packages.
    except Exception as error:
        if definition["dataset_path"] == "json" and task.file is None:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{_missing(task)} ({type(error).__name__}: {reason})") from error
    items, pool = (list(map(_as_json, docs)) for docs in (loaded.eval_docs, loaded.fewshot_docs()))
    if shots:
        # Data sets of the hub have duplicates of their own.
        apart = definition["dataset_path"] in _LOCAL and examples_split(definition) != task.split
        _check_examples(task.name, items, pool, shots, apart=apart)
    without_places = {name: v for name, v in definition.items() if name != "dataset_kwargs"}
    return PreparedTask(
        task=task,
        loaded=loaded,
        source=source,
        few_shot_source=few_shot_source,
        version=str((definition.get("metadata") or {}).get("version", "none")),
        definition=digest(json.dumps(without_places, sort_keys=True)),
        records=digest(json.dumps([items, pool])),
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


def _check_examples(
    name: str, items: Sequence[str], pool: Sequence[str], shots: int, *, apart: bool
) -> None:
    """Raise if few-shot examples of a task's items are too few, or are among the items.

    ``pool``: what examples are drawn from. ``apart``: whether it should hold none of the items.
    """
    counts, of_items = Counter(pool), set(items)
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
    return hashlib.sha256(text.encode()).hexdigest()
