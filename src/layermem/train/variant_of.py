"""``variant_of``: what the trainer asks of a model, ours or transformers' with attached memory.

A model of transformers has no ``Variant``: the routers of an attached model are all that differs in
training.

Letters: H query heads, E head width, T tokens, L layers.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn
from transformers.pytorch_utils import Conv1D

from layermem.counting import count_forward_flops
from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.routers import router_metrics
from layermem.models.seams import ParameterOverride
from layermem.variants.lime import LimeRouter

_ROUTER_LR = 5e-3


class TrainedVariant(Protocol):
    """What decides about the optimizer's groups and the rows of metrics."""

    @property
    def overrides(self) -> Sequence[ParameterOverride]: ...
    def metrics(self, model: Any, /) -> dict[str, float]: ...


class AttachedMemory:
    """The routers of a model of transformers: a rate of their own, and no weight decay."""

    overrides = (ParameterOverride(module=LimeRouter, lr=_ROUTER_LR, weight_decay=0.0),)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Return what the routers look like, as LIMe's own runs do."""
        return router_metrics(model)


def is_ours(model: nn.Module) -> bool:
    """Return whether a model is a decoder of this library."""
    return isinstance(model, DecoderForCausalLM)


def variant_of(model: Any) -> TrainedVariant:
    """Return the variant of a decoder of ours, or what stands for it in an attached model."""
    variant: TrainedVariant = model.variant if is_ours(model) else AttachedMemory()
    return variant


def forward_flops(model: Any, tokens: int) -> int:
    """Count the forward FLOPs of one token in a sequence of ``tokens``.

    Of a model of transformers: two for each weight of a linear layer, two for each weight of a
    router and both keys and values, and 4 H E T L for attention to all keys. Norms, rope and
    activations do not count.
    """
    if is_ours(model):
        return count_forward_flops(model.config, model.variant, tokens)
    config = model.config.get_text_config()
    weights = 0
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            weights += module.weight.numel()
        elif isinstance(module, LimeRouter):
            weights += 2 * module.weight.numel() * _head_width(config)
    heads = config.num_attention_heads * _head_width(config)
    return 2 * weights + 4 * heads * tokens * int(config.num_hidden_layers)


def _head_width(config: Any) -> int:
    width = getattr(config, "head_dim", None)
    return int(width or config.hidden_size // config.num_attention_heads)
