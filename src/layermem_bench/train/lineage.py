"""``Lineage``: what a model was trained on, stage by stage; see ``layermem.models.lineage``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layermem.models.lineage import FIELD, damaged, read_lineage_fields, sealed
from layermem_bench.config.run import Data, Records, Run, Task
from layermem_bench.config.typed_dicts import from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one run trained a model on: text, problems of a task, or records."""

    run_id: str
    """The run."""
    data: Data | None = None
    """Text, as the run's config names it."""
    task: Task | None = None
    """Problems."""
    records: Records | None = None
    """Records."""
    content: tuple[str, ...] = ()
    """Digests of the files of the text or the records, by which each is known under another name
    and among other files; none: they are generated, or on the hub."""

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.data, self.task, self.records)) != 1:
            raise ValueError("a stage must be of text, of a task or of records")


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """All stages of a model's training, the first one first."""

    before: str | None = None
    """Name of the model that the first stage started from, of which it is unknown what it was
    trained on; None: the first stage started from new weights."""
    stages: tuple[Stage, ...] = ()
    """The stages that are known."""

    def followed_by(self, stage: Stage) -> "Lineage":
        """Return the lineage of a model that one more stage has trained."""
        return replace(self, stages=(*self.stages, stage))

    def __str__(self) -> str:
        runs = ", ".join(stage.run_id for stage in self.stages)
        unknown = f"{self.before}, whose training data are unknown" if self.before else ""
        return ", then ".join(filter(None, (unknown, runs)))


def stage_of(run: Run, content: tuple[str, ...]) -> Stage:
    """Return what a run trains on; ``content``: the digests of its text or records."""
    if run.records.source is not None:
        return Stage(run_id=run.id, records=run.records, content=content)
    if run.task.name is not None:
        return Stage(run_id=run.id, task=run.task)
    # Where its prepared tokens lie is of no use elsewhere.
    return Stage(run_id=run.id, data=replace(run.data, cache=None), content=content)


def write_lineage(config: Any, lineage: Lineage) -> None:
    """Write a lineage into the config of a model."""
    setattr(config, FIELD, sealed(to_dict(lineage)))


def read_lineage(location: str | Path, revision: str | None = None) -> Lineage:
    """Return the lineage of a saved model; see ``read_lineage_fields`` for what is refused."""
    fields = read_lineage_fields(location, revision)
    if fields is None:
        return Lineage(before=str(location))
    try:
        return from_dict(Lineage, fields, "")
    except (ValueError, TypeError) as error:
        raise damaged(location, error) from error
