"""The paper's tables and figures, a file for each: its claim, its numbers, its runs.

A file's name is the artefact's fixed name, and ``ARTEFACT`` in it what it says. They are found by
listing the package.

It does not know: how runs are trained, how claims are judged.
"""

import difflib
import importlib
import pkgutil
import re

from layermem.experiments.reproduction.artefact import Artefact


def names() -> list[str]:
    """Return the fixed names: figures, then other results, then tables, each by its number."""

    def key(name: str) -> tuple[str, int]:
        number = re.search(r"\d+$", name)
        return name.rstrip("0123456789"), int(number[0]) if number else 0

    return sorted((module.name for module in pkgutil.iter_modules(__path__)), key=key)


def get_artefact(name: str) -> Artefact:
    """Return the artefact of a fixed name."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}"
        raise ValueError(f"unknown artefact {name!r}; {hint}")
    artefact: Artefact = importlib.import_module(f"{__name__}.{name}").ARTEFACT
    return artefact
