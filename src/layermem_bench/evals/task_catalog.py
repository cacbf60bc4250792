"""The evaluation tasks of the paper: lm-eval's names of them, their records, the paper's figures.

    Table 1       MultiRC WiC QNLI ARC-E ARC-C, key-value maps, induction, logical deduction of 3
    Tables 4-6    GLUE and SuperGLUE, questions, BIG-bench, all 3-shot with models of 1B

BIG-bench's names may be shortened: ``implicit_relations`` is
``bigbench_implicit_relations_multiple_choice``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layermem_base.plugins import unknown_name

FOLDERS = ("arc", "hellaswag", "openbookqa", "super_glue", "glue", "bigbench/multiple_choice")
"""Folders of lm-eval that define the tasks."""
PAPER = ("LLaMA", "HC", "LIMe")
"""The paper's models; HC: Hyper-Connections."""
_BIGBENCH = "bigbench_{}_multiple_choice"
# Of a split, the ends that names of its files may have.
_ENDS = {
    "train": ("_train",),
    "validation": ("_validation", "_valid", "_val", "_dev"),
    "test": ("_test",),
    "default": ("",),
}


@dataclass(frozen=True, kw_only=True)
class EvalTask:
    """A task of the paper's tables."""

    name: str
    """Its name in lm-eval; of logical deduction a part has a name of its own."""
    stem: str
    """Start of the names of its files of records."""
    split: str
    """Split that is evaluated: "test", "validation", or "default" where there is no other."""
    data_set: str
    """What lm-eval fetches from the hub; empty: the hub does not have it apart."""
    paper: tuple[float, ...]
    """The paper's accuracies in percent, of the models ``PAPER``."""

    @property
    def definition(self) -> str:
        """The name of lm-eval's definition, which is one for any number of objects."""
        return re.sub("_(three|five)_objects", "", self.name)

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


# Stem of the files, split that is evaluated, data set of the hub, and the paper's accuracies.
_TASKS = (
    ("multirc", "validation", "aps/super_glue multirc", 43.24, 54.34, 56.15),
    ("wic", "validation", "aps/super_glue wic", 50.00, 49.72, 50.44),
    ("qnli", "validation", "nyu-mll/glue qnli", 49.49, 49.43, 51.43),
    ("arc_easy", "test", "allenai/ai2_arc ARC-Easy", 70.45, 71.15, 71.15),
    ("arc_challenge", "test", "allenai/ai2_arc ARC-Challenge", 38.70, 37.63, 39.30),
    ("key_value_maps", "default", "hails/bigbench", 45.94, 51.68, 55.64),
    ("mathematical_induction", "default", "hails/bigbench", 54.20, 51.59, 55.36),
    ("logical_deduction__three_objects", "default", "", 33.60, 33.87, 34.47),
    ("copa", "validation", "aps/super_glue copa", 75.80, 74.00, 75.20),
    ("wnli", "validation", "nyu-mll/glue wnli", 51.27, 56.34, 56.06),
    ("hellaswag", "validation", "Rowan/hellaswag", 52.55, 54.04, 52.85),
    ("openbookqa", "test", "allenai/openbookqa main", 37.68, 40.08, 39.68),
    ("disambiguation_qa", "default", "hails/bigbench", 30.16, 26.20, 30.23),
    ("logical_deduction__five_objects", "default", "", 19.44, 19.92, 20.72),
    ("implicit_relations", "default", "hails/bigbench", 12.94, 15.29, 14.82),
    ("reasoning_about_colored_objects", "default", "hails/bigbench", 16.97, 18.48, 17.39),
)


def _task(stem: str, split: str, data_set: str, *paper: float) -> EvalTask:
    name = _BIGBENCH.format(stem.replace("__", "_")) if split == "default" else stem
    return EvalTask(name=name, stem=stem, split=split, data_set=data_set, paper=paper)


TASKS = {task.name: task for task in (_task(*row) for row in _TASKS)}
"""The paper's tasks by name, in the order of its tables."""


def find_tasks(names: Sequence[str]) -> list[EvalTask]:
    """Return the tasks of some names, each once; ``paper`` stands for all of them."""
    tasks = [TASKS.values() if name == "paper" else [find_task(name)] for name in names]
    return list(dict.fromkeys(task for of_name in tasks for task in of_name))


def find_task(name: str) -> EvalTask:
    """Return the task of a name, full or shortened."""
    task = TASKS.get(name) or TASKS.get(_BIGBENCH.format(name))
    if task is None:
        raise unknown_name("task", name, [*TASKS, "paper"], map(short_name, TASKS))
    return task


def short_name(task: str) -> str:
    """Return the name of a task without what all of BIG-bench have in theirs."""
    prefix, _, suffix = _BIGBENCH.partition("{}")
    return task.removeprefix(prefix).removesuffix(suffix)
