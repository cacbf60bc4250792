"""Pairs: two variants in one model, one that fills the memory seam and one that fills the stream.

``lime+hyper_connections`` names the variant of the memory first. The config has the fields of both.
The seams are filled by the variant that fills them alone, and what both have (optimiser settings,
counts, metrics) is joined. The classes of all pairs are attributes of this module.
"""

import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from operator import add, or_
from typing import Any

from huggingface_hub.dataclasses import strict

from layermem.models import registry
from layermem.models.configuration import DecoderConfig
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import SEAMS, Variant, filled_seams

# Methods whose results are joined, and how: of both configs, models or modules one thing.
_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "init_weights": or_,
    "metrics": or_,
    "extra_parameters": add,
    "extra_flops": add,
    "plain_fields_beside": lambda memory, stream: {**memory, **stream},
}


def declare_pairs(name: str) -> None:
    """Make and register the classes of all pairs of a variant with another."""
    for other in registry.list_variants():
        for pair in ((name, other), (other, name)):
            if not reason_against(*pair):
                _declare(*pair)


def reason_against(*names: str) -> str:
    """Return why variants are no pair; "" if they are."""
    entries = [registry.lookup(name) for name in names]
    seams = [filled_seams(entry.variant) for entry in entries]
    if seams != [("memory",), ("stream",)]:
        filled = "; ".join(
            f"{name} fills {' and '.join(seam) or 'neither'}"
            for name, seam in zip(names, seams, strict=True)
        )
        return f"a pair names a variant of the memory seam, then one of the stream seam; {filled}"
    # Of a check, as of a field, a config has one of each name.
    of_all = {field.name for field in fields(DecoderConfig)} | set(dir(DecoderConfig))
    own = [
        {field.name for field in fields(entry.config)}
        | {name for name in dir(entry.config) if name.startswith("validate_")}
        for entry in entries
    ]
    both = sorted((own[0] & own[1]) - of_all)
    return f"both variants have a field {', '.join(both)}" if both else ""


def _declare(*names: str) -> None:
    memory, stream = map(registry.lookup, names)
    config = _join_configs(memory.config, stream.config)
    setattr(sys.modules[__name__], config.__name__, config)
    variant = _join_variants(memory.variant, stream.variant)
    bases = [b for b in (memory.base, stream.base) if b is not PreTrainedDecoder]
    base = types.new_class("PairMethods", (*bases, PreTrainedDecoder))
    registry.declare("+".join(names), config, variant, base=base)


def _join_configs(memory: type[DecoderConfig], stream: type[DecoderConfig]) -> type[DecoderConfig]:
    """Return a config with the fields and checks of both."""
    body = {
        "__module__": __name__,
        "__doc__": f"The fields of {memory.__name__} and {stream.__name__}.",
        # Whether attention may be sharded is for the memory to say.
        "base_model_tp_plan": memory.base_model_tp_plan,
    }
    name = memory.__name__.removesuffix("Config") + stream.__name__
    return strict(types.new_class(name, (memory, stream), exec_body=lambda s: s.update(body)))


def _join_variants(memory: type[Variant[Any]], stream: type[Variant[Any]]) -> type[Variant[Any]]:
    """Return a variant whose seams are filled by one each."""

    def join(method: str) -> Any:
        of_memory, of_stream = getattr(memory, method), getattr(stream, method)
        return staticmethod(lambda what: _JOINED[method](of_memory(what), of_stream(what)))

    plain = (memory.plain_fields, stream.plain_fields)
    body = {
        "__module__": __name__,
        "__doc__": f"{inspect.getdoc(memory)}\n\n{inspect.getdoc(stream)}",
        "source": ", ".join(filter(None, (memory.source, stream.source))),
        "overrides": (*memory.overrides, *stream.overrides),
        "plain_fields": None if None in plain else {**(plain[0] or {}), **(plain[1] or {})},
        **{method: join(method) for method in _JOINED},
    }
    for side, seam in ((memory, "memory"), (stream, "stream")):
        body |= {method: staticmethod(getattr(side, method)) for method in SEAMS[seam]}
    name = f"{memory.__name__}And{stream.__name__}"
    return types.new_class(name, (Variant,), exec_body=lambda space: space.update(body))
