"""Dataclasses to plain dicts and back, every value of its field's type; results as JSON files.

A result file is {"kind": "analysis", "version": 1, "command": ..., ...}.

Types that are understood: dataclasses, ``tuple[T, ...]``, ``Mapping[str | int, T]``, ``T | None``,
``Literal``, bool, int, float, str and ``Any``. Where a float is asked for, an int is taken, and a
text such as 1e-3, which is no number to YAML; nothing else is converted. A file of another kind or
version is refused: a changed field would be a plausible wrong number.
"""

import functools
import json
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

_T = TypeVar("_T")


def to_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain dicts, lists and scalars, as JSON would hold them."""
    return dict(json.loads(json.dumps(asdict(value))))


def from_dict(cls: type[_T], values: Any, path: str) -> _T:
    """Return the dataclass of these values; ``path`` comes before a field's name in an error."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{path or 'it'} must hold named fields, got {values!r}")
    hints = _types_of_fields(cls)  # type: ignore[arg-type]
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(names)):
        paths = ", ".join(f"{path}{name}" for name in unknown)
        raise ValueError(f"unknown {paths}; there are {', '.join(names)}")
    required = (f for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING)  # type: ignore[arg-type]
    if missing := [f"{path}{field.name}" for field in required if field.name not in values]:
        raise ValueError(f"{', '.join(missing)} missing")
    return cls(**{name: checked(hints[name], v, f"{path}{name}") for name, v in values.items()})


@functools.cache
def _types_of_fields(cls: Any) -> dict[str, Any]:
    # A study reads the configs of all its runs.
    return typing.get_type_hints(cls)


def checked(hint: Any, value: Any, path: str) -> Any:
    """Return ``value`` as the type ``hint``; raise, naming ``path``, if it is of another type."""
    if hint is Any:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return from_dict(hint, value, f"{path}.")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(checked(arguments[0], item, path) for item in value)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return _checked_mapping(arguments, value, path)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (hint,) = (argument for argument in arguments if argument is not types.NoneType)
        return checked(hint, value, path)
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError(f"{path} must be one of {', '.join(map(repr, arguments))}, got {value!r}")
    return _checked_scalar(hint, value, path)


def _checked_mapping(arguments: tuple[Any, ...], value: Any, path: str) -> dict[Any, Any]:
    """Return a dict whose keys are of the first type (JSON writes an int key as a text)."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{path} must map names to values, got {value!r}")
    key_type, value_type = arguments
    keys = [int(key) if key_type is int else checked(key_type, key, path) for key in value]
    items = (checked(value_type, item, f"{path}.{key}") for key, item in value.items())
    return dict(zip(keys, items, strict=True))


def _checked_scalar(hint: Any, value: Any, path: str) -> Any:
    # A bool is an int to Python, but a user who writes true does not mean 1.
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError):
            return float(value)
    kind = typing.get_origin(hint) or hint
    if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
        raise ValueError(f"{path} must be {getattr(hint, '__name__', hint)}, got {value!r}")
    return value


class Result(Protocol):
    """A dataclass that is written to a file of its own."""

    KIND: ClassVar[str]
    """Name of the kind of result; its file in a folder is KIND.json."""
    VERSION: ClassVar[int]
    """Raised whenever a field is added, taken out or changes its meaning."""
    COMMAND: ClassVar[str]
    """Command that writes it, without options."""
    __dataclass_fields__: ClassVar[dict[str, Any]]


_R = TypeVar("_R", bound=Result)


def to_json(result: Result) -> str:
    """Return a result as JSON, with its kind and version."""
    values = {"kind": result.KIND, "version": result.VERSION, **to_dict(result)}
    # What is not finite has no word in JSON, and other readers would refuse the file.
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def from_json(cls: type[_R], text: str, where: str) -> _R:
    """Return the result that ``to_json`` wrote; ``where`` names its file in errors."""
    try:
        values = json.loads(text)
        of = values.pop("kind"), values.pop("version")
        if of != (cls.KIND, cls.VERSION):
            raise ValueError(f"version {of[1]} of {of[0]}, not {cls.VERSION} of {cls.KIND}")
        return from_dict(cls, values, "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where} is not what {cls.COMMAND} writes ({error}): write it again with that command"
        ) from error


def read_result(cls: type[_R], path: Path) -> _R:
    """Return the result in a file, or in the file KIND.json of a folder."""
    file = path / f"{cls.KIND}.json" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist; {cls.COMMAND} writes it")
    return from_json(cls, file.read_text(encoding="utf-8"), str(file))
