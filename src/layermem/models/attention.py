"""Attention over what the layer's memory returns, and that of a layer that borrows.

Letters: B batch, T tokens, D width, H query heads, G key-value heads, E head width.
"""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layermem.models.configuration import DecoderConfig
from layermem.models.inputs import CACHE, update_cache
from layermem.models.layers import AbsentLinear, HeadwiseLinear, eager_attention
from layermem.models.seams import Inputs, Variant
from layermem.ops.rope import rotate, rotate_both
from layermem.ops.route import Slot
from layermem.ops.shared_buffer import Slots


class Attention(nn.Module):
    """Attention over the keys and values that the layer's memory returns."""

    def __init__(self, config: DecoderConfig, variant: type[Variant[Any]], layer_idx: int) -> None:
        super().__init__()
        # transformers' attention backends and kernels look these names up on the module.
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = config.head_dim**-0.5
        self.is_causal = True

        width, bias = config.hidden_size, config.attention_bias
        q_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, q_width, bias=bias)
        linear = HeadwiseLinear if variant.inputs_by_head(config) else nn.Linear
        projected = variant.projects(config, layer_idx)
        # Adapters and sharding plans look for a matrix under the name of a projection.
        self.parts = (
            "k_proj" if "key" in projected else "no_k_proj",
            "v_proj" if "value" in projected else "no_v_proj",
        )
        for name in self.parts:
            kind = AbsentLinear if name.startswith("no_") else linear
            self.add_module(name, kind(width, kv_width, bias=bias))
        self.o_proj = nn.Linear(q_width, width, bias=bias)
        self.memory = variant.memory(config, layer_idx)
        self.reads_ids = self.memory.reads_ids
        self.hands_on = variant.hands_on(config)
        # Whether other layers attend to what it attends to.
        self.lends = False

    def forward(
        self,
        x: Inputs,
        slots: tuple[Slot, ...] | Slots,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        """Return (output, attention weights or None, *what is handed on, *key and value lent).

        ``slots`` are those of earlier layers, or what the lenders of this layer attend to. Handed
        on is a slot, or where layers share a buffer, what this one hands on of it. ``kwargs`` are
        the cache and those of the attention function.
        """
        inputs = x if isinstance(x, tuple) else (x, x, x)
        # Views [B, T, heads, E] -> [B, heads, T, E].
        by_head = (*inputs[0].shape[:-1], -1, self.head_dim)
        query = self.q_proj(inputs[0]).view(by_head).transpose(1, 2)
        query, key, value, handed = self._read(
            query, inputs[1:], slots, position_embeddings, kwargs
        )
        # Under autocast rope gives float32.
        lent = (key.to(value.dtype), value) if self.lends else ()

        # vLLM finds these two lines in the source of the forward, and reads ``scaling`` off them.
        implementation = self.config._attn_implementation
        backend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        y, weights = backend(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        # vLLM returns the tokens of all requests as one axis.
        y = self.o_proj(y.reshape(*inputs[0].shape[:-1], -1))
        return y, weights, *handed, *lent

    def _read(
        self,
        query: Tensor,
        inputs: tuple[Tensor, ...],
        slots: tuple[Slot, ...] | Slots,
        rope: tuple[Tensor, Tensor],
        kwargs: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """Return query, keys and values of attention, [B, heads, T, E] each, and what is handed on.

        The cache is taken out of ``kwargs``.
        """
        key, value = (self._project(name, x) for name, x in zip(self.parts, inputs, strict=True))
        ids = {"token_ids": kwargs.pop("token_ids", None)}
        handed: tuple[Tensor, ...]
        if isinstance(slots, Slots):
            slots.append(key, value)
            key, value = self.memory(query, slots)
            handed = slots.handed
        else:
            handed = own = (key, value)
            key, value = self.memory(query, (*slots, own), **(ids if self.reads_ids else {}))
            if self.hands_on == "read":
                handed = (key, value)
        if query.shape[2] == key.shape[2]:
            query, key = rotate_both(query, key, *rope)
        else:
            query, key = rotate(query, *_of_last(rope, query)), rotate(key, *rope)
        key, value = update_cache(kwargs.pop(CACHE, None), key, value, self.layer_idx, kwargs)
        return query, key, value, handed

    def _project(self, name: str, x: Tensor) -> Tensor:
        """Return the layer's own key or value [B, G, T, E]."""
        part: Tensor = getattr(self, name)(x)
        if part.ndim != 3:
            raise NotImplementedError(
                f"{name} returned {list(part.shape)}: an adapter (as LoRA) on a projection with an "
                "input for each head is not supported; leave k_proj and v_proj out of its targets"
            )
        return part.view(*part.shape[:-1], -1, self.head_dim).transpose(1, 2)


class SharedAttention(Attention):
    """Attention of a layer that borrows: it has a query and an output alone.

    Its memory is handed what its lenders attend to, keys rotated, of all tokens so far. It has no
    slot and no entry in the cache.
    """

    def _read(
        self,
        query: Tensor,
        inputs: tuple[Tensor, ...],
        slots: tuple[Slot, ...] | Slots,
        rope: tuple[Tensor, Tensor],
        kwargs: dict[str, Any],
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        kwargs.pop(CACHE, None)
        query = rotate(query, *_of_last(rope, query))
        return query, *self.memory(query, slots), ()


def _of_last(rope: tuple[Tensor, Tensor], query: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the last tokens, those that a query [B, H, T, E] has."""
    cos, sin = (x[:, -query.shape[2] :] for x in rope)
    return cos, sin
