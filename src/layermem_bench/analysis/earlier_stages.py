"""What a saved model was trained on, stage by stage, and what a further stage may not hold out.

A run that starts from a saved model is trained after the stages that made it. What the run holds
out, they may have learnt: a larger share of the same text, the text of its validation set, or
problems of the same task under options that split them otherwise.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layermem.models.lineage import FIELD, damaged, read_lineage_fields, sealed
from layermem_bench.config.hashing import file_digest
from layermem_bench.config.run import Data, Records, Run, Task
from layermem_bench.config.typed_dicts import from_dict, to_dict
from layermem_bench.data.sources import document_unit, hub_name, open_path
from layermem_bench.tasks.registry import get_task

CONVERSION = "models convert"
"""What stands for the id of a run where layers were fitted to a text in a conversion."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one run trained a model on: text, problems of a task, or records."""

    run_id: str
    data: Data | None = None
    task: Task | None = None
    records: Records | None = None
    content: tuple[str, ...] = ()
    """Digests of the files of the text, the records or a task's training problems, by which each is
    known under another name and among other files; none: they are generated, or on the hub."""

    @property
    def is_conversion(self) -> bool:
        """Whether it is no run, but a conversion that was fitted to its text."""
        return self.run_id == CONVERSION


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """All stages of a model's training, the first one first."""

    before: str | None = None
    """Model that the first stage started from, of unknown training; None: new weights."""
    stages: tuple[Stage, ...] = ()
    taught_by: tuple[str, ...] = ()
    """Of earlier versions: models that stages learnt from by distillation."""

    @property
    def trained(self) -> tuple[Stage, ...]:
        """The stages that runs were, without conversions: in those a model learns no new form of
        text, such as the length of its sequences."""
        return tuple(stage for stage in self.stages if not stage.is_conversion)

    def followed_by(self, stage: Stage) -> "Lineage":
        """Return the lineage of a model that one more stage has trained."""
        return replace(self, stages=(*self.stages, stage))

    def __str__(self) -> str:
        unknown = self.before and f"{self.before}, whose training data are unknown"
        runs = ", ".join(stage.run_id for stage in self.stages)
        return ", then ".join(filter(None, (unknown, runs)))


def stage_of(run: Run, content: tuple[str, ...]) -> Stage:
    """Return what a run trains on; ``content``: the digests of its text or records."""
    if run.records.source is not None:
        return Stage(run_id=run.id, records=run.records, content=content)
    if run.task.name is not None:
        return Stage(run_id=run.id, task=run.task, content=content)
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


def check_earlier_stages(run: Run) -> Lineage:
    """Raise where a stage of the model that a run starts from was trained on its held-out data;
    return the stages, of which new weights have none."""
    # With from_config, host.model has the tokenizer alone.
    start = None if run.records.from_config else run.model.pretrained or run.host.model
    lineage = Lineage()
    if start is not None:
        lineage = read_lineage(start, run.host.revision)
        _check_stages(run, lineage, f"{start}, which this run starts from, was trained by")
    return lineage


def _check_stages(run: Run, lineage: Lineage, trained_by: str) -> None:
    for stage in reversed(lineage.stages):
        by = stage.run_id if stage.is_conversion else f"run {stage.run_id}"
        told = f"{trained_by} {by}"
        if run.task.name is not None:
            if stage.task is not None and stage.task.name == run.task.name:
                _check_task(run, stage.task, told)
                _check_files_of_task(run, stage, told)
        elif run.records.source is not None:
            if stage.records is not None and stage.records.kind == run.records.kind:
                _check_source(run.records, stage.records, stage, told)
        elif stage.data is not None:
            _check_source(run.data, stage.data, stage, told)


def content_of(run: Run) -> tuple[str, ...]:
    """Return the digests of the files of text, records or problems that a run is trained on; none:
    they are generated, or on the hub, where their name says enough."""
    if run.records.source is not None:
        return _digests_of_files(run.records, run.records.source)
    if run.task.name:
        return _digest_of_problems(run, "train")
    digests = [_digests_of_files(run.data, source) for source in run.data.shares()]
    return tuple(sorted({each for of_source in digests for each in of_source}))


def _digests_of_files(part: Data | Records, source: str) -> tuple[str, ...]:
    """Return the digests of a source's files on this machine, the same wherever they lie."""
    path, paths = Path(source).expanduser(), []
    if isinstance(part, Records):
        paths = [path] if path.is_file() else []
    elif source != "stdlib" and (text := open_path(path, part.text_field)) is not None:
        paths = text.paths
    return tuple(sorted({file_digest(path)[:16] for path in paths}))


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


def _check_files_of_task(run: Run, stage: Stage, told: str) -> None:
    """Raise where a file of held-out problems is one that an earlier stage was trained on."""
    for split in ("validation", "test"):
        if not {*stage.content}.isdisjoint(_digest_of_problems(run, split)):
            raise ValueError(
                f"{told} on the problems of {run.task.fields()[split]}, which are held out here as "
                f"its {split}: name a file of other problems (--task.options {split}=FILE)"
            )


def _digest_of_problems(run: Run, split: str) -> tuple[str, ...]:
    """Return the digest of the file that a task's option names for a split; none: it names none."""
    named = run.task.fields().get(split)
    path = Path(named).expanduser() if isinstance(named, str) else None
    return (file_digest(path)[:16],) if path is not None and path.is_file() else ()


def _check_source(ours: Data | Records, theirs: Data | Records, stage: Stage, told: str) -> None:
    """Raise where the text or records that are held out are among those of an earlier stage."""
    part = "data" if isinstance(ours, Data) else "records"
    taught = ", ".join(_sources(theirs))

    def is_theirs(source: str) -> bool:
        return _is_of(stage, theirs, ours, source)

    if ours.validation is not None:
        if is_theirs(ours.validation):
            raise ValueError(
                f"{told} on {taught}, which {part}.validation={ours.validation} holds out "
                "here: name a --validation of other text"
            )
        return
    if not any(map(is_theirs, _sources(ours))):
        return
    # With a validation set of its own, and in a conversion, all of the source was trained on.
    held_out_some = theirs.validation is None and not stage.is_conversion
    before = theirs.validation_share if held_out_some else 0.0
    if before < ours.validation_share:
        raise ValueError(
            f"{told}, which held out a share of {before:g} of {taught} and trained on some "
            f"of what {part}.validation_share={ours.validation_share:g} holds out here: name a "
            "--validation of other text, or hold out as much in all stages"
        )
    if isinstance(ours, Data) and isinstance(theirs, Data) and theirs.validation is None:
        for source in filter(is_theirs, _sources(ours)):
            if _is_split_otherwise(ours, theirs, stage, source):
                raise ValueError(
                    f"{told} on {taught}, where {source} was split otherwise: a file that is a "
                    "source by itself is split by its parts, and among others as one document, so "
                    f"that some of what {part}.validation_share holds out here was trained on: "
                    "name a --validation of other text"
                )
    if isinstance(ours, Records) and isinstance(theirs, Records) and _keys(ours) != _keys(theirs):
        raise ValueError(
            f"{told} on {theirs.source} with records.fields={' '.join(theirs.fields) or None}, by "
            "whose texts it held out others than would be held out here: give all stages the same "
            "--fields, or name a --validation of other text"
        )


def _is_split_otherwise(ours: Data, theirs: Data, stage: Stage, source: str) -> bool:
    """Return whether a stage held out other parts of a file of plain text than would be now."""
    # Under its own name it was split as it would be now.
    if source in ("stdlib", *_sources(theirs)) or not stage.content:
        return False
    text = open_path(Path(source).expanduser(), ours.text_field)
    if text is None or all(document_unit(path) != "file" for path in text.paths):
        return False
    was_alone = len(stage.content) == len(_sources(theirs)) == 1
    return text.single_document != was_alone


def stages_on(lineage: Lineage, text: Data) -> list[Stage]:
    """Return the stages that were trained on documents of a text."""
    return [
        stage
        for stage in lineage.stages
        if stage.data is not None and _is_of(stage, stage.data, text, text.source)
    ]


def _is_of(stage: Stage, theirs: Data | Records, ours: Data | Records, source: str) -> bool:
    """Return whether a source of ours is among those that a stage was trained on."""
    named = hub_name(source) in map(hub_name, _sources(theirs))
    if named and _may_be_one_subset(ours, theirs):
        return True
    digests = _digests_of_files(ours, source) if stage.content else ()
    return not {*stage.content}.isdisjoint(digests)


def _sources(part: Data | Records) -> tuple[str, ...]:
    """Return the names of all that is trained on."""
    return tuple(part.shares()) if isinstance(part, Data) else (str(part.source),)


def _keys(records: Records) -> tuple[str, ...]:
    """Return the fields by whose texts records are split: of questions, that of the context."""
    if records.kind == "question-answering":
        return records.fields[:1] or ("context",)
    return records.fields


def _may_be_one_subset(ours: Data | Records, theirs: Data | Records) -> bool:
    """Return whether both may read the same part of a data set of the hub.

    Another revision has most of the same documents, and no subset is the data set's default.
    """
    subsets = {part.subset for part in (ours, theirs) if isinstance(part, Data)} - {None}
    return len(subsets) < 2
