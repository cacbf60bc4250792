"""FusedKV: upper layers attend to a learned mixture of keys and of values of two lower layers.

With m = L - n - 1 the last layer that has keys and values of its own, for the n layers above it:

    K~_l = a_l0 * K_0 + a_lm * K_m          fusion="mixed": a weight for each channel of each head,
    V~_l = b_l0 * V_0 + b_lm * V_m          of keys one for the two channels that rope rotates
    K~_l, V~_l = K_m, V_0                   fusion="lite": no weights

after rope, as the cache holds them. The upper layers have no key and value projections and no entry
in the cache. A mixture is formed when it is read: for every new token, an upper layer reads two
layers' entries of all tokens so far, writes their mixture and reads it. Initially a_lm and b_l0 are
1 and the others 0, so that a new "mixed" computes what "lite" does.

Source: arXiv 2512.03870, of which we had another author's account. It names the weights and what
they are applied to; initial values are ours (it finds values of the first layer with keys of layer
m better than the reverse), and so is the absence of weight decay.

Letters: B batch, G key-value heads, T tokens, E head width.
"""

from collections.abc import Sequence
from typing import Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.registry import declare
from layermem.models.seams import (
    Memory,
    ParameterOverride,
    Part,
    Variant,
    WeightsUnknown,
)
from layermem.ops.route import Slot
from layermem.variants.yoco import YocoConfig


@strict
class FusedKVConfig(YocoConfig):
    """The fields of a LLaMA, how many layers have a mixture, and of what kind."""

    # Two layers are mixed.
    fewest_storing = 2

    fusion: Literal["mixed", "lite"] = "mixed"
    """What the last layers attend to: "mixed" learned mixtures of the first and the last layer that
    have keys and values; "lite" the keys of the last and the values of the first of them."""


@final
class FusedMemory(Memory):
    """Mixtures of two lenders: ``key_weight`` [2, G, 1, E / 2], ``value_weight`` [2, G, 1, E]."""

    def __init__(self, lenders: tuple[int, ...], heads: int, width: int) -> None:
        super().__init__()
        self.lenders = lenders
        self.key_weight = nn.Parameter(torch.empty(2, heads, 1, width // 2))
        self.value_weight = nn.Parameter(torch.empty(2, heads, 1, width))

    def reset_parameters(self) -> None:
        """Initialise with keys of the second and values of the first lender."""
        for weight, lender in ((self.key_weight, 1), (self.value_weight, 0)):
            initial = torch.zeros(weight.shape, device="cpu")
            initial[lender] = 1
            initialization.copy_(weight, initial)

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        (low_key, low_value), (key, value) = slots
        # Rope rotates channel i with channel i + E / 2.
        of_low_keys, of_keys = torch.cat([self.key_weight, self.key_weight], -1)
        of_low_values, of_values = self.value_weight
        return (
            of_low_keys * low_key + of_keys * key,
            of_low_values * low_value + of_values * value,
        )

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        raise WeightsUnknown("FusedMemory has a weight for each channel, not for each head")

    def extra_repr(self) -> str:
        return f"lenders={list(self.lenders)}"


@final
class FusedLiteMemory(Memory):
    """Values of the first and keys of the second lender."""

    def __init__(self, lenders: tuple[int, ...]) -> None:
        super().__init__()
        self.lenders = lenders

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        return slots[1][0], slots[0][1]

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        first, second = torch.eye(2)[:, None, :, None]
        return {"key": (self.lenders, second), "value": (self.lenders, first)}

    def extra_repr(self) -> str:
        return f"lenders={list(self.lenders)}"


@final
class FusedKV(Variant[FusedKVConfig]):
    """Differences from the plain decoder:

    * memory: the last ``num_kv_shared_layers`` layers attend to a mixture of what two lower layers
      attend to, and have no key and value projections.
    """

    source = "2512.03870"
    overrides = (ParameterOverride(module=FusedMemory, weight_decay=0.0),)
    plain_fields = {"num_kv_shared_layers": 0}

    @classmethod
    def lenders(cls, config: FusedKVConfig, layer_idx: int) -> tuple[int, ...]:
        storing = config.num_storing
        return () if layer_idx < storing else (0, storing - 1)

    @classmethod
    def memory(cls, config: FusedKVConfig, layer_idx: int) -> Memory:
        lenders = cls.lenders(config, layer_idx)
        if not lenders:
            return super().memory(config, layer_idx)
        if config.fusion == "lite":
            return FusedLiteMemory(lenders)
        return FusedMemory(lenders, config.num_key_value_heads, config.head_dim)

    @classmethod
    def entries_read(cls, config: FusedKVConfig, layer_idx: int) -> int:
        # Keys of one layer and values of another are one entry.
        return 1 if config.fusion == "lite" else super().entries_read(config, layer_idx)

    @classmethod
    def extra_parameters(cls, config: FusedKVConfig) -> int:
        """Return 3 G E for each layer with mixtures, minus the projections that do not exist."""
        mixing = config.num_hidden_layers - config.num_storing if config.fusion == "mixed" else 0
        weights = 3 * config.num_key_value_heads * config.head_dim
        return mixing * weights - cls.absent_weights(config)


declare("fused_kv", FusedKVConfig, FusedKV)
