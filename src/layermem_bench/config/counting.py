"""Parameters and FLOPs of one model in closed form, from its sizes.

A multiply-add counts as two FLOPs and attention as if each query read all keys; norms, rope and the
softmax do not count. The tests compare both numbers with the model and with torch's FLOP counter,
which counts in the same way.

Letters: D width, H query heads, G key-value heads, E head width, V vocabulary.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from layermem.models.seams import Variant

    Additions: TypeAlias = type[Variant[Any]]
else:
    # What a variant adds to the plain decoder, without importing any.
    Additions = Any
Sizes: TypeAlias = Any
"""The config of a model, or ``plain_sizes``."""


def plain_sizes(fields: Mapping[str, Any]) -> Sizes:
    """Return the sizes of a plain decoder, without its config class and so without transformers."""
    heads = fields["num_attention_heads"]
    own = {
        "num_key_value_heads": fields["num_key_value_heads"] or heads,
        "head_dim": fields["hidden_size"] // heads,
    }
    return SimpleNamespace(**{"attention_bias": False, "mlp_bias": False, **fields, **own})


def count_parameters(config: Sizes, variant: Additions | None = None) -> int:
    """Count the trainable parameters; ``variant`` None: the plain decoder."""
    width, layers = config.hidden_size, config.num_hidden_layers
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    norms = (2 * layers + 1) * width
    extra = variant.extra_parameters(config) if variant else 0
    return (
        count_linear_weights(config) + _count_biases(config, variant) + embeddings + norms + extra
    )


def count_forward_flops(config: Sizes, variant: Additions | None, tokens: int) -> int:
    """Count the forward FLOPs of one token in a sequence of ``tokens``, with the output head."""
    attention = 4 * config.num_attention_heads * config.head_dim * tokens * config.num_hidden_layers
    head = 2 * config.vocab_size * config.hidden_size
    extra = variant.extra_flops(config) if variant else 0
    return 2 * count_linear_weights(config) + head + attention + extra


def count_linear_weights(config: Sizes) -> int:
    """Count the weights of all projections and mlps, without biases."""
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads)
    per_layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
    return int(config.num_hidden_layers * per_layer)


def _count_biases(config: Sizes, variant: Additions | None) -> int:
    """Count the biases of projections and mlps."""
    width, layers, count = config.hidden_size, range(config.num_hidden_layers), 0
    if config.attention_bias:
        parts = sum(2 if variant is None else len(variant.projects(config, i)) for i in layers)
        count += len(layers) * (config.num_attention_heads * config.head_dim + width)
        count += parts * config.num_key_value_heads * config.head_dim
    if config.mlp_bias:
        count += len(layers) * (2 * config.intermediate_size + width)
    return count


def count_cached(config: Sizes, variant: Additions | None = None) -> int:
    """Count the numbers, of keys and values, that a cache holds for one token."""
    layers = range(config.num_hidden_layers)
    storing = [i for i in layers if variant is None or not variant.lenders(config, i)]
    return len(storing) * _count_of_entry(config)


def count_read(config: Sizes, variant: Additions | None = None) -> int:
    """Count the numbers that one decoded token reads of each token in the cache."""
    layers = range(config.num_hidden_layers)
    entries = sum(1 if variant is None else variant.entries_read(config, i) for i in layers)
    return entries * _count_of_entry(config)


def _count_of_entry(config: Sizes) -> int:
    return 2 * config.num_key_value_heads * config.head_dim
