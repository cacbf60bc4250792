"""Parameters and FLOPs in closed form, from a config alone.

Two FLOPs a multiply-add; attention without the causal saving; norms, rope and the softmax are not
counted, as torch's counter does not count them; a training step is three forwards. tests hold both
against the model and against torch's counter.

Letters: D width, H query heads, G key-value heads, E head width, V vocabulary.
It does not know: any particular variant, time, devices.
"""

from typing import Any

from layermem.models.configuration import DecoderConfig
from layermem.models.seams import Variant


def parameters(config: DecoderConfig, variant: type[Variant[Any]]) -> int:
    """Count the trainable parameters, without biases."""
    width, layers = config.hidden_size, config.num_hidden_layers
    embeddings = config.vocab_size * width * (1 if config.tie_word_embeddings else 2)
    norms = (2 * layers + 1) * width
    return _linear(config) + embeddings + norms + variant.extra_parameters(config)


def forward_flops(config: DecoderConfig, variant: type[Variant[Any]], tokens: int) -> int:
    """Count the FLOPs of one token's forward in a sequence of ``tokens``, the head included."""
    attention = 4 * config.num_attention_heads * config.head_dim * tokens * config.num_hidden_layers
    head = 2 * config.vocab_size * config.hidden_size
    return 2 * _linear(config) + head + attention + variant.extra_flops(config)


def _linear(config: DecoderConfig) -> int:
    """Weights of the projections and the mlp."""
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads)
    per_layer = config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)
    return int(config.num_hidden_layers * per_layer)
