"""Options of a variant or a task, each a text NAME=VALUE, as configs have them.

merged(["router=last", "seed=1"], ["router=first"])    ("router=first", "seed=1")
parse_options(["router=last", "window=4"])             {"router": "last", "window": 4}
"""

import json
from collections.abc import Iterable
from typing import Any


def merged(options: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return options, each NAME=VALUE, with ``others`` added or in place of those of one name."""
    return tuple({option.partition("=")[0]: option for option in (*options, *others)}.values())


def check_options(section: str, options: Iterable[str]) -> None:
    """Raise, naming the section of the config, if an option is not NAME=VALUE."""
    for option in options:
        if not option.partition("=")[1] or not option.partition("=")[0].isidentifier():
            raise ValueError(f"{section}.options must be NAME=VALUE each, got {option!r}")


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Return options as a dict; values are read as JSON where they are JSON."""
    pairs = (option.partition("=") for option in options)
    return {name: _parse_value(text) for name, _, text in pairs}


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
