"""Results as JSON files: the name of the kind and its version first, then the fields.

    {"kind": "analysis", "version": 1, "command": "layermem analyze ...", ...}

A file of another kind or version is refused, with the command that writes it anew: a field that has
changed its meaning would be a plausible wrong number.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from layermem.typed_dicts import from_dict, to_dict


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
    except ValueError as error:
        raise ValueError(f"{where} is not what {cls.COMMAND} writes ({error})") from error
    if not isinstance(values, dict) or values.pop("kind", None) not in (cls.KIND, None):
        raise ValueError(f"{where} is not what {cls.COMMAND} writes")
    version = values.pop("version", None)
    if version is None:
        raise ValueError(
            f"{where} is not what {cls.COMMAND} writes, or was written before results had "
            f"versions: write it again with {cls.COMMAND}"
        )
    if version != cls.VERSION:
        by = f"in version {version}"
        raise ValueError(
            f"{where} was written {by}, and this layermem reads version {cls.VERSION} of "
            f"{cls.KIND} results: write it again{_again(cls, values)}"
        )
    try:
        return from_dict(cls, values, "")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{where} is damaged ({error}): write it again{_again(cls, values)}"
        ) from error


def read_result(cls: type[_R], path: Path) -> _R:
    """Return the result in a file, or in the file KIND.json of a folder."""
    file = path / f"{cls.KIND}.json" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist; {cls.COMMAND} writes it")
    return from_json(cls, file.read_text(encoding="utf-8"), str(file))


def _again(cls: type[Result], values: dict[str, Any]) -> str:
    """Return the command that writes a file anew: the recorded one, else its name."""
    command = values.get("command")
    return f" with {command if isinstance(command, str) and command else cls.COMMAND}"
