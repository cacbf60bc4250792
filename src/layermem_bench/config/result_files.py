"""Results as JSON files: {"kind": "analysis", "version": 1, "command": ..., ...}.

Another kind or version is refused: a changed field would be a plausible wrong number.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from layermem_bench.config.typed_dicts import from_dict, to_dict


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
