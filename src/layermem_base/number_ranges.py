"""The ranges of numbers in configs: declared with a field, checked when a config is made.

    @dataclass(frozen=True, kw_only=True)
    class Optim:
        lr: float = number(1e-3, at_least(0))

        def __post_init__(self) -> None:
            check_numbers(self, "optim.")

    Optim(lr=-1.0)      ValueError: optim.lr must be a number of at least 0, got -1.0

NaN and infinities are in no range. A field without a default has its range as metadata:
``steps: int = field(metadata=at_least(1))``. Of a tuple or a list each number is checked.
"""

import math
import numbers
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")
_KEY = "range"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The finite numbers between two ends."""

    least: float = -math.inf
    """The lower end."""
    most: float = math.inf
    """The upper end."""
    without_least: bool = False
    """Whether the lower end is not in the range."""
    without_most: bool = False
    """Whether the upper end is not in the range."""

    def __contains__(self, value: float) -> bool:
        try:
            finite = math.isfinite(value)
        except OverflowError:  # An integer beyond any float.
            return False
        return (
            finite
            and (value > self.least if self.without_least else value >= self.least)
            and (value < self.most if self.without_most else value <= self.most)
        )

    def __str__(self) -> str:
        if self.least == -math.inf:
            return "finite"
        if self.most == math.inf:
            return f"{'above' if self.without_least else 'at least'} {self.least}"
        left, right = "(" if self.without_least else "[", ")" if self.without_most else "]"
        return f"in {left}{self.least}, {self.most}{right}"


def number(default: _T, allowed: Mapping[str, Range]) -> _T:
    """Return a dataclass field of one or more numbers, with a default and the range of each."""
    return field(default=default, metadata=allowed)


def at_least(least: float) -> Mapping[str, Range]:
    """Return the range from ``least`` on, as metadata of a field."""
    return {_KEY: Range(least=least)}


def above(least: float) -> Mapping[str, Range]:
    """Return the range of what is larger than ``least``, as metadata of a field."""
    return {_KEY: Range(least=least, without_least=True)}


def between(least: float, most: float) -> Mapping[str, Range]:
    """Return a range with both of its ends, as metadata of a field."""
    return {_KEY: Range(least=least, most=most)}


def below(least: float, most: float) -> Mapping[str, Range]:
    """Return the range from ``least`` on to below ``most``, as metadata of a field."""
    return {_KEY: Range(least=least, most=most, without_most=True)}


FINITE: Mapping[str, Range] = {_KEY: Range()}
"""The range of all finite numbers, as metadata of a field."""
SHARE: Mapping[str, Range] = {_KEY: Range(least=0, most=1, without_least=True, without_most=True)}
"""The range of a share that is neither none nor all, as metadata of a field."""
SEED = between(0, 2**32 - 1)
"""The range of seeds that all random generators take, as metadata of a field."""


def check_numbers(config: Any, path: str = "") -> None:
    """Raise ``ValueError`` if a number of a dataclass is not in the range of its field.

    ``path``: what comes before a field's name in the error, as ``"optim."`` or, of an option of a
    command, ``"--"``. None stands for no number, whatever the field.
    """
    kind: Any = type(config)
    for name, allowed, is_whole in ranges(kind):
        for value in _numbers_in(getattr(config, name)):
            check_number(value, allowed, _shown(path, name), is_whole=is_whole)


def check_number(value: Any, allowed: Range, name: str, *, is_whole: bool = False) -> None:
    """Raise ``ValueError`` unless a value is a number in a range; ``is_whole``: an integer."""
    kind: Any = numbers.Integral if is_whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or value not in allowed:
        what = "a whole number" if is_whole else "a number"
        wanted = f"{what}, {allowed}" if math.isinf(allowed.least) else f"{allowed}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


@cache
def ranges(kind: type) -> tuple[tuple[str, Range, bool], ...]:
    """Return the fields of a dataclass that have a range, each with it and whether it is of whole
    numbers."""
    return tuple(
        (f.name, f.metadata[_KEY], float not in number_types(f.type))
        for f in fields(kind)
        if _KEY in f.metadata
    )


def number_types(hint: Any) -> set[type]:
    """Return which of int and float are in the type of a field: ``tuple[float, ...] | None``."""
    if hint in (int, float):
        return {hint}
    if typing.get_origin(hint) is typing.Literal:
        return set()
    return set().union(*map(number_types, typing.get_args(hint)))


def _numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _numbers_in(item)
    elif value is not None:
        yield value


def _shown(path: str, name: str) -> str:
    return f"{path}{name.replace('_', '-') if path == '--' else name}"
