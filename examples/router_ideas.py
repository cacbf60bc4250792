"""Two ideas for LIMe's routers as variants of one's own: weights by token, and normed slots.

    layermem study quiet-lm --plugin examples/router_ideas.py --variants plain,recipe,router_ideas

Both begin as the recipe does (``layermem.RECIPE``: routers for keys and values apart, a number for
each source layer, values half of the own and half of the first layer):

    "by_token"    [K~_l]_t = sum_s (w_s + a_s . q_t) [K_s]_t        a_s: 0 at the start
    "normed"      slots are divided by the root mean square of each token's numbers

What came of it: docs/log/2026-11-routers-apart.md.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    DependsOnInput,
    Memory,
    OwnLayerMemory,
    ParameterOverride,
    Variant,
    WeightsUnknown,
)
from layermem.ops.route import Slot


@strict
class RouterIdeasConfig(DecoderConfig):
    """The fields of a LLaMA, and which idea it is."""

    idea: Literal["by_token", "normed", "none"] = "by_token"
    """"by_token" adds a term to weights that depends on the token; "normed" divides slots by their
    root mean square; "none" is the recipe itself, as a check."""


class IdeaMemory(Memory):
    """Weights [keys or values, source] for all heads, the own layer last."""

    def __init__(self, config: RouterIdeasConfig, layer_idx: int) -> None:
        super().__init__()
        self.idea = config.idea
        self.weight = nn.Parameter(torch.empty(2, layer_idx + 1))
        if self.idea == "by_token":
            width = config.num_attention_heads * config.head_dim
            self.by_token = nn.Parameter(torch.empty(2 * (layer_idx + 1), width))

    def reset_parameters(self) -> None:
        initial = torch.zeros(self.weight.shape, device="cpu")
        initial[0, -1] = 1
        initial[1, 0] = initial[1, -1] = 0.5
        initialization.copy_(self.weight, initial)
        if self.idea == "by_token":
            initialization.zeros_(self.by_token)

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        # [keys or values, source, B, 1, T, 1].
        weights = self.weight[:, :, None, None, None, None]
        if self.idea == "by_token":
            by_token = query.transpose(1, 2).flatten(2) @ self.by_token.t()
            by_token = by_token.unflatten(-1, self.weight.shape).permute(2, 3, 0, 1)
            weights = weights + by_token[:, :, :, None, :, None]
        sums = []
        for part in (0, 1):
            read = [slot[part] for slot in slots]
            if self.idea == "normed":
                read = [x * (x.square().mean((1, 3), keepdim=True) + 1e-6).rsqrt() for x in read]
            sums.append(sum(w * x for w, x in zip(weights[part], read, strict=True)))
        return sums[0], sums[1]

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        if self.idea == "by_token":
            raise DependsOnInput("weights of router_ideas depend on the token")
        raise WeightsUnknown("a router_ideas has weights for keys and for values")


class RouterIdeas(Variant[RouterIdeasConfig]):
    """Differences from the plain decoder: the memory of every layer but the first."""

    overrides = (ParameterOverride(module=IdeaMemory, lr=1e-2, weight_decay=0.0),)
    plain_fields = None

    @classmethod
    def sources(cls, config: RouterIdeasConfig, layer_idx: int) -> tuple[int, ...]:
        return tuple(range(layer_idx))

    @classmethod
    def memory(cls, config: RouterIdeasConfig, layer_idx: int) -> Memory:
        return IdeaMemory(config, layer_idx) if layer_idx else OwnLayerMemory()

    @classmethod
    def extra_parameters(cls, config: RouterIdeasConfig) -> int:
        sources = sum(range(2, config.num_hidden_layers + 1))
        width = config.num_attention_heads * config.head_dim
        return 2 * sources * (1 + width * (config.idea == "by_token"))

    @classmethod
    def extra_flops(cls, config: RouterIdeasConfig) -> int:
        sources = sum(range(2, config.num_hidden_layers + 1))
        width = config.num_attention_heads * config.head_dim
        return 4 * sources * width * (config.idea == "by_token")


declare("router_ideas", RouterIdeasConfig, RouterIdeas)
