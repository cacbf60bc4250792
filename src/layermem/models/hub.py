"""Which commit of the hub a model is of: a branch or tag may stand for another one tomorrow.

transformers has kept it in a loaded config, and in its newest releases does not.
"""

import os
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from transformers.utils import CONFIG_NAME, cached_file
from transformers.utils.hub import extract_commit_hash


def find_commit(name: str | os.PathLike[str], **location: Any) -> str | None:
    """Return the commit of a model on the hub; None: a folder, or unknown to hub and cache.

    ``location``: ``revision`` and what else of ``from_pretrained`` locates files.
    """
    if Path(name).exists():
        return None
    try:
        return extract_commit_hash(cached_file(str(name), CONFIG_NAME, **location), None)
    except (OSError, ValueError):
        return None


def set_commit(config: Any, commit: str | None) -> None:
    """Record in the config of a loaded model of which commit it is, unless that is None."""
    if commit is not None:
        config._commit_hash = commit


def commit_of(config: Any) -> str | None:
    """Return of which commit a loaded model is; None: not of the hub, or the cache has several."""
    if commit := getattr(config, "_commit_hash", None):
        return str(commit)
    name = getattr(config, "_name_or_path", "") or ""
    folder = Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots")
    weights = (*folder.glob("*/*.safetensors"), *folder.glob("*/*.bin"))
    commits = {path.parent.name for path in weights}
    return commits.pop() if len(commits) == 1 and not Path(name).exists() else None
