"""The paper's tables and figures, a file for each: its claim, its numbers, its boards.

fig1 ... fig11, prosqa, table1 ... table9    ``ARTEFACT``: one artefact, under its fixed name
artefact      what an artefact says of itself, and the study that it is
observing     numbers of ended runs: losses, right answers, FLOPs to a loss
inspecting    numbers of analyses of ended runs
evaluating    scores of ended runs on evaluation tasks
step_costs    costs of training steps
standing      where all artefacts stand
"""

import difflib
import importlib
import pkgutil
import re

from layermem.paper.artefact import Artefact

_FIXED_NAME = re.compile(r"(fig|table)\d+|prosqa")


def names() -> list[str]:
    """Return the fixed names: figures, then other results, then tables, each by its number."""

    def key(name: str) -> tuple[str, int]:
        number = re.search(r"\d+$", name)
        return name.rstrip("0123456789"), int(number[0]) if number else 0

    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(filter(_FIXED_NAME.fullmatch, modules), key=key)


def get_artefact(name: str) -> Artefact:
    """Return the artefact of a fixed name."""
    if name not in names():
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}"
        raise ValueError(f"unknown artefact {name!r}; {hint}")
    artefact: Artefact = importlib.import_module(f"{__name__}.{name}").ARTEFACT
    return artefact
