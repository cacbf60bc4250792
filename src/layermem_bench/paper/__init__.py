"""The paper's tables and figures as data: each one's claim, numbers, boards and drawings.

trained       figures 1, 6, 10 and 11, table 7: models trained on text
reasoning     figure 4, ProsQA: models trained on reasoning tasks
analysed      figures 2, 3, 5, 7, 8 and 9: what goes on inside trained models
evaluated     tables 1, 4, 5 and 6: evaluation tasks
costs         tables 8 and 9: parameters, FLOPs, time and memory
artefact      what an artefact says of itself, and the study that it is
observing, inspecting    numbers that are read off ended runs, and off analyses of them
standing      where all artefacts stand

An artefact is an entry of the ``ARTEFACTS`` of one of the first five files.
"""

import difflib
from collections.abc import Mapping

from layermem_bench.paper import analysed, costs, evaluated, reasoning, trained
from layermem_bench.paper.artefact import Artefact

_ARTEFACTS: Mapping[str, Artefact] = {
    name: artefact
    for file in (trained, reasoning, analysed, evaluated, costs)
    for name, artefact in file.ARTEFACTS.items()
}


def names() -> list[str]:
    """Return the fixed names: figures, then other results, then tables, each by its number."""
    return sorted(_ARTEFACTS, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def get_artefact(name: str) -> Artefact:
    """Return the artefact of a fixed name."""
    if name not in _ARTEFACTS:
        close = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}"
        raise ValueError(f"unknown artefact {name!r}; {hint}")
    return _ARTEFACTS[name]
