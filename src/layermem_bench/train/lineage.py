"""What a model was trained on, stage by stage, as its own config.json says.

    "layermem_lineage": {"before": null, "digest": "a91f0c6be2d4",
                         "stages": [{"run_id": "2a2dea647461", "data": {"source": ...}, ...}]}

A run writes it into the config of the model that it trains, and so it goes wherever the model goes:
into checkpoints and the final model, into copies of them, into what ``save_pretrained`` and
``layermem models convert`` make of them, and to the hub. A model without it was trained by others,
and what it has seen is unknown.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layermem.retrofit.lineage import FIELD, ROUTERS
from layermem_bench.config.run import Data, Records, Run, Task
from layermem_bench.config.typed_dicts import from_dict, to_dict
from layermem_bench.results.run_folder import RunFolder

ORIGIN = "origin.json"
"""File of a run's checkpoint, which no other checkpoint has."""


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
    fields = to_dict(lineage)
    setattr(config, FIELD, {**fields, "digest": _digest(fields)})


def read_lineage(location: str | Path, revision: str | None = None) -> Lineage:
    """Return the lineage of a saved model, in a folder or on the hub.

    One that is damaged, or that a run wrote and that is lost, is an error. What cannot be read at
    all is left to whoever loads the model.
    """
    saved = _saved_config(location, revision)
    if saved is None or FIELD not in saved:
        if _is_of_a_run(Path(location)):
            raise ValueError(
                f"{location} was written by a run, but its config.json does not say what it was "
                f"trained on ({FIELD}): put back the file that the run wrote, or train it again"
            )
        return Lineage(before=str(location))
    try:
        fields = dict(saved[FIELD])
        digest = fields.pop("digest", None)
        lineage = from_dict(Lineage, fields, "")
        if not lineage.stages or digest != _digest(fields):
            raise ValueError("it was changed after a run wrote it")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"config.json of {location} has a damaged {FIELD}, or one of another version of "
            f"layermem ({error}), so that it is unknown what the model was trained on: put back "
            "the file that the run wrote"
        ) from error
    return lineage


def _saved_config(location: str | Path, revision: str | None) -> Mapping[str, Any] | None:
    from transformers import PreTrainedConfig

    try:
        saved: dict[str, Any] = PreTrainedConfig.get_config_dict(location, revision=revision)[0]
    except (OSError, ValueError):
        return None
    # A saved model with attached memory has the config of its host inside its own.
    return {**saved.get("host_config", {}), **saved, **_of_routers(Path(location))}


def _of_routers(folder: Path) -> dict[str, Any]:
    """Return the lineage of saved routers: a config beside them is that of their base."""
    try:
        settings = json.loads((folder / ROUTERS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {FIELD: settings[FIELD]} if isinstance(settings, dict) and FIELD in settings else {}


def _is_of_a_run(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of a run, or the final model in a run's folder."""
    run = RunFolder(folder.resolve().parent)
    is_final = folder.resolve() == run.final.resolve() and run.metrics.exists()
    return folder.is_dir() and (is_final or (folder / ORIGIN).exists())


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
