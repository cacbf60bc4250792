"""Checks of a curriculum: no stage before a run was trained on what the run is judged by.

A run that starts from a saved model (``model.pretrained``, ``host.model``) is trained after the
stages that made it, which its lineage names. What the run holds out, they may have learnt: a larger
share of the same text, the text of its validation set, or problems of the same task under options
that split them otherwise.
"""

import hashlib
from pathlib import Path
from typing import Any

from layermem_bench.config.run import Data, Records, Run
from layermem_bench.data.sources import hub_name, open_path
from layermem_bench.tasks.registry import get_task
from layermem_bench.train.lineage import Lineage, Stage, read_lineage


def check_earlier_stages(run: Run) -> Lineage:
    """Raise where a stage of the model that a run starts from was trained on its held-out data.

    Returns the stages there were; of new weights there are none.
    """
    start = start_of(run)
    if start is None:
        return Lineage()
    lineage = read_lineage(start, run.host.revision)
    for stage in reversed(lineage.stages):
        told = f"{start}, which this run starts from, was trained by run {stage.run_id}"
        if run.task.name is not None:
            if stage.task is not None and stage.task.name == run.task.name:
                _check_task(run, stage.task, told)
        elif run.records.source is not None:
            if stage.records is not None and stage.records.kind == run.records.kind:
                _check_source(run.records, stage.records, stage, told)
        elif stage.data is not None:
            _check_source(run.data, stage.data, stage, told)
    return lineage


def start_of(run: Run) -> str | None:
    """Return the saved model whose weights a run starts from; None: new weights."""
    if run.records.from_config is not None:
        # host.model has the tokenizer alone.
        return None
    return run.model.pretrained or run.host.model


def content_of(run: Run) -> tuple[str, ...]:
    """Return the digests of the files of text or of records that a run is trained on.

    There are none if they are generated, or on the hub, where their name says enough.
    """
    if run.records.source is not None:
        return _digests_of_files(run.records, run.records.source)
    return () if run.task.name else _digests_of_files(run.data, run.data.source)


def _digests_of_files(part: Data | Records, source: str) -> tuple[str, ...]:
    """Return the digests of a source's files on this machine, the same wherever they lie."""
    path, paths = Path(source).expanduser(), []
    if isinstance(part, Records):
        paths = [path] if path.is_file() else []
    elif source != "stdlib" and (text := open_path(path, part.text_field)) is not None:
        paths = text.paths
    digests = set()
    for path in paths:
        with path.open("rb") as file:
            digests.add(hashlib.file_digest(file, "sha256").hexdigest()[:16])
    return tuple(sorted(digests))


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


def _check_source(ours: Data | Records, theirs: Data | Records, stage: Stage, told: str) -> None:
    """Raise where the text or records that are held out are among those of an earlier stage."""
    part = "data" if isinstance(ours, Data) else "records"

    def is_theirs(source: str | None) -> bool:
        if source is None:
            return False
        named = hub_name(source) == hub_name(str(theirs.source))
        if named and _of_hub(ours) == _of_hub(theirs):
            return True
        digests = _digests_of_files(ours, source) if stage.content else ()
        return not {*stage.content}.isdisjoint(digests)

    if ours.validation is not None:
        if is_theirs(ours.validation):
            raise ValueError(
                f"{told} on {theirs.source}, which {part}.validation={ours.validation} holds out "
                "here: name a --validation of other text"
            )
        return
    if not is_theirs(ours.source):
        return
    # With a validation set of its own all of the source was trained on.
    before = 0.0 if theirs.validation is not None else theirs.validation_share
    if before < ours.validation_share:
        raise ValueError(
            f"{told}, which held out a share of {before:g} of {theirs.source} and trained on some "
            f"of what {part}.validation_share={ours.validation_share:g} holds out here: name a "
            "--validation of other text, or hold out as much in all stages"
        )
    if isinstance(ours, Records) and isinstance(theirs, Records) and _keys(ours) != _keys(theirs):
        raise ValueError(
            f"{told} on {theirs.source} with records.fields={' '.join(theirs.fields) or None}, by "
            "whose texts it held out others than would be held out here: give all stages the same "
            "--fields, or name a --validation of other text"
        )


def _keys(records: Records) -> tuple[str, ...]:
    """Return the fields by whose texts records are split: of questions, that of the context."""
    is_of_questions = records.kind == "question-answering"
    return records.fields[:1] or ("context",) if is_of_questions else records.fields


def _of_hub(source: Data | Records) -> tuple[str | None, ...]:
    """Return what else a name on the hub needs to stand for one text."""
    return (source.subset, source.revision) if isinstance(source, Data) else ()
