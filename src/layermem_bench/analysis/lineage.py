"""What a saved model says that it was trained on, as it stands in its config.json.

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
from pathlib import Path
from typing import Any

from layermem.models.configuration import LINEAGE

ORIGIN = "origin.json"
"""File of a run's checkpoint, which no other checkpoint has."""
# The final model of a run and the file beside it, which other models do not have.
_FINAL, _METRICS = "final", "metrics.jsonl"
# File of saved routers, which says what trained them and their base.
_ROUTERS = "routers.json"


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with a digest of them, by which a change is noticed."""
    return {**fields, "digest": _digest(fields)}


def read_lineage_fields(location: str | Path, revision: str | None = None) -> dict[str, Any] | None:
    """Return what a saved model, in a folder or on the hub, says of its training; None: nothing.

    What is damaged, or what a run wrote and is lost, is an error. What cannot be read at all is
    left to whoever loads the model.
    """
    saved = _saved_config(location, revision)
    if saved is None or LINEAGE not in saved:
        if _is_of_a_run(Path(location)):
            raise ValueError(
                f"{location} was written by a run, but its config.json does not say what it was "
                f"trained on ({LINEAGE}): put back the file that the run wrote, or train it again"
            )
        return None
    fields = saved[LINEAGE]
    if not isinstance(fields, Mapping) or not fields.get("stages"):
        raise damaged(location, "it says nothing")
    fields = {name: value for name, value in fields.items() if name != "digest"}
    if saved[LINEAGE].get("digest") != _digest(fields):
        raise damaged(location, "it was changed after a run wrote it")
    return fields


def damaged(location: str | Path, reason: object) -> ValueError:
    """Return the error of a lineage that cannot be trusted."""
    return ValueError(
        f"config.json of {location} has a damaged {LINEAGE}, or one of another version of layermem "
        f"({reason}), so that it is unknown what the model was trained on: put back the file that "
        "the run wrote"
    )


def _saved_config(location: str | Path, revision: str | None) -> Mapping[str, Any] | None:
    from transformers import PreTrainedConfig

    try:
        saved: dict[str, Any] = PreTrainedConfig.get_config_dict(location, revision=revision)[0]
    except (OSError, ValueError):
        return None
    # A saved model with attached memory has the config of its host inside its own; a config beside
    # saved routers is that of their base.
    saved = {**saved.get("host_config", {}), **saved}
    routers = Path(location, _ROUTERS)
    settings = json.loads(routers.read_text(encoding="utf-8")) if routers.is_file() else {}
    return saved | {LINEAGE: settings[LINEAGE]} if LINEAGE in settings else saved


def _is_of_a_run(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of a run, or the final model in a run's folder."""
    whole = folder.resolve()
    is_final = whole.name == _FINAL and (whole.parent / _METRICS).exists()
    return folder.is_dir() and (is_final or (folder / ORIGIN).exists())


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]
