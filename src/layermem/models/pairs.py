"""Pairs: two variants in one model, one that fills the memory seam and one that fills the stream.

``lookup("lime+hyper_connections")`` makes the classes of a pair when it is first asked for; the
variant of the memory is named first. The config has the fields of both. The seams are filled by the
variant that fills them alone, and what both have (optimiser settings, counts, metrics) is joined.

Pickle, and the module that is saved beside a checkpoint, find the classes as attributes of this
module, which makes them if need be.
"""

import inspect
import itertools
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

SIGN = "+"


def declare_pair(name: str) -> registry.RegisteredVariant:
    """Make and register the classes of a pair, ``"lime+hyper_connections"``."""
    memory, stream = (registry.lookup(part) for part in _parts(name))
    config = _join_configs(name, memory.config, stream.config)
    setattr(sys.modules[__name__], config.__name__, config)
    variant = _join_variants(memory.variant, stream.variant)
    bases = tuple(b for b in (memory.base, stream.base) if b is not PreTrainedDecoder)
    base = types.new_class("PairMethods", bases) if len(bases) > 1 else None
    return registry.declare(
        name, config, variant, base=base or (bases[0] if bases else PreTrainedDecoder)
    )


def _parts(name: str) -> list[str]:
    """Return the two variants of a pair, memory first; raise if they are no pair."""
    names = name.split(SIGN)
    seams = [filled_seams(registry.lookup(part).variant) for part in names]
    if seams != [("memory",), ("stream",)]:
        filled = "; ".join(
            f"{part} fills {' and '.join(seam) or 'neither'}"
            for part, seam in zip(names, seams, strict=True)
        )
        raise ValueError(
            f"{name!r} is no pair: a pair names a variant of the memory seam, then one of the "
            f"stream seam; {filled}"
        )
    return names


def _join_configs(
    name: str, memory: type[DecoderConfig], stream: type[DecoderConfig]
) -> type[DecoderConfig]:
    """Return a config with the fields and checks of both."""
    own = [
        {f.name for f in fields(c)} - {f.name for f in fields(DecoderConfig)}
        for c in (memory, stream)
    ]
    if both := sorted(own[0] & own[1]):
        raise ValueError(
            f"{name!r} cannot be one model: both variants have a field {', '.join(both)}"
        )
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
    cls = types.new_class(
        _prefix(memory, stream) + "Config", (memory, stream), exec_body=lambda s: s.update(body)
    )
    return strict(cls)


def _prefix(memory: type[DecoderConfig], stream: type[DecoderConfig]) -> str:
    return "".join(config.__name__.removesuffix("Config") for config in (memory, stream))


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


def __getattr__(name: str) -> Any:
    """Make the pair that a class belongs to, and return the class."""
    by_seam: dict[tuple[str, ...], list[str]] = {}
    for variant in registry.variants():
        by_seam.setdefault(filled_seams(registry.lookup(variant).variant), []).append(variant)
    for pair in itertools.product(by_seam.get(("memory",), ()), by_seam.get(("stream",), ())):
        prefix = _prefix(*(registry.lookup(part).config for part in pair))
        # The rest is Config, Model, ForCausalLM and so on: no other pair's prefix is longer.
        if name.startswith(prefix):
            registry.lookup(SIGN.join(pair))
            if name in globals():
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
