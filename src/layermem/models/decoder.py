"""The decoder that all variants share: its layers, and the loop over them.

The forward of one layer, with the parts that a variant may replace marked:

    x = connection.read(state, norm)                variant
    q, k, v = projections of x
    k, v = memory(q, slots of sources + (k, v))     variant; before rope
    q, k = rope(q, k); the cache; attention; o_proj -> y
    a layer that borrows has q alone: k, v = memory(rope(q), what its lenders attend to)
    state = connection.write(carry, y)              variant
    ... and read, mlp, write once more

Letters: L layers, B batch, T tokens, D width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from layermem.models.attention import Attention, SharedAttention
from layermem.models.configuration import DecoderConfig, padding_alone
from layermem.models.inputs import CACHE, check_inputs, create_mask, may_be_packed, takes_older_name
from layermem.models.layers import MLP, RMSNorm, RotaryEmbedding
from layermem.models.memories import are_looked_at, begin_routes, is_replaced
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.prompt_cut import cut, may_cut, needs_residual
from layermem.models.seams import State, Variant
from layermem.ops.route import Slot
from layermem.ops.shared_buffer import Shared, Slots

logger = logging.get_logger(__name__)

Handed = tuple[Literal["slot", "lent", "buffer"], int]
"""What a layer hands to later ones: its slot, what it attends to, or the buffer that all share."""
_BUFFER: Handed = ("buffer", 0)


class DecoderLayer(GradientCheckpointingLayer):
    """One layer: attention and mlp, each read from the stream and written back to it.

    Its inputs and outputs are tensors passed by position, and it changes none of them: gradient
    checkpointing runs a layer twice on the same inputs, and its re-entrant form finds the tensors
    that need gradients among the positional arguments only, not inside tuples.
    """

    def __init__(self, config: DecoderConfig, variant: type[Variant[Any]], layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        # The layers whose slots it reads, and whether a later layer reads its own: set by
        # `Decoder.update_sources`.
        self.sources: tuple[int, ...] = ()
        self.is_source = False
        self.lenders = variant.lenders(config, layer_idx)
        attention = SharedAttention if self.lenders else Attention
        self.self_attn = attention(config, variant, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn_connection = variant.connection(config, layer_idx, "attention")
        self.mlp_connection = variant.connection(config, layer_idx, "mlp")

    def reads(self, shared: Shared | None = None) -> list[Handed]:
        """Return what it is given of earlier layers, in this order."""
        if self.lenders:
            return [("lent", j) for j in self.lenders]
        return [_BUFFER] if shared is not None else [("slot", j) for j in self.sources]

    def hands_on(self, shared: Shared | None = None) -> list[Handed]:
        """Return what it returns beside the state, in this order."""
        handed: list[Handed] = []
        if shared is not None and not self.lenders:
            handed.append(_BUFFER)
        elif shared is None and self.is_source:
            handed.append(("slot", self.layer_idx))
        return [*handed, ("lent", self.layer_idx)] if self.self_attn.lends else handed

    def forward(
        self, x: Tensor, *history: Tensor, shared: Shared | None = None, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """Run the layer on (*state, *what it ``reads``), all as single tensors.

        Returns (*state, *what it ``hands_on``). ``kwargs`` are those of attention.

        An example: layer 2 of LIMe is called with (x, k_0, v_0, k_1, v_1), where x is the whole
        state, and returns (x, k_2, v_2); where layers share a buffer it is called with x and the
        tensors of the buffer, and returns as many.
        """
        buffer = None if self.lenders else shared
        n_read = 2 * len(self.reads()) if buffer is None else buffer.handed_to(self.layer_idx)
        n_state = len(history) - n_read
        state, read = (x, *history[:n_state]), history[n_state:]
        slots: tuple[Slot, ...] | Slots = (
            tuple(zip(read[::2], read[1::2], strict=True))
            if buffer is None
            else buffer.slots(self.layer_idx, read)
        )

        inputs, carry = self.attn_connection.read(state, self.input_layernorm)
        y, _, *handed = self.self_attn(inputs, slots, **kwargs)
        state = self.attn_connection.write(carry, y)
        inputs, carry = self.mlp_connection.read(state, self.post_attention_layernorm)
        state = self.mlp_connection.write(carry, self.mlp(inputs))

        if buffer is None and not self.is_source:
            # Nobody reads its slot.
            handed = handed[-2:] if self.self_attn.lends else []
        return *state, *handed


def run_layer(
    layer: DecoderLayer,
    state: State,
    handed: dict[Handed, tuple[Tensor, ...]],
    kwargs: Mapping[str, Any],
) -> State:
    """Run one layer on the state and on what earlier layers have ``handed`` on; return the state.

    What it hands on itself is added.
    """
    shared = kwargs.get("shared")
    read = (tensor for name in layer.reads(shared) for tensor in handed[name])
    new = layer(*state, *read, **kwargs)
    for name in reversed(layer.hands_on(shared)):
        count = shared.handed_by(layer.layer_idx) if shared and name == _BUFFER else 2
        n_others = len(new) - count
        new, handed[name] = new[:n_others], new[n_others:]
    return new


class Decoder(PreTrainedDecoder):
    """Token ids to hidden states [B, T, D].

    Its forward keeps what layers hand on, each while a later layer reads it.
    """

    _can_record_outputs = {"hidden_states": DecoderLayer, "attentions": Attention}

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        variant = self.variant
        stream = variant.stream(config)
        self.embed_tokens = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_alone(config)
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, variant, i) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.stream = stream
        self.gradient_checkpointing = False
        self.update_sources()
        self.post_init()

    def update_sources(self) -> None:
        """Set which slots each layer reads and when each is freed, from ``variant.sources``.

        To be called again when the config has changed what ``sources`` returns.
        """
        layers = cast("Sequence[DecoderLayer]", self.layers)
        for i, layer in enumerate(layers):
            layer.sources = self.variant.sources(self.config, i)
        last_reader = {name: i for i, layer in enumerate(layers) for name in layer.reads()}
        # For each layer, what no layer after it reads.
        self._to_free: list[list[Handed]] = [[] for _ in layers]
        for name, i in last_reader.items():
            self._to_free[i].append(name)
        for j, layer in enumerate(layers):
            layer.is_source = ("slot", j) in last_reader
            layer.self_attn.lends = ("lent", j) in last_reader
        self.reads_ids = any(layer.self_attn.reads_ids for layer in layers)
        # The lowest layer from which on none makes keys and values of the residual.
        self.last_token_from = 1 + max(
            (i for i, layer in enumerate(layers) if needs_residual(layer)), default=-1
        )

    @takes_older_name
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        last_token_only: bool = False,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the decoder on token ids or embeddings; see transformers for the arguments.

        No cache is made in training, nor for packed documents, which a cache does not keep apart.
        ``last_token_only``: the caller needs the last token's hidden state alone. The last layers,
        if none makes keys and values of the residual, may then run on that token, and the result
        be [B, 1, D].
        """
        # As many as num_hidden_layers: assisted generation lowers it to leave out the last ones.
        layers = cast("list[DecoderLayer]", list(self.layers[: self.config.num_hidden_layers]))
        embeds = self._embed(input_ids, inputs_embeds)
        check_inputs(self.config, embeds, attention_mask, position_ids, cache, kwargs)
        may_store = use_cache and not self.training
        if cache is None and may_store and not may_be_packed(attention_mask, position_ids):
            cache = DynamicCache(config=self.config)
        mask = create_mask(self.config, embeds, attention_mask, position_ids, cache)
        if position_ids is None:
            start = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(embeds.shape[1], device=embeds.device)[None] + start

        state: State = self.stream.begin(embeds)
        shared = self._begin_routes(layers, embeds, kwargs)
        handed: dict[Handed, tuple[Tensor, ...]] = {_BUFFER: shared.handed} if shared else {}
        layer_kwargs: dict[str, Any] = {
            "attention_mask": mask,
            "position_embeddings": self.rotary_emb(embeds, position_ids),
            "position_ids": position_ids,
            # Under the name that transformers' checkpointing of layers looks for.
            CACHE: cache,
            **({"shared": shared} if shared else {}),
            **({"token_ids": input_ids} if self.reads_ids else {}),
            **kwargs,
        }
        above = self.layers[self.last_token_from :]
        is_cut = last_token_only and cache is not None and may_cut(self, above, mask, cache, kwargs)
        for i, layer in enumerate(layers):
            if is_cut and i == self.last_token_from:
                state, layer_kwargs = cut(layer, state, layer_kwargs)
            state = run_layer(layer, state, handed, layer_kwargs)
            for name in self._to_free[i]:
                handed.pop(name, None)
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(self.stream.end(state)), **{CACHE: cache}
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            got = "neither" if input_ids is None else "both"
            raise ValueError(f"expected exactly one of input_ids and inputs_embeds, got {got}")
        if self.reads_ids and input_ids is None:
            raise ValueError(
                "layers of this model read token ids: give input_ids in place of inputs_embeds"
            )
        embeds: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        longest = self.config.max_position_embeddings
        if embeds.shape[1] > longest and not torch.compiler.is_compiling():
            logger.warning_once(
                f"a sequence of {embeds.shape[1]} tokens is longer than max_position_embeddings "
                f"({longest}); predictions beyond that position get worse"
            )
        return embeds

    def _begin_routes(
        self, layers: Sequence[DecoderLayer], embeds: Tensor, kwargs: Mapping[str, Any]
    ) -> Shared | None:
        """Return the buffer that the layers of this forward share, if they do."""
        storing = [layer for layer in layers if not layer.lenders]
        if not any(layer.sources for layer in storing):
            return None
        for layer in storing:
            # A wrapper, or a module put in its place, may expect slots as arguments.
            attention = layer.self_attn
            if type(layer) is not DecoderLayer or type(attention) is not Attention:
                return None
            # A buffer has the own slot of every layer.
            if is_replaced(layer, attention) or attention.hands_on != "own":
                return None
        # Asked while a compiler traces alone: an eager pass may begin anywhere.
        may_end_early = not torch.compiler.is_compiling() or are_looked_at(
            self.config, (self.norm, *layers), kwargs
        )
        memories = {layer.layer_idx: layer.self_attn.memory for layer in storing}
        return begin_routes(memories, embeds, may_end_early=may_end_early)
