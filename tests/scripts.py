"""Imports scripts of the repository, which no package holds."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_script(path):
    """Return the module of a script, by its path from the repository's root."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
