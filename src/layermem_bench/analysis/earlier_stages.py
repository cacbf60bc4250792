"""What a saved model was trained on, stage by stage, and what a further stage may not hold out.

A run refuses validation data that an earlier stage trained on. Documents, records and problems of
files are known by a sketch of their hashes, which says how many are missed
(``data.document_hashes``); problems that are drawn, by the options that split them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layermem.models.configuration import LINEAGE
from layermem_bench.analysis.lineage import damaged, read_lineage_fields, sealed
from layermem_bench.config.run import Data, Run, Task
from layermem_bench.config.typed_dicts import from_dict, to_dict
from layermem_bench.data.document_hashes import Sketch
from layermem_bench.tasks.registry import get_task


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one run trained a model on: text, or problems of a task."""

    run_id: str
    data: Data | None = None
    task: Task | None = None
    documents: str = ""
    """Sketch of what was trained on, of which problems that are drawn have none."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """All stages of a model's training, the first one first."""

    before: str | None = None
    """Model that the first stage started from, of unknown training; None: new weights."""
    stages: tuple[Stage, ...] = ()

    def followed_by(self, stage: Stage) -> "Lineage":
        """Return the lineage of a model that one more stage has trained."""
        return replace(self, stages=(*self.stages, stage))

    def __str__(self) -> str:
        unknown = self.before and f"{self.before}, whose training data are unknown"
        runs = ", ".join(stage.run_id for stage in self.stages)
        return ", then ".join(filter(None, (unknown, runs)))


def stage_of(run: Run, documents: Sketch) -> Stage:
    """Return what a run trains on."""
    stage = Stage(run_id=run.id, documents=documents.to_text())
    if run.task.name is not None:
        return replace(stage, task=run.task)
    # Where its prepared tokens lie is of no use elsewhere.
    return replace(stage, data=replace(run.data, cache=None))


def write_lineage(config: Any, lineage: Lineage) -> None:
    """Write a lineage into the config of a model."""
    setattr(config, LINEAGE, sealed(to_dict(lineage)))


def read_lineage(location: str | Path, revision: str | None = None) -> Lineage:
    """Return the lineage of a saved model; see ``read_lineage_fields`` for what is refused."""
    fields = read_lineage_fields(location, revision)
    # Earlier versions knew files, by which no document can be looked up.
    if not fields or "taught_by" in fields:
        return Lineage(before=str(location))
    try:
        return from_dict(Lineage, fields, "")
    except (ValueError, TypeError) as error:
        raise damaged(location, error) from error


def check_earlier_stages(run: Run, held_out: Sketch) -> Lineage:
    """Raise where a stage of the model that a run starts from was trained on its held-out data;
    return the stages, of which new weights have none."""
    start = run.model.pretrained or run.host.model
    lineage = Lineage()
    if start is not None:
        lineage = read_lineage(start, run.host.revision)
        _check_stages(run, held_out, lineage, f"{start}, which this run starts from,")
    return lineage


def _check_stages(run: Run, held_out: Sketch, lineage: Lineage, model: str) -> None:
    for stage in reversed(lineage.stages):
        told = f"{model} was trained by run {stage.run_id}"
        if held_out.copies_in(Sketch.from_text(stage.documents)):
            raise ValueError(
                f"{told} on documents that are held out here: name a --validation (of a task, "
                "--task.options validation=FILE test=FILE) of others, or hold out the share that "
                "was held out there"
            )
        if stage.task is not None and stage.task.name == run.task.name:
            _check_task(run, stage.task, told)


def _check_task(run: Run, earlier: Any, told: str) -> None:
    definition = get_task(str(run.task.name))
    ours, theirs = run.task.fields(), earlier.fields()
    for name in dict.fromkeys((*definition.splits_by(ours), *definition.splits_by(theirs))):
        default = definition.options()[name]
        mine, before = ours.get(name, default), theirs.get(name, default)
        if mine != before:
            raise ValueError(
                f"{told} on problems of {name}={before}; of {name}={mine} some of them would be "
                f"held out here: add --task.options {name}={before}, or train the stage before "
                f"with {name}={mine}"
            )


def has_learnt(lineage: Lineage, documents: Sketch) -> bool:
    """Return whether a model was trained on some of these documents."""
    return any(documents.copies_in(Sketch.from_text(stage.documents)) for stage in lineage.stages)
