"""The studies that there are by name: the paper's artefacts, and those of plugins.

    @study
    def my_rates() -> Study:
        "What it shows, in a line."

A study's name is its function's, with dashes. Boards (presets and shapes of them), ``retrofit`` and
``encoders`` are studies too, which the command line makes from its options.
"""

import difflib
from collections.abc import Callable

from layermem.plugins import load_plugins
from layermem.study.definition import Study

_STUDIES: dict[str, Callable[[], Study]] = {}


def study(function: Callable[[], Study]) -> Callable[[], Study]:
    """Make a study known by its function's name, with dashes."""
    name = function.__name__.replace("_", "-")
    if name in _STUDIES:
        raise ValueError(f"a study named {name!r} is known already; rename the function")
    _STUDIES[name] = function
    return function


def names() -> list[str]:
    """Return the names of the studies that were made known."""
    load_plugins()
    return list(_STUDIES)


def description(name: str) -> str:
    """Return a study's one line."""
    return (_STUDIES[name].__doc__ or "").strip().partition("\n")[0].rstrip(".")


def get_study(name: str) -> Study:
    """Return the study of a name."""
    if name not in names():
        close = difflib.get_close_matches(name, _STUDIES, n=1)
        hint = (
            f"did you mean {close[0]}?" if close else f"there are {', '.join(_STUDIES) or 'none'}"
        )
        raise ValueError(f"unknown study {name!r}; {hint}")
    return _STUDIES[name]()
