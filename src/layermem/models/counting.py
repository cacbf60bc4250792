"""Parameters and FLOPs of one model in closed form, from its config.

A multiply-add counts as two FLOPs and attention as if each query read all keys; norms, rope and the
softmax do not count. The tests compare both numbers with the model and with torch's FLOP counter,
which counts in the same way.

Letters: D width, H query heads, G key-value heads, E head width, V vocabulary.
It does not know: any particular variant, time, devices.
"""

from typing import Any

from layermem.models.configuration import DecoderConfig
from layermem.models.seams import Variant


def count_parameters(config: DecoderConfig, variant: type[Variant[Any]]) -> int:
    """Count the trainable parameters, biases not included."""
    width, layers = config.hidden_size, config.num_hidden_layers
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    norms = (2 * layers + 1) * width
    return _count_linear_weights(config) + embeddings + norms + variant.extra_parameters(config)


def count_forward_flops(config: DecoderConfig, variant: type[Variant[Any]], tokens: int) -> int:
    """Count the forward FLOPs of one token in a sequence of ``tokens``, with the output head."""
    attention = 4 * config.num_attention_heads * config.head_dim * tokens * config.num_hidden_layers
    head = 2 * config.vocab_size * config.hidden_size
    return 2 * _count_linear_weights(config) + head + attention + variant.extra_flops(config)


def _count_linear_weights(config: DecoderConfig) -> int:
    """Count the weights of all projections and mlps, without biases."""
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads)
    per_layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
    return int(config.num_hidden_layers * per_layer)
