"""``Named``: functions that make things of one kind, known by their names; those of plugins too."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from layermem_base.plugins import load_plugins, unknown_name

T = TypeVar("T")


class Named(Generic[T]):
    """Functions that make things of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._functions: dict[str, Callable[[], T]] = {}
        self._descriptions: dict[str, str] = {}

    def add(self, function: Callable[[], T]) -> Callable[[], T]:
        """Make a function known by its name, with dashes, and the first line of what it says."""
        description = (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        self.put(function.__name__.replace("_", "-"), function, description)
        return function

    def put(self, name: str, function: Callable[[], T], description: str) -> None:
        """Make a function known by a name."""
        if name in self._functions:
            raise ValueError(f"a {self.kind} named {name!r} is known already; rename the function")
        self._functions[name], self._descriptions[name] = function, description

    def names(self) -> list[str]:
        """Return all names, those of plugins last."""
        load_plugins()
        return list(self._functions)

    def description(self, name: str) -> str:
        """Return the line that says what a name stands for."""
        return self._descriptions[name]

    def make(self, name: str, other_names: Iterable[str] = ()) -> T:
        """Return what the function of a name makes; ``other_names`` are such as are understood."""
        if name not in self.names():
            raise unknown_name(self.kind, name, self._functions, other_names)
        return self._functions[name]()
