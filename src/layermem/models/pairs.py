"""Pairs: two variants in one model, one that fills the memory seam and one that fills the stream.

``lime+hyper_connections`` names the variant of the memory first. The config has the fields of both.
The seams are filled by the variant that fills them alone, and what both have (optimiser settings,
counts, metrics) is joined. The classes of all pairs are attributes of this module.
"""

import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import nn

from layermem.models import registry
from layermem.models.configuration import DecoderConfig
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import SEAMS, Variant, filled_seams


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
    own = [
        {f.name for f in fields(entry.config)} - {f.name for f in fields(DecoderConfig)}
        for entry in entries
    ]
    both = sorted(own[0] & own[1])
    return f"both variants have a field {', '.join(both)}" if both else ""


def _declare(*names: str) -> None:
    memory, stream = map(registry.lookup, names)
    config = _join_configs(memory.config, stream.config)
    setattr(sys.modules[__name__], config.__name__, config)
    variant = _join_variants(memory.variant, stream.variant)
    bases = tuple(b for b in (memory.base, stream.base) if b is not PreTrainedDecoder)
    base = types.new_class("PairMethods", bases) if len(bases) > 1 else None
    registry.declare(
        "+".join(names),
        config,
        variant,
        base=base or (bases[0] if bases else PreTrainedDecoder),
    )


def _join_configs(memory: type[DecoderConfig], stream: type[DecoderConfig]) -> type[DecoderConfig]:
    """Return a config with the fields and checks of both."""
    checks = [
        {check for check in dir(c) if check.startswith("validate_")} - set(dir(DecoderConfig))
        for c in (memory, stream)
    ]

    def join(check: str) -> Any:
        def validate(self: Any) -> None:
            getattr(memory, check)(self)
            getattr(stream, check)(self)

        return validate

    body = {
        "__module__": __name__,
        "__doc__": f"The fields of {memory.__name__} and {stream.__name__}.",
        "shape_fields": tuple(dict.fromkeys((*memory.shape_fields, *stream.shape_fields))),
        # Whether attention may be sharded is for the memory to say.
        "base_model_tp_plan": memory.base_model_tp_plan,
        **{check: join(check) for check in checks[0] & checks[1]},
    }
    name = memory.__name__.removesuffix("Config") + stream.__name__
    return strict(types.new_class(name, (memory, stream), exec_body=lambda s: s.update(body)))


def _join_variants(memory: type[Variant[Any]], stream: type[Variant[Any]]) -> type[Variant[Any]]:
    """Return a variant whose seams are filled by one each."""
    plain = [side.plain_fields for side in (memory, stream)]

    def init_weights(module: nn.Module) -> bool:
        return memory.init_weights(module) or stream.init_weights(module)

    def metrics(model: nn.Module) -> dict[str, float]:
        return {**memory.metrics(model), **stream.metrics(model)}

    def extra_parameters(config: DecoderConfig) -> int:
        return memory.extra_parameters(config) + stream.extra_parameters(config)

    def extra_flops(config: DecoderConfig) -> int:
        return memory.extra_flops(config) + stream.extra_flops(config)

    def plain_fields_beside(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**memory.plain_fields_beside(given), **stream.plain_fields_beside(given)}

    joined = (init_weights, metrics, extra_parameters, extra_flops, plain_fields_beside)
    body = {
        "__module__": __name__,
        "__doc__": f"{inspect.getdoc(memory)}\n\n{inspect.getdoc(stream)}",
        "source": ", ".join(side.source for side in (memory, stream) if side.source),
        "overrides": (*memory.overrides, *stream.overrides),
        "plain_fields": None
        if None in plain
        else {k: v for p in plain for k, v in (p or {}).items()},
        **{function.__name__: staticmethod(function) for function in joined},
    }
    for side, seam in ((memory, "memory"), (stream, "stream")):
        body |= {method: staticmethod(getattr(side, method)) for method in SEAMS[seam]}
    name = f"{memory.__name__}And{stream.__name__}"
    return types.new_class(name, (Variant,), exec_body=lambda space: space.update(body))
