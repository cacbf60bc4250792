"""The evaluation tasks of the paper, by lm-eval's names, with the paper's figures and their files.

    Table 1       MultiRC WiC QNLI ARC-E ARC-C, key-value maps, induction, logical deduction of 3
    Tables 4-6    GLUE and SuperGLUE, questions, BIG-bench, all 3-shot with models of 1B

The prompts of each are in ``lm_eval_tasks/NAME.yaml``. BIG-bench's names may be shortened:
``implicit_relations`` is ``bigbench_implicit_relations_multiple_choice``. Imports no package, so
that the tasks are listed at once.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAPER = "paper"
"""Stands for all tasks of the paper."""
# Folder of the definitions of tasks.
DEFINITIONS = Path(__file__).parent / "lm_eval_tasks"
_BIGBENCH = "bigbench_{}_multiple_choice"
# Of a split, the ends that names of its files may have.
_ENDS = {
    "train": ("_train",),
    "validation": ("_validation", "_valid", "_val", "_dev"),
    "test": ("_test",),
}


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """A task of the paper's tables, or of a user's own file."""

    name: str
    """Its name in lm-eval, where it has one."""
    schema: str
    """What its records are: a name of ``task_records.SCHEMAS``; empty, of a user's own file."""
    split: str
    """Split that is evaluated: "test", "validation", or "default" where there is no other."""
    chance: float
    """Share that a guess has right; 0: it differs from item to item."""
    tables: str
    """Tables of the paper that it is in."""
    paper: Mapping[str, float]
    """The paper's accuracies in percent: "LLaMA", "HC" (Hyper-Connections) and "LIMe"."""
    stem: str
    """Start of the names of its files."""
    file: Path | None = None
    """A user's own definition; None: it is one of the paper's."""

    @property
    def definition(self) -> Path:
        """File with its prompts."""
        return self.file or DEFINITIONS / f"{self.name}.yaml"

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that files may be given for."""
        return ("default",) if self.split == "default" else ("train", self.split)

    def stems(self, split: str) -> tuple[str, ...]:
        """Return what the name of a file of a split is before its first dot."""
        if split == "default":
            return (self.stem,)
        return tuple(self.stem + end for end in _ENDS[split])


def _task(
    name: str, schema: str, split: str, chance: float, tables: str, figures: Sequence[float]
) -> EvalTask:
    paper = dict(zip(("LLaMA", "HC", "LIMe"), figures, strict=True))
    return EvalTask(
        name=name,
        schema=schema,
        split=split,
        chance=chance,
        tables=tables,
        paper=paper,
        stem=name,
    )


def _bigbench(
    name: str, chance: float, tables: str, figures: Sequence[float], stem: str = ""
) -> EvalTask:
    of_paper = _task(_BIGBENCH.format(name), "bigbench", "default", chance, tables, figures)
    return EvalTask(**{**vars(of_paper), "stem": stem or name})


_ALL = (
    _task("multirc", "multirc", "validation", 1 / 2, "1, 4", (43.24, 54.34, 56.15)),
    _task("wic", "wic", "validation", 1 / 2, "1, 4", (50.00, 49.72, 50.44)),
    _task("qnli", "qnli", "validation", 1 / 2, "1, 4", (49.49, 49.43, 51.43)),
    _task("arc_easy", "arc", "test", 1 / 4, "1, 5", (70.45, 71.15, 71.15)),
    _task("arc_challenge", "arc", "test", 1 / 4, "1, 5", (38.70, 37.63, 39.30)),
    _bigbench("key_value_maps", 1 / 2, "1, 6", (45.94, 51.68, 55.64)),
    _bigbench("mathematical_induction", 1 / 2, "1, 6", (54.20, 51.59, 55.36)),
    _bigbench(
        "logical_deduction_three_objects",
        1 / 3,
        "1, 6",
        (33.60, 33.87, 34.47),
        "logical_deduction__three_objects",
    ),
    _task("copa", "copa", "validation", 1 / 2, "4", (75.80, 74.00, 75.20)),
    _task("wnli", "wnli", "validation", 1 / 2, "4", (51.27, 56.34, 56.06)),
    _task("hellaswag", "hellaswag", "validation", 1 / 4, "5", (52.55, 54.04, 52.85)),
    _task("openbookqa", "openbookqa", "test", 1 / 4, "5", (37.68, 40.08, 39.68)),
    _bigbench("disambiguation_qa", 1 / 3, "6", (30.16, 26.20, 30.23)),
    _bigbench(
        "logical_deduction_five_objects",
        1 / 5,
        "6",
        (19.44, 19.92, 20.72),
        "logical_deduction__five_objects",
    ),
    _bigbench("implicit_relations", 1 / 25, "6", (12.94, 15.29, 14.82)),
    _bigbench("reasoning_about_colored_objects", 0.0, "6", (16.97, 18.48, 17.39)),
)
TASKS: Mapping[str, EvalTask] = {task.name: task for task in _ALL}
"""The paper's tasks by name, in the order of its tables."""


def chosen_tasks(
    names: Sequence[str], find: Callable[[str], EvalTask] | None = None
) -> list[EvalTask]:
    """Return the tasks of some names, each once; ``paper`` stands for all of the paper.

    ``find`` returns the task of any other name (None: ``find_task``).
    """
    find = find or find_task
    given = [part.strip() for name in names for part in name.split(",") if part.strip()]
    if not given:
        raise ValueError(
            f"name tasks: --tasks {PAPER}, some of {', '.join(TASKS)}, or a definition (my.yaml)"
        )
    chosen: dict[str, EvalTask] = {}
    for name in given:
        for task in TASKS.values() if name == PAPER else (find(name),):
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
        hint += " Other tasks are named by the file of their definition (my_task.yaml)"
        raise ValueError(f"unknown task {name!r}; {hint}")
    return task


def short_name(task: str) -> str:
    """Return the name of a task without what all of BIG-bench have in theirs."""
    prefix, _, suffix = _BIGBENCH.partition("{}")
    return task.removeprefix(prefix).removesuffix(suffix)
