"""Evaluation tasks of a user's own: files as lm-eval's definitions of tasks are (YAML).

    layermem eval CHECKPOINT --tasks qnli,my_task.yaml

A file defines one task of multiple choice, scored by acc. It may include others, as in lm-eval. It
is data: Python code (``!function``) is refused.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from layermem.evals.task_catalog import TASKS, EvalTask

_SUFFIXES = (".yaml", ".yml")
_NAME = re.compile(r"[\w.-]+")
# How many files may include each other, one after the other.
_DEEPEST = 8


def is_definition(name: str) -> bool:
    """Return whether a name of ``--tasks`` is that of a file."""
    return name.endswith(_SUFFIXES)


def own_task(name: str) -> EvalTask:
    """Return the task of a definition's file; raise if it cannot be asked as the paper's are."""
    path = Path(name).expanduser()
    definition = _read(path, _DEEPEST)
    for field in ("task", "dataset_path"):
        if not isinstance(definition.get(field), str):
            raise ValueError(
                f"{path} has no {field}; --tasks takes the definition of one task, not of a group"
            )
    task_name = definition["task"]
    if task_name in TASKS:
        raise ValueError(
            f"{path} calls its task {task_name!r}, as a task of the paper is; call it otherwise"
        )
    if not _NAME.fullmatch(task_name):
        raise ValueError(
            f"{path} calls its task {task_name!r}; give it letters, digits, '_', '-' and '.'"
        )
    if (kind := definition.get("output_type")) != "multiple_choice":
        raise ValueError(
            f"{path} is of output_type {kind!r}; only multiple_choice is asked here, others by "
            "lm-eval's own command"
        )
    metrics = [_metric(entry) for entry in definition.get("metric_list") or ({"metric": "acc"},)]
    if "acc" not in metrics:
        raise ValueError(f"{path} is scored by {', '.join(metrics)}; its metric_list needs acc")
    return EvalTask(
        name=task_name,
        schema="",
        split=_evaluated_split(path, definition),
        chance=0.0,
        tables="",
        paper={},
        stem=task_name,
        file=path,
    )


def read_own_definition(path: Path) -> dict[str, Any]:
    """Return a definition with those that it includes; no item is an example of itself."""
    definition = _read(path, _DEEPEST)
    split = _evaluated_split(path, definition)
    if examples_split(definition) == split:
        # lm-eval leaves out the item that is asked about only where both fields name its split.
        definition |= {"test_split": split, "fewshot_split": split}
        definition.pop("validation_split", None)
        if "fewshot_config" in definition:
            definition["fewshot_config"] = {**definition["fewshot_config"], "split": split}
    return definition


def examples_split(definition: Mapping[str, Any]) -> str | None:
    """Return the split of a definition's few-shot examples; None: they stand in the definition."""
    config = definition.get("fewshot_config") or {}
    if split := config.get("split", definition.get("fewshot_split")):
        return str(split)
    if config.get("samples") is not None:
        return None
    order = ("training_split", "validation_split", "test_split")
    return next((str(definition[name]) for name in order if definition.get(name)), None)


def _read(path: Path, deepest: int) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; --tasks takes names, and files (.yaml)")
    try:
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        if "!function" in str(error):
            raise ValueError(
                f"{path} names Python code (!function), which is not run from a file; write it as "
                "a template"
            ) from error
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(definition, dict):
        raise ValueError(f"{path} must hold the fields of a task, got {definition!r:.60}")
    included = definition.pop("include", None)
    for name in [included] if isinstance(included, str) else included or []:
        if not deepest:
            raise ValueError(f"{path} is one of more than {_DEEPEST} files that include each other")
        definition = {**_read(path.parent / name, deepest - 1), **definition}
    return definition


def _evaluated_split(path: Path, definition: Mapping[str, Any]) -> str:
    """Return the split that lm-eval evaluates."""
    split = definition.get("test_split") or definition.get("validation_split")
    if not split or not isinstance(split, str):
        raise ValueError(f"{path} names no test_split and no validation_split to evaluate")
    return split


def _metric(entry: Any) -> str:
    return str(entry.get("metric") if isinstance(entry, Mapping) else entry)
