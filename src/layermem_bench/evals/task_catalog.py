"""The evaluation tasks of the paper, by lm-eval's names, and those of a user's own definitions.

    Table 1       MultiRC WiC QNLI ARC-E ARC-C, key-value maps, induction, logical deduction of 3
    Tables 4-6    GLUE and SuperGLUE, questions, BIG-bench, all 3-shot with models of 1B

The prompts of each are in ``lm_eval_tasks/NAME.yaml``. BIG-bench's names may be shortened:
``implicit_relations`` is ``bigbench_implicit_relations_multiple_choice``.

    layermem eval CHECKPOINT --tasks qnli,my_task.yaml

A user's file (YAML) defines one task of multiple choice, scored by acc, as lm-eval's definitions
do. It may include others, as in lm-eval. It is data: Python code (``!function``) is refused.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

PAPER = "paper"
"""Stands for all tasks of the paper."""
DEFINITIONS = Path(__file__).parent / "lm_eval_tasks"
"""Folder of the definitions of tasks."""
Definition = dict[str, Any]
"""Fields of a task's YAML file."""
_BIGBENCH = "bigbench_{}_multiple_choice"
# Of a split, the ends that names of its files may have.
_ENDS = {
    "train": ("_train",),
    "validation": ("_validation", "_valid", "_val", "_dev"),
    "test": ("_test",),
}
# How many files may include each other, one after the other.
_DEEPEST = 8


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """A task of the paper's tables, or of a user's own file."""

    name: str
    """Its name in lm-eval, where it has one."""
    schema: str = ""
    """Kind of its records: a name of ``task_records.SCHEMAS``; empty: of a user's own file."""
    split: str
    """Split that is evaluated: "test", "validation", or "default" where there is no other."""
    chance: float = 0.0
    """Share that a guess has right; 0: it differs from item to item."""
    tables: str = ""
    """Tables of the paper that it is in."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's accuracies in percent: "LLaMA", "HC" (Hyper-Connections) and "LIMe"."""
    stem: str
    """Start of the names of its files."""
    file: Path | None = None
    """A user's own definition; None: it is one of the paper's."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that files may be given for."""
        return ("default",) if self.split == "default" else ("train", self.split)

    def stems(self, split: str) -> tuple[str, ...]:
        """Return what the name of a file of a split may be before its first dot."""
        return tuple(self.stem + end for end in _ENDS.get(split, ("",)))

    def definition(self) -> Definition:
        """Return the definition, in which no item is an example of itself."""
        definition = _read(self.file or DEFINITIONS / f"{self.name}.yaml", _DEEPEST)
        if self.file is not None and examples_split(definition) == self.split:
            # lm-eval leaves out the item that is asked about only where both fields name its split.
            definition |= {"test_split": self.split, "fewshot_split": self.split}
            definition.pop("validation_split", None)
            if "fewshot_config" in definition:
                definition["fewshot_config"] |= {"split": self.split}
        return definition

    def data_set(self) -> str:
        """Return the name of the data set that the definition reads; empty: it names none."""
        definition = self.definition()
        names = (definition.get(name) for name in ("dataset_path", "dataset_name"))
        return " ".join(name for name in names if name)


def _task(
    schema: str, stem: str, split: str, chance: float, tables: str, *paper: float
) -> EvalTask:
    return EvalTask(
        name=_BIGBENCH.format(stem.replace("__", "_")) if schema == "bigbench" else stem,
        schema=schema,
        split=split,
        chance=chance,
        tables=tables,
        paper=dict(zip(("LLaMA", "HC", "LIMe"), paper, strict=True)),
        stem=stem,
    )


_bigbench = partial(_task, "bigbench")
_ALL = (
    _task("multirc", "multirc", "validation", 1 / 2, "1, 4", 43.24, 54.34, 56.15),
    _task("wic", "wic", "validation", 1 / 2, "1, 4", 50.00, 49.72, 50.44),
    _task("qnli", "qnli", "validation", 1 / 2, "1, 4", 49.49, 49.43, 51.43),
    _task("arc", "arc_easy", "test", 1 / 4, "1, 5", 70.45, 71.15, 71.15),
    _task("arc", "arc_challenge", "test", 1 / 4, "1, 5", 38.70, 37.63, 39.30),
    _bigbench("key_value_maps", "default", 1 / 2, "1, 6", 45.94, 51.68, 55.64),
    _bigbench("mathematical_induction", "default", 1 / 2, "1, 6", 54.20, 51.59, 55.36),
    _bigbench("logical_deduction__three_objects", "default", 1 / 3, "1, 6", 33.60, 33.87, 34.47),
    _task("copa", "copa", "validation", 1 / 2, "4", 75.80, 74.00, 75.20),
    _task("wnli", "wnli", "validation", 1 / 2, "4", 51.27, 56.34, 56.06),
    _task("hellaswag", "hellaswag", "validation", 1 / 4, "5", 52.55, 54.04, 52.85),
    _task("openbookqa", "openbookqa", "test", 1 / 4, "5", 37.68, 40.08, 39.68),
    _bigbench("disambiguation_qa", "default", 1 / 3, "6", 30.16, 26.20, 30.23),
    _bigbench("logical_deduction__five_objects", "default", 1 / 5, "6", 19.44, 19.92, 20.72),
    _bigbench("implicit_relations", "default", 1 / 25, "6", 12.94, 15.29, 14.82),
    _bigbench("reasoning_about_colored_objects", "default", 0.0, "6", 16.97, 18.48, 17.39),
)
TASKS: Mapping[str, EvalTask] = {task.name: task for task in _ALL}
"""The paper's tasks by name, in the order of its tables."""


def chosen_tasks(names: Sequence[str]) -> list[EvalTask]:
    """Return the tasks of some names or files, each once; ``paper`` stands for all of the paper."""
    given = [part.strip() for name in names for part in name.split(",") if part.strip()]
    if not given:
        raise ValueError(
            f"name tasks: --tasks {PAPER}, some of {', '.join(TASKS)}, or a definition (my.yaml)"
        )
    chosen: dict[str, EvalTask] = {}
    for name in given:
        of_file = name.endswith((".yaml", ".yml"))
        tasks = TASKS.values() if name == PAPER else [(own_task if of_file else find_task)(name)]
        for task in tasks:
            other = chosen.setdefault(task.name, task)
            if other.file != task.file:
                raise ValueError(f"{other.file} and {task.file} both call their task {task.name}")
    return list(chosen.values())


def find_task(name: str) -> EvalTask:
    """Return the task of a name, full or shortened; raise, with the nearest name, if none has."""
    task = TASKS.get(name) or TASKS.get(_BIGBENCH.format(name))
    if task is None:
        close = difflib.get_close_matches(name, [*TASKS, *map(short_name, TASKS), PAPER], n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {PAPER}, {', '.join(TASKS)}."
        hint += " Other tasks are named by the file of their definition (my_task.yaml); those of "
        hint += "plugins need --plugin MODULE"
        raise ValueError(f"unknown task {name!r}; {hint}")
    return task


def short_name(task: str) -> str:
    """Return the name of a task without what all of BIG-bench have in theirs."""
    prefix, _, suffix = _BIGBENCH.partition("{}")
    return task.removeprefix(prefix).removesuffix(suffix)


def own_task(name: str) -> EvalTask:
    """Return the task of a user's file; raise if it cannot be asked as the paper's are."""
    path = Path(name).expanduser()
    definition = _read(path, _DEEPEST)
    for needed in ("task", "dataset_path"):
        if not isinstance(definition.get(needed), str):
            raise ValueError(
                f"{path} has no {needed}; --tasks takes the definition of one task, not of a group"
            )
    task = definition["task"]
    if task in TASKS:
        raise ValueError(
            f"{path} calls its task {task!r}, as a task of the paper is; call it otherwise"
        )
    if not re.fullmatch(r"[\w.-]+", task):
        raise ValueError(
            f"{path} calls its task {task!r}; give it letters, digits, '_', '-' and '.'"
        )
    if (kind := definition.get("output_type")) != "multiple_choice":
        raise ValueError(
            f"{path} is of output_type {kind!r}; only multiple_choice is asked here, others by "
            "lm-eval's own command"
        )
    entries = definition.get("metric_list") or ({"metric": "acc"},)
    metrics = [str(e.get("metric") if isinstance(e, Mapping) else e) for e in entries]
    if "acc" not in metrics:
        raise ValueError(f"{path} is scored by {', '.join(metrics)}; its metric_list needs acc")
    split = definition.get("test_split") or definition.get("validation_split")
    if not split or not isinstance(split, str):
        raise ValueError(f"{path} names no test_split and no validation_split to evaluate")
    return EvalTask(name=task, split=split, stem=task, file=path)


def examples_split(definition: Mapping[str, Any]) -> str | None:
    """Return the split of a definition's few-shot examples; None: they stand in the definition."""
    config = definition.get("fewshot_config") or {}
    if split := config.get("split", definition.get("fewshot_split")):
        return str(split)
    if config.get("samples") is not None:
        return None
    order = ("training_split", "validation_split", "test_split")
    return next((str(definition[name]) for name in order if definition.get(name)), None)


def _read(path: Path, deepest: int) -> Definition:
    """Return the fields of a definition with those of the files that it includes."""
    import yaml

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
