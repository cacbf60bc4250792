"""The tasks of an evaluation with their records, ready to be asked: from files, or from the hub.

All are prepared before a model is loaded, so that what is missing or damaged is said at once.
"""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layermem.evals.lm_eval_definitions import (
    Definition,
    check_examples,
    data_set,
    digest,
    local_definition,
    read_definition,
    write_docs,
)
from layermem.evals.own_definitions import examples_split, is_definition, own_task
from layermem.evals.record_files import Files, expected_file, find_records, read_docs
from layermem.evals.task_catalog import EvalTask, chosen_tasks, find_task, short_name
from layermem.report.page import Table
from layermem.results.eval import EvalOptions

# What a definition calls files of this machine.
_LOCAL = ("json", "csv", "parquet", "text")


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task whose items are at hand."""

    task: EvalTask
    """What it is."""
    definition: Definition
    """Its definition for lm-eval, with its data filled in."""
    definition_digest: str
    """Digest of the definition without the places of files."""
    source: str
    """Where its items are from."""
    few_shot_source: str
    """Where its few-shot examples are from."""

    @property
    def version(self) -> str:
        """Version of the definition."""
        return str((self.definition.get("metadata") or {}).get("version", "none"))

    @cached_property
    def loaded(self) -> Any:
        """lm-eval's task."""
        from layermem.evals.harness import load_task

        if self.definition["dataset_path"] == "json" and self.task.file is None:
            return load_task(self.definition)
        try:
            return load_task(self.definition)
        # What cannot be fetched ends in errors of several packages.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{_missing(self.task)} ({type(error).__name__}: {reason})") from error

    @cached_property
    def records_digest(self) -> str:
        """Digest of the items and of what few-shot examples are drawn from."""
        from layermem.evals.harness import docs_digest

        return docs_digest(self.loaded)


def prepare_tasks(names: Sequence[str], options: EvalOptions, folder: Path) -> list[PreparedTask]:
    """Return the tasks of these names; their records are checked and written into ``folder``."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ValueError(
            "lm-eval is not installed; it is in the extra eval: pip install layermem[eval]"
        )
    tasks = chosen_tasks(
        names, lambda name: own_task(name) if is_definition(name) else find_task(name)
    )
    files = find_records(options.records, tasks)
    for task in tasks:
        if task.name not in files and not data_set(task):
            raise ValueError(_missing(task))
    prepared = [_prepare(task, files.get(task.name), options.shots, folder) for task in tasks]
    for each in prepared:
        # Fetched now, so that a hub that cannot be reached is said before a model is loaded.
        _ = each.records_digest
        if each.task.name not in files:
            _check_examples(each, options.shots)
    return prepared


def _prepare(task: EvalTask, files: Files | None, shots: int, folder: Path) -> PreparedTask:
    if files is None:
        definition = read_definition(task)
        place = f"by {task.file.name}" if task.file else "hub"
        source, shown = f"{data_set(task)} ({place}), split ", examples_split(definition)
        return PreparedTask(
            task=task,
            definition=definition,
            definition_digest=_digest(definition),
            source=source + task.split,
            few_shot_source=source + shown if shown else "the definition itself",
        )
    docs = {split: read_docs(task, paths) for split, paths in files.items()}
    items = docs[task.split]
    check_examples(task.name, items, docs.get("train", items), shots, apart="train" in docs)
    definition = local_definition(task, write_docs(docs, task, folder))
    names = {split: ", ".join(path.name for path in paths) for split, paths in files.items()}
    return PreparedTask(
        task=task,
        definition=definition,
        definition_digest=_digest(definition),
        source=names[task.split],
        few_shot_source=names.get("train", "the other evaluated items"),
    )


def _check_examples(prepared: PreparedTask, shots: int) -> None:
    if not shots:
        return
    definition, split = prepared.definition, prepared.task.split
    # Data sets of the hub have duplicates of their own.
    apart = definition["dataset_path"] in _LOCAL and examples_split(definition) != split
    loaded = prepared.loaded
    pool = list(loaded.fewshot_docs())
    check_examples(prepared.task.name, list(loaded.eval_docs), pool, shots, apart=apart)


def _digest(definition: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in definition.items() if name != "dataset_kwargs"}
    return digest(json.dumps(kept, sort_keys=True))


def _missing(task: EvalTask) -> str:
    """Return what to say where a task's items are not to be had."""
    data = data_set(task)
    if task.file is not None:
        return f"{task.name} reads the data set {data}, as {task.file} says, which cannot be loaded"
    needs = (
        f"{task.name} needs the data set {data} of the hub, which cannot be fetched"
        if data
        else f"{task.name} needs local records: the hub has none of it"
    )
    name = expected_file(task)
    return f"{needs}; give its records: --records {task.name}={name}, or a folder with {name}"


def list_tasks(places: Sequence[str]) -> Table:
    """Return the table of the paper's tasks, with the records of them that lie in some places."""
    tasks = chosen_tasks(["paper"])
    files = find_records(places, tasks)
    rows = [
        [
            short_name(task.name),
            task.tables,
            f"{task.chance:.1%}" if task.chance else "varies",
            *(f"{percent:.2f}" for percent in task.paper.values()),
            ", ".join(path.name for paths in files[task.name].values() for path in paths)
            if task.name in files
            else f"none; would be {expected_file(task)}",
            f"hub: {data}" if (data := data_set(task)) else "not on the hub",
        ]
        for task in tasks
    ]
    return Table(
        header=["task", "paper's table", "chance", *tasks[0].paper, "records", "else"],
        rows=rows,
        caption="Accuracies of the paper's 1B models in percent, 3-shot. A task with records runs "
        "offline; one without is fetched from the hub.",
    )
