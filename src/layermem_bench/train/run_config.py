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
from layermem_bench.config.hashing import PACKAGE_FOLDERS, plugin_digest, sources_digest
from layermem_bench.config.run import Run, to_dict
from layermem_bench.results.processor import processor_name
from layermem_bench.results.run_folder import RunFolder, fields_digest
from layermem_bench.results.run_folder import check_has_config as check_has_config
from layermem_bench.results.run_folder import load_run as load_run
from layermem_bench.results.run_folder import read_config as read_config
from layermem_bench.results.run_folder import recorded_run as recorded_run
from layermem_bench.train.checkpoints import config_changes
from layermem_bench.train.extending import extends, rewind

# Of a digest.
_DIGITS = 12
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def check_same_run(folder: RunFolder, run: Run) -> None:
    """Raise unless the folder holds this run; how it is carried out may differ."""
    if changes := config_changes(recorded_run(folder), run):
        raise ValueError(
            f"{folder.path} was begun with another config: {changes}. Choose another --out, go "
            f"on with it as it is (layermem train {folder.path} --resume), or delete it to start "
            "over"
        )


def claim_folder(folder: RunFolder, run: Run, *, resume: bool) -> None:
    """Write the config into a free folder, or check that the folder holds this run.

    A folder without rows, checkpoint or result is free, as after a run that was refused. What a
    resumed run changes of how it is carried out is written; ``about`` stays as it was.
    """
    ended = folder.final.exists() or folder.result.exists()
    if not (ended or folder.complete_checkpoints() or folder.rows()):
        about = {"run_id": run.id, "command": _command_line(), **describe_environment()}
        _write(folder, run, about)
        return
    check_has_config(folder)
    if not resume:
        changes = config_changes(recorded_run(folder), run)
        how = f"layermem train {folder.path} --resume" if changes else "--resume"
        raise FileExistsError(
            f"{folder.path} holds a run already{f' ({changes})' if changes else ''}. Go on with "
            f"that run ({how}), choose another --out, or delete the folder to start over"
        )
    recorded = recorded_run(folder)
    if extends(recorded, run):
        rewind(folder, recorded, run)
        about = _with_environment(read_config(folder.config)[1], begins_anew=False)
        _write(folder, run, {**about, "run_id": run.id})
        return
    check_same_run(folder, run)
    if not folder.final.exists():
        then = read_config(folder.config)[1]
        about = _with_environment(then, begins_anew=not folder.complete_checkpoints())
        if (recorded, then) != (run, about):
            _write(folder, run, about)


def _with_environment(about: Mapping[str, str], *, begins_anew: bool) -> dict[str, str]:
    """Return what is known of a run that is trained further in this process.

    Of versions, code and machines those of all its steps are named: "2.12.0, 2.13.0".
    """
    environment = describe_environment()
    if begins_anew:
        # There may have been a plugin, and be none now.
        kept = {name: value for name, value in about.items() if name != "plugins"}
        return {**kept, **environment}
    found = dict(about)
    for name, now in environment.items():
        then = str(about.get(name, now))
        found[name] = then if now in (then, *then.split(", ")) else f"{then}, {now}"
    return found


def record_beginning(folder: RunFolder, run: Run, beginning: Mapping[str, str | None]) -> None:
    """Record what fields do not determine, unless it is None, of a run without a checkpoint."""
    if not folder.complete_checkpoints():
        about = {k: v for k, v in read_config(folder.config)[1].items() if k not in beginning}
        known = {name: value for name, value in beginning.items() if value is not None}
        _write(folder, run, {**about, **known})


def _write(folder: RunFolder, run: Run, about: Mapping[str, str]) -> None:
    fields = to_dict(run)
    content = {**fields, "about": {**about, "digest": fields_digest(fields)}}
    write_atomically(folder.config, yaml.safe_dump(content, sort_keys=False))


def describe_environment() -> dict[str, str]:
    """Return versions, commit and machine, as far as they can be found out.

    They are those of this process, which has loaded its code: what is changed later has no effect.
    """
    return dict(_environment())


@cache
def _environment() -> Mapping[str, str]:
    return {
        "layermem": _package_version("layermem"),
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
