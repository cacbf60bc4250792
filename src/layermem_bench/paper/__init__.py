"""The paper's tables and figures as data: each one's claim, numbers, boards and drawings.

An artefact is an entry of the ``ARTEFACTS`` of one of the four files that are imported here.
"""

import difflib
from collections.abc import Mapping

from layermem_bench.paper import analysed, costs, evaluated, trained
from layermem_bench.paper.artefact import Artefact

_ARTEFACTS: Mapping[str, Artefact] = {
    name: artefact
    for file in (trained, analysed, evaluated, costs)
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
