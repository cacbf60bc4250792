"""The provenance of a run: package versions, the commit, the machine and the command.

It does not know: runs, configs, where it is recorded.
"""

import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from layermem.processor import processor_name

_PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")
_PACKAGE_FOLDER = Path(__file__).parents[1]


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
