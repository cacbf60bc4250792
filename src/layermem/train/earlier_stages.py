"""Checks of a curriculum: no stage before a run was trained on what the run is judged by.

A run that starts from another's model (``model.pretrained=RUN/final``) is trained after it. What it
holds out, the other may have learnt: a larger share of the same text, or problems of the same task
under options that split them otherwise.

It does not know: how data is split.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from layermem.config import Run, to_dict
from layermem.runs import RunFolder
from layermem.tasks.registry import get_task
from layermem.train.run_config import recorded_run

logger = logging.getLogger(__name__)


def check_earlier_stages(run: Run) -> None:
    """Raise where a run that this one's model comes from was trained on its held-out data."""
    for folder, earlier in _earlier_stages(run):
        if run.task.name and run.task.name == earlier.task.name:
            _check_task(run, earlier, folder)
        elif run.records.source is not None or not (run.task.name or earlier.task.name):
            _check_share(run, earlier, folder)


def _earlier_stages(run: Run) -> Iterator[tuple[Path, Run]]:
    """Yield the runs that made the model a run starts from, the latest first."""
    seen: set[Path] = set()
    while start := run.model.pretrained or run.host.model:
        folder = RunFolder(Path(start).resolve().parent)
        if not folder.config.is_file() or folder.path in seen:
            return
        seen.add(folder.path)
        try:
            run = recorded_run(folder)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("what %s was trained on before is not known: %s", start, error)
            return
        yield folder.path, run


def _check_task(run: Run, earlier: Run, folder: Path) -> None:
    definition = get_task(str(run.task.name))
    ours, theirs = run.task.fields(), earlier.task.fields()
    for name in {
        **dict.fromkeys(definition.splits_by(ours)),
        **dict.fromkeys(definition.splits_by(theirs)),
    }:
        default = definition.options()[name]
        mine, before = ours.get(name, default), theirs.get(name, default)
        if mine != before:
            raise ValueError(
                f"{folder}, which this run starts from, was trained on problems of "
                f"{name}={before}; of {name}={mine} some of them would be held out here: add "
                f"--task.options {name}={before}, or train the stage before with {name}={mine}"
            )


def _check_share(run: Run, earlier: Run, folder: Path) -> None:
    part = "data" if run.records.source is None else "records"
    ours, theirs = to_dict(run)[part], to_dict(earlier)[part]
    same = ("source", "subset", "revision") if part == "data" else ("source", "kind")
    if any(ours[name] != theirs[name] for name in same) or ours["validation"] is not None:
        return
    # With a validation set of its own all of the source was trained on.
    before = 0.0 if theirs["validation"] is not None else theirs["validation_share"]
    if before < ours["validation_share"]:
        raise ValueError(
            f"{folder}, which this run starts from, held out a share of {before:g} of "
            f"{ours['source']}, and was trained on some of what "
            f"{part}.validation_share={ours['validation_share']:g} holds out here: name a "
            "--validation of other text, or hold out as much in all stages"
        )
