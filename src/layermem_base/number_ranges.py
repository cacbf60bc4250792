"""The ranges of numbers in configs: declared with a field, checked when a config is made.

    @dataclass(frozen=True, kw_only=True)
    class Optim:
        lr: float = number(1e-3, at_least(0))

        def __post_init__(self) -> None:
            check_numbers(self, "optim.")

    Optim(lr=-1.0)      ValueError: optim.lr must be at least 0, got -1.0

NaN and infinities are in no range. A field without a default has its range as metadata:
``steps: int = field(metadata=at_least(1))``. Of a tuple or a list each number is checked.
"""

import math
import numbers
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")
_KEY = "range"


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers between two ends, of which round brackets leave out their end."""

    least: float = -math.inf
    most: float = math.inf
    brackets: str = "[]"

    def __contains__(self, value: float) -> bool:
        is_above = value > self.least if self.brackets[0] == "(" else value >= self.least
        is_below = value < self.most if self.brackets[1] == ")" else value <= self.most
        # An integer may be beyond any float.
        return is_above and is_below and abs(value) <= sys.float_info.max

    def __str__(self) -> str:
        left, right = self.brackets[0], self.brackets[1]
        if self.least == -math.inf:
            return "finite"
        if self.most == math.inf:
            return f"{'above' if left == '(' else 'at least'} {self.least}"
        return f"in {left}{self.least}, {self.most}{right}"


def number(default: _T, allowed: Mapping[str, Range]) -> _T:
    """Return a dataclass field of one or more numbers, with a default and the range of each."""
    return field(default=default, metadata=allowed)


def at_least(least: float) -> Mapping[str, Range]:
    """Return the range from ``least`` on, as metadata of a field."""
    return {_KEY: Range(least)}


def above(least: float) -> Mapping[str, Range]:
    """Return the range of what is larger than ``least``."""
    return {_KEY: Range(least, brackets="(]")}


def between(least: float, most: float) -> Mapping[str, Range]:
    """Return a range with both of its ends."""
    return {_KEY: Range(least, most)}


def below(least: float, most: float) -> Mapping[str, Range]:
    """Return the range from ``least`` on to below ``most``."""
    return {_KEY: Range(least, most, "[)")}


FINITE: Mapping[str, Range] = {_KEY: Range()}
"""The range of all finite numbers, as metadata of a field."""
SHARE: Mapping[str, Range] = {_KEY: Range(0, 1, "()")}
"""The range of a share that is neither none nor all."""
SEED = between(0, 2**32 - 1)
"""The range of seeds that all random generators take."""


def check_numbers(config: Any, path: str = "") -> None:
    """Raise ``ValueError`` if a number of a dataclass is not in the range of its field.

    ``path``: what comes before a field's name in the error, as ``"optim."`` or, of an option of a
    command, ``"--"``. None stands for no number, whatever the field.
    """
    of: Any = type(config)
    for name, allowed, is_whole in ranges(of):
        kind: Any = numbers.Integral if is_whole else numbers.Real
        for value in _numbers_in(getattr(config, name)):
            if isinstance(value, bool) or not isinstance(value, kind) or value not in allowed:
                shown = name.replace("_", "-") if path == "--" else name
                raise ValueError(f"{path}{shown} must be {allowed}, got {value!r}")


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
