"""Writing the config.yaml of a run folder, and whether a folder holds a given run.

The file holds the fields of the run and, under ``about``, where the run came from (versions,
commit, machine, command), with a digest of the fields, by which an edited file is noticed.
"""

import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from layermem_base.files import write_atomically
from layermem_bench.config.computing import processor_name
from layermem_bench.config.hashing import PACKAGE_FOLDERS, plugin_digest, sources_digest
from layermem_bench.config.run import Run, to_dict
from layermem_bench.config.run_identity import differences
from layermem_bench.run.folder import (
    RunFolder,
    check_has_config,
    fields_digest,
    read_config,
    recorded_run,
)

# Of a digest.
_DIGITS = 12
_PACKAGES = ("layermem", "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def check_same_run(folder: RunFolder, run: Run) -> None:
    """Raise unless the folder holds this run; how it is carried out may differ."""
    if changes := _changes(folder, run):
        raise ValueError(
            f"{folder.path} was begun with another config: {changes}. Choose another --out, go "
            f"on with it as it is (layermem train {folder.path} --resume), or delete it"
        )


def _changes(folder: RunFolder, run: Run) -> str:
    """Describe by what a folder's run is another one; empty: it is this run."""
    changes = differences(recorded_run(folder), run)
    return "; ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in changes)


def claim_folder(folder: RunFolder, run: Run, *, resume: bool) -> None:
    """Write the config into a free folder, or check that the folder holds this run.

    A folder without rows, checkpoint or result is free, as after a run that was refused. What a
    resumed run changes of how it is carried out is written.
    """
    ended, begun = folder.final.exists() or folder.result.exists(), folder.complete_checkpoints()
    if ended or begun or folder.rows():
        check_has_config(folder)
        if not resume:
            changes = _changes(folder, run)
            raise FileExistsError(
                f"{folder.path} holds a run already{f' ({changes})' if changes else ''}. Go on "
                "with that run (--resume), choose another --out, or delete it"
            )
        check_same_run(folder, run)
    # Without a checkpoint it begins anew, with the code of today.
    about = {"run_id": run.id, "command": _command_line(), **describe_environment()}
    if not folder.final.exists():
        _write(folder, run, read_config(folder.config)[1] if ended or begun else about)


def record_beginning(folder: RunFolder, run: Run, beginning: Mapping[str, str | None]) -> None:
    """Record what fields do not determine, unless it is None; raise where a run that goes on from a
    checkpoint began with other data, weights or another precision."""
    about = read_config(folder.config)[1]
    if not folder.complete_checkpoints():
        found = {name: value for name, value in {**about, **beginning}.items() if value is not None}
        _write(folder, run, found)
        return
    for name in ("data", "weights", "precision"):
        then, now = about.get(name), beginning[name]
        if then != now and None not in (then, now):
            raise ValueError(
                f"{folder.path} was begun with other {name} ({then}, now {now}): put back what "
                f"it was (--compute.precision {about.get('precision')}, --data.revision, the "
                "files), or begin again in another --out"
            )


def _write(folder: RunFolder, run: Run, about: Mapping[str, str]) -> None:
    fields = to_dict(run)
    content = {**fields, "about": {**about, "digest": fields_digest(fields)}}
    write_atomically(folder.config, yaml.safe_dump(content, sort_keys=False))


@cache
def describe_environment() -> Mapping[str, str]:
    """Return versions, commit and machine, as far as they can be found out.

    They are those of this process, which has loaded its code: what is changed later has no effect.
    """
    return {
        "python": platform.python_version(),
        **{name: _package_version(name) for name in _PACKAGES},
        "commit": _commit_of(PACKAGE_FOLDERS),
        "sources": sources_digest(),
        **({"plugins": plugins[:_DIGITS]} if (plugins := plugin_digest()) else {}),
        "machine": platform.machine(),
        "processor": processor_name(),
    }


def _command_line() -> str:
    """Return the command that started this process, as a user would write it."""
    program, *arguments = sys.argv
    if Path(program).name in ("__main__.py", "layermem"):
        program = "layermem"
    return shlex.join([program, *arguments])


def _commit_of(folders: Sequence[Path]) -> str:
    """Return the commit of packages, with "+changes" where a folder differs from the commit."""

    def git(*arguments: str, folder: Path = folders[0]) -> str:
        run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True)
        return run.stdout.decode().strip()

    try:
        changes = ""
        for folder in folders:
            # A package may lie in a checkout of another project, which does not track it.
            git("ls-files", "--error-unmatch", "__init__.py", folder=folder)
            changes += git("--no-optional-locks", "status", "--porcelain", ".", folder=folder)
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
