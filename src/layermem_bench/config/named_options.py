"""Options of a variant or a task, each a text NAME=VALUE, as configs have them."""

import json
from collections.abc import Iterable
from contextlib import suppress
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
    values: dict[str, Any] = {}
    for option in options:
        name, _, text = option.partition("=")
        values[name] = text
        with suppress(json.JSONDecodeError):
            values[name] = json.loads(text)
    return values
