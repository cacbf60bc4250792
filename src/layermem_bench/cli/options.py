"""Reads the options of a command by tyro; its help is wrapped to the width of the terminal."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from inspect import cleandoc
from typing import Any, TypeVar

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
