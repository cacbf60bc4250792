"""Runs what no package holds: scripts of the repository, and the contract on variants of pages."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script(path):
    """Return the module of a script, by its path from the repository's root."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pass_contract(names, files):
    """Have variants of plugins pass the contract, but for the compiler, which takes longest."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    chosen = f"({' or '.join(names)}) and not compiled"
    done = subprocess.run(
        [*command, "-k", chosen, str(ROOT / "tests" / "test_contract.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LAYERMEM_PLUGINS": os.pathsep.join(map(str, files))},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 12 * len(names)
