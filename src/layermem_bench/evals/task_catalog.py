"""The evaluation tasks of the paper, by lm-eval's names.

    Table 1       MultiRC WiC QNLI ARC-E ARC-C, key-value maps, induction, logical deduction of 3
    Tables 4-6    GLUE and SuperGLUE, questions, BIG-bench, all 3-shot with models of 1B

The prompts of each are in ``lm_eval_tasks/NAME.yaml``. BIG-bench's names may be shortened:
``implicit_relations`` is ``bigbench_implicit_relations_multiple_choice``.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFINITIONS = Path(__file__).parent / "lm_eval_tasks"
"""Folder of the definitions of tasks."""
PAPER = ("LLaMA", "HC", "LIMe")
"""The paper's models; HC: Hyper-Connections."""
_BIGBENCH = "bigbench_{}_multiple_choice"


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """A task of the paper's tables."""

    name: str
    """Its name in lm-eval."""
    stem: str
    """Start of the names of its files of records."""
    schema: str
    """Kind of its records: a name of ``task_records.SCHEMAS``."""
    split: str
    """Split that is evaluated: "test", "validation", or "default" where there is no other."""
    paper: tuple[float, ...]
    """The paper's accuracies in percent, of the models ``PAPER``."""

    def definition(self) -> dict[str, Any]:
        """Return the fields of the definition."""
        import yaml

        return dict(yaml.safe_load((DEFINITIONS / f"{self.name}.yaml").read_text(encoding="utf-8")))

    @property
    def data_set(self) -> str:
        """The name of the data set that the definition reads; empty: it is not on the hub."""
        definition = self.definition()
        names = (definition.get(name) for name in ("dataset_path", "dataset_name"))
        return " ".join(name for name in names if name)


# Stem of the files, kind of record, split that is evaluated, and the paper's accuracies.
_TASKS = (
    ("multirc", "multirc", "validation", 43.24, 54.34, 56.15),
    ("wic", "wic", "validation", 50.00, 49.72, 50.44),
    ("qnli", "glue", "validation", 49.49, 49.43, 51.43),
    ("arc_easy", "arc", "test", 70.45, 71.15, 71.15),
    ("arc_challenge", "arc", "test", 38.70, 37.63, 39.30),
    ("key_value_maps", "bigbench", "default", 45.94, 51.68, 55.64),
    ("mathematical_induction", "bigbench", "default", 54.20, 51.59, 55.36),
    ("logical_deduction__three_objects", "bigbench", "default", 33.60, 33.87, 34.47),
    ("copa", "copa", "validation", 75.80, 74.00, 75.20),
    ("wnli", "glue", "validation", 51.27, 56.34, 56.06),
    ("hellaswag", "hellaswag", "validation", 52.55, 54.04, 52.85),
    ("openbookqa", "openbookqa", "test", 37.68, 40.08, 39.68),
    ("disambiguation_qa", "bigbench", "default", 30.16, 26.20, 30.23),
    ("logical_deduction__five_objects", "bigbench", "default", 19.44, 19.92, 20.72),
    ("implicit_relations", "bigbench", "default", 12.94, 15.29, 14.82),
    ("reasoning_about_colored_objects", "bigbench", "default", 16.97, 18.48, 17.39),
)


def _task(stem: str, schema: str, split: str, *paper: float) -> EvalTask:
    name = _BIGBENCH.format(stem.replace("__", "_")) if schema == "bigbench" else stem
    return EvalTask(name=name, stem=stem, schema=schema, split=split, paper=paper)


TASKS = {task.name: task for task in (_task(*row) for row in _TASKS)}
"""The paper's tasks by name, in the order of its tables."""


def find_tasks(names: Sequence[str]) -> list[EvalTask]:
    """Return the tasks of some names, each once; ``paper`` stands for all of them."""
    parts = [part for name in names for part in name.split(",") if part]
    tasks = [TASKS.values() if name == "paper" else [find_task(name)] for name in parts]
    return list(dict.fromkeys(task for of_name in tasks for task in of_name))


def find_task(name: str) -> EvalTask:
    """Return the task of a name, full or shortened; raise, with the nearest name, if none has."""
    task = TASKS.get(name) or TASKS.get(_BIGBENCH.format(name))
    if task is None:
        close = difflib.get_close_matches(name, [*TASKS, *map(short_name, TASKS), "paper"], n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are paper, {', '.join(TASKS)}"
        raise ValueError(f"unknown task {name!r}; {hint}; those of plugins need --plugin MODULE")
    return task


def short_name(task: str) -> str:
    """Return the name of a task without what all of BIG-bench have in theirs."""
    prefix, _, suffix = _BIGBENCH.partition("{}")
    return task.removeprefix(prefix).removesuffix(suffix)
