"""Writing the config.yaml of a run folder, and whether a folder holds a given run.

The file holds the fields of the run and, under ``about``, where the run came from (versions,
commit, machine, command), with a digest of the fields, by which an edited file is noticed.
"""

import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import yaml

from layermem_base import __version__
from layermem_base.files import write_atomically
from layermem_bench.config.computing import processor_name
from layermem_bench.config.hashing import PACKAGE_FOLDERS, plugin_digest, sources_digest
from layermem_bench.config.run import Run, to_dict
from layermem_bench.run.folder import RunFolder, fields_digest, read_config, recorded_run

# Of a digest.
_DIGITS = 12
_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")


def check_same_run(folder: RunFolder, run: Run) -> None:
    """Raise unless the folder holds this run; how it is carried out may differ."""
    if changes := _changes(folder, run):
        raise ValueError(
            f"{folder.path} was begun with another config: {changes}. Choose another --out, go "
            f"on with it as it is (layermem train {folder.path} --resume), or delete it"
        )


def _changes(folder: RunFolder, run: Run) -> str:
    """Describe by what a folder's run is another one; empty: it is this run."""
    changes = recorded_run(folder).differences(run)
    return "; ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in changes)


def claim_folder(folder: RunFolder, run: Run, *, resume: bool) -> None:
    """Write the config into a free folder, or check that the folder holds this run.

    A folder without rows, checkpoint or result is free, as after a run that was refused. What a
    resumed run changes of how it is carried out is written.
    """
    ended, begun = folder.final.exists() or folder.result.exists(), folder.complete_checkpoints()
    if ended or begun or folder.rows():
        changes = _changes(folder, run)
        if not resume:
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
        "layermem": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES if find_spec(name)},
        "commit": _commit(),
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


def _commit() -> str:
    """Return the commit of our code, with "+changes" where a file differs from the commit."""
    git = ["git", "--no-optional-locks", "-C", str(PACKAGE_FOLDERS[0])]
    described = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        # The package may lie in a checkout of another project, which does not track it.
        for arguments in (["ls-files", "--error-unmatch", "__init__.py"], described):
            done = subprocess.run([*git, *arguments], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"
    return done.stdout.strip()
