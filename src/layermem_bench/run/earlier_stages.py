"""What a saved model was trained on, stage by stage, and what a further stage may not hold out.

    "layermem_lineage": {"before": null,
                         "stages": [{"run_id": "2a2dea647461", "documents": "hashes", ...}]}

A run refuses validation data that an earlier stage trained on. It also refuses a model whose
training history is damaged. Documents and problems of files are known by a sketch of
their hashes, which says how many are missed (``text.blocks``). Drawn problems have none:
each is on one side of the split by its own hash, in every run.

A run writes the lineage into the config of the model that it trains, and so it goes wherever the
model goes: into checkpoints, copies, conversions, attached models, saved routers and the hub. A
model without it was trained by others, and what it has seen is unknown.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layermem.models.configuration import LINEAGE
from layermem_bench.config.run import Data, Run
from layermem_bench.config.typed_dicts import from_dict, to_dict
from layermem_bench.text.blocks import Sketch

ORIGIN = "origin.json"
"""File of a run's checkpoint, which no other checkpoint has."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one run trained a model on."""

    run_id: str
    text: Data | None = None
    """How text was read; None: it learnt problems of a task."""
    documents: str = ""
    """Sketch of what was trained on; empty: drawn problems."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """All stages of a model's training, the first one first."""

    before: str | None = None
    """Model that the first stage started from, of unknown training; None: new weights."""
    stages: tuple[Stage, ...] = ()

    def followed_by(self, stage: Stage) -> "Lineage":
        """Return the lineage of a model that one more stage has trained."""
        return replace(self, stages=(*self.stages, stage))

    def stage_that_learnt(self, documents: Sketch) -> Stage | None:
        """Return the last stage that trained on some of these documents."""
        stages = reversed(self.stages)
        return next((s for s in stages if documents.copies_in(Sketch.from_text(s.documents))), None)

    def __str__(self) -> str:
        unknown = self.before and f"{self.before}, whose training data are unknown"
        runs = ", ".join(stage.run_id for stage in self.stages)
        return ", then ".join(filter(None, (unknown, runs)))


def stage_of(run: Run, documents: Sketch) -> Stage:
    """Return what a run trains on."""
    # Where its prepared tokens lie is of no use elsewhere.
    text = None if run.task.name else replace(run.data, cache=None)
    return Stage(run_id=run.id, text=text, documents=documents.to_text())


def write_lineage(config: Any, lineage: Lineage) -> None:
    """Write a lineage into the config of a model."""
    setattr(config, LINEAGE, to_dict(lineage))


def read_lineage(location: str | Path, revision: str | None = None) -> Lineage:
    """Return the lineage of a saved model, in a folder or on the hub.

    A damaged one is an error. What cannot be read at all is left to whoever loads the model.
    """
    saved = _saved_config(location, revision)
    if LINEAGE not in saved:
        return Lineage(before=str(location))
    try:
        lineage = from_dict(Lineage, saved[LINEAGE], "")
        if not lineage.stages:
            raise ValueError("it has no stage")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"config.json of {location} does not say what the model was trained on ({LINEAGE}: "
            f"{error}): put back the file that the run wrote, or train it again"
        ) from error
    return lineage


def check_earlier_stages(run: Run, held_out: Sketch) -> Lineage:
    """Raise where a stage of the model that a run starts from was trained on its held-out data;
    return the stages, of which new weights have none."""
    start = run.model.pretrained or run.host.model
    lineage = Lineage() if start is None else read_lineage(start, run.host.revision)
    if stage := lineage.stage_that_learnt(held_out):
        raise ValueError(
            f"{start}, which this run starts from, was trained by run {stage.run_id} on documents "
            "that are held out here: name a --data.validation (of a task, --task.options "
            "validation=FILE test=FILE) of others, or hold out the share that was held out there"
        )
    return lineage


def _saved_config(location: str | Path, revision: str | None) -> Mapping[str, Any]:
    from transformers import PreTrainedConfig

    try:
        saved: dict[str, Any] = PreTrainedConfig.get_config_dict(location, revision=revision)[0]
    except (OSError, ValueError):
        return {}
    # A model with attached memory has its host's config inside its own; a config beside saved
    # routers is that of their base, and routers.json says what trained both.
    saved = {**saved.get("host_config", {}), **saved}
    routers = Path(location, "routers.json")
    settings = json.loads(routers.read_text(encoding="utf-8")) if routers.is_file() else {}
    return saved | {LINEAGE: settings[LINEAGE]} if LINEAGE in settings else saved
