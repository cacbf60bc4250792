"""Find the facts of variants at the shape of the paper's 1B: counted, or seen in a narrow model."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import DynamicCache

from layermem.efficiency.model_sizes import model_sizes
from layermem.models.decoder import Decoder, DecoderLayer
from layermem.models.registry import RegisteredVariant, lookup, variants
from layermem.models.seams import filled_seams
from layermem.presets import get_preset
from layermem.results.variant_facts import VariantFacts

SHAPE = "paper-1b-gqa"
_BYTES = 2
_TOKENS = 3


def find_facts(names: Sequence[str] | None = None) -> list[VariantFacts]:
    """Return the facts of these variants, of all registered ones if none are named."""
    return [_facts_of(name) for name in (variants() if names is None else names)]


def _facts_of(name: str) -> VariantFacts:
    entry = lookup(name)
    fields, _ = model_sizes(get_preset(SHAPE))
    config, plain = entry.config(**fields), entry.variant.plain_fields
    depth, cache = _count_elements(entry, fields)
    return VariantFacts(
        name=name,
        seams=filled_seams(entry.variant),
        extra_parameters=entry.variant.extra_parameters(config),
        extra_flops=entry.variant.extra_flops(config),
        depth_bytes=_BYTES * depth,
        cache_bytes=_BYTES * cache,
        plain_fields=None if plain is None else ", ".join(f"{k}={v}" for k, v in plain.items()),
        source=entry.variant.source,
    )


def _count_elements(entry: RegisteredVariant, fields: dict[str, Any]) -> tuple[int, int]:
    """Return, for a token, the numbers a layer hands on, on average, and those in the cache.

    They are seen in a model whose heads have width 2, and are proportional to that width.
    """
    heads = fields["num_attention_heads"]
    width = fields["hidden_size"] // heads
    narrow = {"hidden_size": 2 * heads, "intermediate_size": 8, "vocab_size": 8}
    model = entry.decoder(entry.config(**{**fields, **narrow})).eval()
    handed_on, cache = _run(model)
    return round(handed_on * width / 2 / len(model.layers)), round(cache * width / 2)


@torch.no_grad()
def _run(model: Decoder) -> tuple[float, float]:
    """Return the numbers that all layers hand on, and those in the cache, for one token."""
    counts: list[int] = []

    def count(layer: DecoderLayer, inputs: Any, outputs: tuple[torch.Tensor, ...]) -> None:
        counts.append(sum(tensor.numel() for tensor in outputs))

    for layer in cast("list[DecoderLayer]", model.layers):
        layer.register_forward_hook(count)
        # With a hook on a memory, layers hand their slots on one by one, not in one buffer.
        layer.self_attn.memory.register_forward_pre_hook(lambda *_: None)
    cache = DynamicCache(config=model.config)
    model(torch.zeros(1, _TOKENS, dtype=torch.long), cache=cache, use_cache=True)
    cached = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    return sum(counts) / _TOKENS, cached / _TOKENS
