"""What is known by a name: functions that make things of one kind, and options NAME=VALUE."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from layermem_base.plugins import load_plugins, unknown_name

T = TypeVar("T")


class Named(Generic[T]):
    """Functions that make things of one kind, known by their names; those of plugins too."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, tuple[Callable[[], T], str]] = {}

    def add(self, function: Callable[[], T]) -> Callable[[], T]:
        """Make a function known by its name, with dashes, and the first line of what it says."""
        description = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        self.put(function.__name__.replace("_", "-"), function, description)
        return function

    def put(self, name: str, function: Callable[[], T], description: str) -> None:
        """Make a function known by a name."""
        if name in self._known:
            raise ValueError(f"a {self.kind} named {name!r} is known already; rename the function")
        self._known[name] = function, description

    def names(self) -> list[str]:
        """Return all names, those of plugins last."""
        load_plugins()
        return list(self._known)

    def description(self, name: str) -> str:
        """Return the line that says what a name stands for."""
        return self._known[name][1]

    def make(self, name: str, other_names: Iterable[str] = ()) -> T:
        """Return what the function of a name makes; ``other_names`` are such as are understood."""
        if name not in self.names():
            raise unknown_name(self.kind, name, self._known, other_names)
        return self._known[name][0]()


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
