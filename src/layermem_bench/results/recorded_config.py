"""Reading the config.yaml of a run folder: its run, refused where the file was edited since."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import yaml

from layermem_bench.config.run import Run, run_from_dict
from layermem_bench.results.run_folder import RunFolder

# That of libyaml is several times as fast, and a study reads the config of each run some times.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a config.yaml, edited or not."""
    return run_from_dict(read_config(path)[0])


def recorded_run(folder: RunFolder) -> Run:
    """Return the run that a folder holds; a config edited since it was written is refused."""
    check_has_config(folder)
    fields, about = read_config(folder.config)
    if about.get("digest", fields_digest(fields)) != fields_digest(fields):
        raise ValueError(
            f"{folder.config} was edited after the run wrote it, so it no longer says what was "
            "trained. Undo the edit; to train the edited config, give it another --out; what a run "
            "may change when it goes on (save_every, data.cache...) is given as an option"
        )
    return run_from_dict(fields)


def check_has_config(folder: RunFolder) -> None:
    """Raise if a folder that holds a run has lost the file that says of what."""
    if not folder.config.exists():
        raise FileNotFoundError(
            f"{folder.path} holds a run, but no config.yaml that says of what: put it back, or "
            "choose another --out"
        )


def read_config(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """Return the fields of a config.yaml, and what is under ``about``."""
    try:
        fields = yaml.load(Path(path).read_text(encoding="utf-8"), _LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    about = fields.pop("about", None) if isinstance(fields, dict) else None
    return fields, about if isinstance(about, dict) else {}


def fields_digest(fields: Any) -> str:
    """Return a digest of the fields as the file has them, independent of the version reading it."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
