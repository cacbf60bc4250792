"""Reads the options of a command by tyro; its help is wrapped to the width of the terminal."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from inspect import cleandoc
from itertools import takewhile
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import (
    MISSING_NONPROP,
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

_T = TypeVar("_T")


def read_options(
    kind: type[_T], command: str, args: Sequence[str], default: _T = MISSING_NONPROP
) -> _T:
    """Return the options of a command, an instance of its dataclass.

    ``--help`` prints them, below what the command does, and exits.
    """
    _check_repeated(kind, args)
    if {"-h", "--help"} & set(args):
        width = shutil.get_terminal_size().columns
        paragraphs = cleandoc(kind.__doc__ or "").split("\n\n")
        sys.stdout.writelines(f"{textwrap.fill(each, width)}\n\n" for each in paragraphs)
    return tyro.cli(
        kind,
        prog=f"layermem {command}",
        # tyro does not wrap a description.
        description="",
        args=list(args),
        default=default,
        registry=_registry(),
    )


def _check_repeated(kind: type[Any], args: Sequence[str]) -> None:
    """Raise where an option of several values is given twice: tyro would take the last use alone.

    Of an option of one value the last use counts, as of other commands.
    """
    lists, seen = _list_options(kind), set[str]()
    for arg in takewhile(lambda arg: arg != "--", args):
        # tyro reads dashes and underscores alike.
        option = arg.partition("=")[0].replace("_", "-")
        if not option.startswith("--") or option[2:].rpartition(".")[2] not in lists:
            continue
        if option in seen:
            raise ValueError(
                f"{option} is given twice: give it once, with all its values, as in {option} A B"
            )
        seen.add(option)


def _list_options(kind: type[Any]) -> set[str]:
    """Return the names of a command's options that take several values, without prefixes and
    without those whose uses add up."""
    names = set[str]()
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if tyro.conf.UseAppendAction in getattr(hint, "__metadata__", ()):
            continue
        for each in _alternatives(hint):
            if get_origin(each) is tuple:
                names.add(name.replace("_", "-"))
            elif isinstance(each, type) and is_dataclass(each):
                names |= _list_options(each)
    return names


def _alternatives(hint: Any) -> Iterator[Any]:
    """Yield the types of a hint, each by itself."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _alternatives(get_args(hint)[0])
    elif origin in (Union, UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    else:
        yield hint


def _registry() -> ConstructorRegistry:
    """Return tyro's rules with help texts of one paragraph for each field of a dataclass.

    tyro keeps a line break before an indented line, and docstrings of fields are indented.
    """
    registry, inside = ConstructorRegistry(), list[Any]()

    @registry.struct_rule
    def with_paragraphs(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not is_dataclass(info.type) or inside:
            return None
        inside.append(info)
        spec = ConstructorRegistry.get_struct_spec(info)
        inside.clear()
        if not isinstance(spec, StructConstructorSpec):
            return None
        fields = (replace(each, helptext=partial(_paragraph, each)) for each in spec.fields)
        return replace(spec, fields=tuple(fields))

    return registry


def _paragraph(field: StructFieldSpec) -> str | None:
    text = field.helptext() if callable(field.helptext) else field.helptext
    return text and " ".join(text.split())
