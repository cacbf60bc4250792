"""The config.yaml of a run folder: reading, writing, and whether a folder holds a given run.

The file holds the fields of the run and, under ``about``, where the run came from (versions,
commit, machine, command), with a digest of the fields, by which an edited file is noticed.
"""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from layermem.config import Run, run_from_dict, to_dict
from layermem.processor import processor_name
from layermem.runs import RunFolder, write_atomically
from layermem.train.checkpoints import config_changes

# That of libyaml is several times as fast, and a study reads the config of each run some times.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")
_PACKAGE_FOLDER = Path(__file__).parents[1]


def load_run(path: str | os.PathLike[str]) -> Run:
    """Return the run of a config.yaml, edited or not."""
    return run_from_dict(read_config(path)[0])


def recorded_run(folder: RunFolder) -> Run:
    """Return the run that a folder holds; a config edited since it was written is refused."""
    check_has_config(folder)
    fields, about = read_config(folder.config)
    if about.get("digest", _digest(fields)) != _digest(fields):
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


def check_same_run(folder: RunFolder, run: Run) -> None:
    """Raise unless the folder holds this run; how it is carried out may differ."""
    if changes := config_changes(recorded_run(folder), run):
        raise ValueError(
            f"{folder.path} was begun with another config: {changes}. Choose another "
            "--out, or go on with it as it is (layermem train RUN --resume)"
        )


def claim_folder(folder: RunFolder, run: Run, *, resume: bool) -> None:
    """Write the config into a free folder, or check that the folder holds this run.

    When a run is resumed with changes to how it is carried out, the config is written with them,
    and ``about`` keeps what it says of the beginning. A folder is free as long as it holds no
    rows, checkpoint or result: a run that was refused before its first step leaves it free.
    """
    ended = folder.final.exists() or folder.result.exists()
    if not (ended or folder.complete_checkpoints() or folder.rows()):
        about = {"run_id": run.id, "command": command_line(), **describe_environment()}
        _write(folder, run, about)
        return
    check_has_config(folder)
    if not resume:
        raise FileExistsError(
            f"{folder.path} holds a run already; add --resume to go on with it, or choose another "
            "--out"
        )
    check_same_run(folder, run)
    if recorded_run(folder) != run and not folder.final.exists():
        _write(folder, run, read_config(folder.config)[1])


def record_beginning(folder: RunFolder, run: Run, beginning: Mapping[str, str | None]) -> None:
    """Record digests of the data and weights, and the precision: what fields do not determine.

    A run that goes on from a checkpoint keeps what was recorded when it began. What is None is not
    recorded.
    """
    if not folder.complete_checkpoints():
        about = {k: v for k, v in read_config(folder.config)[1].items() if k not in beginning}
        known = {name: value for name, value in beginning.items() if value is not None}
        _write(folder, run, {**about, **known})


def read_config(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """Return the fields of a config.yaml, and what is under ``about``."""
    try:
        fields = yaml.load(Path(path).read_text(encoding="utf-8"), _LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    about = fields.pop("about", None) if isinstance(fields, dict) else None
    return fields, about if isinstance(about, dict) else {}


def _write(folder: RunFolder, run: Run, about: Mapping[str, str]) -> None:
    fields = to_dict(run)
    content = {**fields, "about": {**about, "digest": _digest(fields)}}
    write_atomically(folder.config, yaml.safe_dump(content, sort_keys=False))


def _digest(fields: Any) -> str:
    """Return a digest of the fields as the file has them, independent of the version reading it."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def describe_environment() -> dict[str, str]:
    """Return versions, commit and machine, as far as they can be found out."""
    return {
        "layermem": package_version("layermem"),
        "python": platform.python_version(),
        **{name: package_version(name) for name in _PACKAGES},
        "commit": commit_of(_PACKAGE_FOLDER / "__init__.py"),
        "machine": platform.machine(),
        "processor": processor_name(),
    }


def command_line() -> str:
    """Return the command that started this process, as a user would write it."""
    program, *arguments = sys.argv
    if Path(program).name in ("__main__.py", "layermem"):
        program = "layermem"
    return shlex.join([program, *arguments])


def commit_of(file: Path) -> str:
    """Return the commit of a file, with "+changes" where its folder differs from the commit."""
    # The package may be installed inside a checkout of another project, which does not track it.
    tracked = _git(file.parent, "ls-files", "--error-unmatch", file.name)
    commit = tracked and _git(file.parent, "rev-parse", "HEAD")
    if not commit:
        return "not a git checkout"
    changes = _git(file.parent, "--no-optional-locks", "status", "--porcelain", ".")
    return f"{commit}+changes" if changes else commit


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git in a folder, or nothing if it fails or is not installed."""
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return completed.stdout.strip()


def package_version(name: str) -> str:
    """Return the version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
