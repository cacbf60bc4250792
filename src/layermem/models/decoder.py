"""The decoder that all variants share: attention, layers, and the loop over them.

The forward of one layer, with the parts that a variant may replace marked:

    x = connection.read(state, norm)                variant
    q, k, v = projections of x
    own slot = store(k, v)                          variant
    k, v = memory(q, slots of sources + own)        variant; before rope
    q, k = rope(q, k); the cache; attention; o_proj -> y
    a layer that borrows has q alone: k, v = memory(rope(q), what its lenders attend to)
    state = connection.write(carry, y)              variant
    ... and read, mlp, write once more

Letters: L layers, B batch, T tokens, D width, H query heads, G key-value heads, E head width.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from layermem.models.configuration import DecoderConfig, padding_alone
from layermem.models.keywords import (
    CACHE,
    are_of_documents,
    check_documents,
    check_keywords,
    check_mask,
    check_positions,
    create_mask,
    hides_values,
    takes_older_name,
    update_cache,
)
from layermem.models.layers import (
    MLP,
    AbsentLinear,
    HeadwiseLinear,
    RMSNorm,
    RotaryEmbedding,
    eager_attention,
)
from layermem.models.memories import begin_routes, is_replaced
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Inputs, Memory, Stream, Variant
from layermem.ops.rope import rotate, rotate_both
from layermem.ops.route import Slot, Slots
from layermem.ops.shared_buffer import Shared

logger = logging.get_logger(__name__)
T = TypeVar("T")


Handed = tuple[Literal["slot", "lent", "buffer"], int]
"""What a layer hands to later ones: its slot, what it attends to, or the buffer that all share."""
_BUFFER: Handed = ("buffer", 0)


class Attention(nn.Module):
    """Attention over the keys and values that the layer's memory returns."""

    k_proj: nn.Linear
    v_proj: nn.Linear
    no_k_proj: AbsentLinear
    no_v_proj: AbsentLinear

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
        # Whether it attends to what other layers attend to, and whether others do to what it does.
        self.borrows = bool(variant.lenders(config, layer_idx))
        self.lends = False
        self.projected = variant.projects(config, layer_idx)
        for part, name in (("key", "k_proj"), ("value", "v_proj")):
            # Adapters and sharding plans look for a matrix under the name of a projection.
            if part in self.projected:
                self.add_module(name, linear(width, kv_width, bias=bias))
            else:
                self.add_module(f"no_{name}", AbsentLinear(width, kv_width, bias=bias))
        self.o_proj = nn.Linear(q_width, width, bias=bias)
        self.memory = variant.memory(config, layer_idx)
        self.store = variant.store
        self.hands_on = variant.hands_on(config)

    @takes_older_name
    def forward(
        self,
        x: Inputs,
        slots: tuple[Slot, ...] | Slots,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        """Return (output, attention weights or None, *key and value of the slot handed on, *key and
        value that are lent).

        ``slots`` are those of earlier layers, or what the lenders of this layer attend to. Where
        layers share a buffer, what this one hands on of it is returned in place of a slot.
        """
        query_input, key_input, value_input = x if isinstance(x, tuple) else (x, x, x)
        # Views [B, T, heads, E] -> [B, heads, T, E].
        by_head = (*query_input.shape[:-1], -1, self.head_dim)
        query = self.q_proj(query_input).view(by_head).transpose(1, 2)
        own_slot: tuple[Tensor, ...] = ()
        if self.projected:
            key, value = self._project(key_input, value_input, by_head)
            if isinstance(slots, Slots):
                slots.append(key, value)
            else:
                own_slot = self.store(key, value)
                slots = (*slots, (own_slot[0], own_slot[1]))
        if self.borrows:
            query = rotate(query, *position_embeddings)
        key, value = self.memory(query, slots)
        if isinstance(slots, Slots):
            own_slot = slots.handed
        elif self.hands_on == "read":
            own_slot = (key, value)
        if not self.borrows:
            query, key = rotate_both(query, key, *position_embeddings)
            key, value = update_cache(cache, key, value, self.layer_idx, kwargs)
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
        y = self.o_proj(y.reshape(*query_input.shape[:-1], -1))
        return y, weights, *own_slot, *lent

    def _project(
        self, key_input: Tensor, value_input: Tensor, by_head: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return the layer's own key and value, [B, G, T, E] each."""
        key_proj = self.k_proj if "key" in self.projected else self.no_k_proj
        value_proj = self.v_proj if "value" in self.projected else self.no_v_proj
        key, value = key_proj(key_input), value_proj(value_input)
        if key.ndim != 3 or value.ndim != 3:
            raise NotImplementedError(
                f"expected keys and values [B, T, G E], got {list(key.shape)} and "
                f"{list(value.shape)}: an adapter (as LoRA) on a projection with an input for each "
                "head is not supported; leave k_proj and v_proj out of its target modules"
            )
        return key.view(by_head).transpose(1, 2), value.view(by_head).transpose(1, 2)


class DecoderLayer(GradientCheckpointingLayer):
    """One layer: attention and mlp, each read from the stream and written back to it.

    Its inputs and outputs are tensors passed by position, and it changes none of them: gradient
    checkpointing runs a layer twice on the same inputs, and its re-entrant form finds the tensors
    that need gradients among the positional arguments only, not inside tuples.
    """

    def __init__(
        self,
        config: DecoderConfig,
        variant: type[Variant[Any]],
        layer_idx: int,
        *,
        stream_grows: bool,
    ) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        # The layers whose slots it reads, and whether a later layer reads its own: set by
        # `Decoder.update_sources`.
        self.sources: tuple[int, ...] = ()
        self.is_source = False
        self.lenders: tuple[int, ...] = ()
        # How many layers below it have a slot.
        self.place = layer_idx
        self.stream_grows = stream_grows
        self.self_attn = Attention(config, variant, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn_connection = variant.connection(config, layer_idx, "attention")
        self.mlp_connection = variant.connection(config, layer_idx, "mlp")

    def reads(self, routes: Shared | None = None) -> list[Handed]:
        """Return what it is given of earlier layers, in this order."""
        if self.lenders:
            return [("lent", j) for j in self.lenders]
        return [_BUFFER] if routes is not None else [("slot", j) for j in self.sources]

    def hands_on(self, routes: Shared | None = None) -> list[Handed]:
        """Return what it returns beside the state, in this order."""
        lent: list[Handed] = [("lent", self.layer_idx)] * self.self_attn.lends
        if routes is not None:
            return [] if self.lenders else [_BUFFER, *lent]
        slot: list[Handed] = [("slot", self.layer_idx)] * self.is_source
        return slot + lent

    def forward(
        self, x: Tensor, *history: Tensor, routes: Shared | None = None, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """Run the layer on (*state, *slots of ``sources``), all as single tensors.

        Returns (*state, *own slot). Of a state that grows (``Stream.grows``) only the first tensor
        and the new ones are returned, and of the own slot nothing unless a later layer reads it.
        With ``routes`` layers share a buffer, whose tensors stand in the place of slots. A layer
        that borrows is given what its ``lenders`` attend to in place of slots, and one that lends
        returns what it attends to last. ``kwargs`` are those of attention.

        An example: layer 2 of LIMe is called with (x, k_0, v_0, k_1, v_1), where x is the whole
        state, and returns (x, k_2, v_2); with a buffer it is called with x and four tensors, and
        returns as many.
        """
        buffer = None if self.lenders else routes
        n_read = 2 * len(self.reads()) if buffer is None else buffer.handed_to(self.place)
        n_state = len(history) - n_read
        state, read = (x, *history[:n_state]), history[n_state:]
        slots: tuple[Slot, ...] | Slots = (
            tuple(zip(read[::2], read[1::2], strict=True))
            if buffer is None
            else buffer.slots(self.place, read)
        )

        inputs, carry = self.attn_connection.read(state, self.input_layernorm)
        y, _, *handed = self.self_attn(inputs, slots, **kwargs)
        own_slot, lent = (handed[:-2], handed[-2:]) if self.self_attn.lends else (handed, [])
        state = self.attn_connection.write(carry, y)

        inputs, carry = self.mlp_connection.read(state, self.post_attention_layernorm)
        x, *new = self.mlp_connection.write(carry, self.mlp(inputs))
        new = new[n_state:] if self.stream_grows else new
        return (x, *new, *(own_slot if self.is_source or buffer is not None else ()), *lent)


def run_layer(
    layer: DecoderLayer,
    state: tuple[Tensor, ...],
    handed: dict[Handed, tuple[Tensor, ...]],
    kwargs: Mapping[str, Any],
    *,
    grows: bool,
) -> tuple[Tensor, ...]:
    """Run one layer on the state and on what earlier layers have ``handed`` on; return the state.

    What it hands on itself is added. ``grows``: whether states grow (``Stream.grows``).
    """
    routes = kwargs.get("routes")
    read = (tensor for name in layer.reads(routes) for tensor in handed[name])
    x, *new = layer(*state, *read, **kwargs)
    for name in reversed(layer.hands_on(routes)):
        count = routes.handed_to(layer.place + 1) if routes and name == _BUFFER else 2
        n_others = len(new) - count
        new, handed[name] = new[:n_others], tuple(new[n_others:])
    return (x, *state[1:], *new) if grows else (x, *new)


def _without_needless_cache(forward: Callable[..., T]) -> Callable[..., T]:
    """Make the decoder's forward leave the cache out where it has no use and nobody asked for it.

    It stands before the one that fills in what the config says.
    """

    @wraps(forward)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> T:
        names = ("input_ids", "attention_mask", "position_ids", "cache")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        # Who has a cache or says what is wanted is not asked: positions on a GPU are waited for.
        said = any(given.get(name) is not None for name in ("use_cache", "cache"))
        if not said and self._has_no_use_for_cache(
            given.get("attention_mask"), given.get("position_ids")
        ):
            kwargs["use_cache"] = False
        return forward(self, *args, **kwargs)

    return wrapper


class Decoder(PreTrainedDecoder):
    """Token ids to hidden states [B, T, D].

    Its forward owns the buffer: the slots of one forward, each kept while a later layer reads it.
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
            DecoderLayer(config, variant, i, stream_grows=stream.grows)
            for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.stream = stream
        self.gradient_checkpointing = False
        self.update_sources()
        self.post_init()

    def update_sources(self) -> None:
        """Set which slots each layer reads and when each is freed, from ``variant.sources``, and
        which layers lend what they attend to, from ``variant.lenders``.

        To be called again when the config has changed what ``sources`` returns.
        """
        layers = cast("Sequence[DecoderLayer]", self.layers)
        for i, layer in enumerate(layers):
            layer.sources = self.variant.sources(self.config, i)
            layer.lenders = self.variant.lenders(self.config, i)
            layer.place = sum(not earlier.lenders for earlier in layers[:i])
            _check_reads(layers, i)
        last_reader = {name: i for i, layer in enumerate(layers) for name in layer.reads()}
        # For each layer, what no layer after it reads.
        self._to_free: list[list[Handed]] = [[] for _ in layers]
        for name, i in last_reader.items():
            self._to_free[i].append(name)
        for j, layer in enumerate(layers):
            layer.is_source = ("slot", j) in last_reader
            layer.self_attn.lends = ("lent", j) in last_reader
        # The lowest layer from which on none has an entry in the cache.
        self.without_cache_from = 1 + max(i for i, layer in enumerate(layers) if not layer.lenders)

    def _has_no_use_for_cache(
        self, attention_mask: Tensor | None, position_ids: Tensor | None
    ) -> bool:
        """Return whether a forward is one of training, or of packed documents.

        With a cache, positions that begin anew would not keep documents apart: tokens of one would
        be followed by those of another.
        """
        if self.training:
            return True
        if attention_mask is not None or position_ids is None:
            return False
        # Where positions cannot be looked at, they may be those of several documents.
        return hides_values(position_ids) or are_of_documents(position_ids)

    @takes_older_name
    @_without_needless_cache
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

        Without ``use_cache`` the config decides, but for training and for packed documents, which
        have no use for a cache. ``last_token_only``: the caller needs the last token's hidden state
        alone. The last layers, if they have no entries in the cache, may then run on that token,
        and the result be [B, 1, D].
        """
        check_keywords(
            type(self).__name__, self.config, kwargs, cache, position_ids, attention_mask
        )
        # As many as num_hidden_layers: assisted generation lowers it to leave out the last ones.
        layers = cast("list[DecoderLayer]", list(self.layers[: self.config.num_hidden_layers]))
        if len(layers) < len(self.layers) and (use_cache or cache is not None):
            self._check_early_exit(layers)
        embeds = self._embed(input_ids, inputs_embeds)
        check_mask(attention_mask, embeds, cache)
        check_positions(position_ids, embeds)
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        check_documents(self.config, position_ids, attention_mask, cache)
        mask = create_mask(self.config, embeds, attention_mask, position_ids, cache)
        if position_ids is None:
            start = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(embeds.shape[1], device=embeds.device)[None] + start

        layer_kwargs = {
            "attention_mask": mask,
            "position_embeddings": self.rotary_emb(embeds, position_ids),
            "position_ids": position_ids,
            # Under the name that transformers' checkpointing of layers looks for.
            CACHE: cache,
            **kwargs,
        }
        state = self.stream.begin(embeds)
        routes = self._begin_routes(layers, embeds, kwargs)
        if routes is not None:
            layer_kwargs["routes"] = routes
        cut_at = None
        if last_token_only and cache is not None and self._may_cut(mask, cache, kwargs):
            cut_at = self.without_cache_from
        state = self._run_layers(layers, state, layer_kwargs, cut_at)
        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(self.stream.end(state)), **{CACHE: cache}
        )

    def _check_early_exit(self, layers: Sequence[DecoderLayer]) -> None:
        """Raise where a cache made for this many layers has no entries for one that stores."""
        modes = self.config.kv_sharing_modes or [None] * len(layers)
        if [bool(layer.lenders) for layer in layers] != list(map(bool, modes)):
            # transformers sets it back only where its own generation ends without an error.
            self.config.num_hidden_layers = len(self.layers)
            raise ValueError(
                f"{type(self).__name__} was built with {len(self.layers)} layers and runs its "
                f"first {len(layers)}, whose keys and values are kept by other layers than in a "
                f"model of {len(layers)}: leave assistant_early_exit and changes of "
                "num_hidden_layers out, and decode without an assistant or with another model"
            )

    def _may_cut(self, mask: Any, cache: Cache, kwargs: Mapping[str, Any]) -> bool:
        """Return whether the last layers may run on the last token alone.

        They may where the state is the residual, all masks can be cut, and nobody looks at the
        layers' outputs, by a hook or as outputs of the model.
        """
        cut = self.layers[self.without_cache_from :]
        looked_at = bool(self._forward_hooks or self._forward_pre_hooks)
        looked_at = looked_at or self._is_looked_at(cut, kwargs)
        # Without a mask one query attends to all that there is, and a cache of a fixed length has
        # places that are empty.
        can_be_cut = isinstance(mask, Tensor) or (mask is None and not cache.is_compileable)
        return type(self.stream) is Stream and can_be_cut and not looked_at and not self.training

    def _run_layers(
        self,
        layers: Sequence[DecoderLayer],
        state: tuple[Tensor, ...],
        kwargs: dict[str, Any],
        cut_at: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Run the layers, handing slots and what is lent from layer to layer; return the state.

        From layer ``cut_at`` on, they run on the last token.
        """
        routes = kwargs.get("routes")
        handed: dict[Handed, tuple[Tensor, ...]] = {_BUFFER: routes.handed} if routes else {}
        for layer in layers:
            if layer.layer_idx == cut_at:
                state = tuple(x[:, -1:] for x in state)
                kwargs = _of_last_token(kwargs)
            state = run_layer(layer, state, handed, kwargs, grows=self.stream.grows)
            for name in self._to_free[layer.layer_idx]:
                handed.pop(name, None)
        return state

    def _begin_routes(
        self, layers: Sequence[DecoderLayer], embeds: Tensor, kwargs: Mapping[str, Any]
    ) -> Shared | None:
        """Return the routes by which the layers of this forward share a buffer, if they do."""
        storing = [layer for layer in layers if not layer.lenders]
        if not any(layer.sources for layer in storing):
            return None
        for layer in storing:
            attention = layer.self_attn
            # A wrapper, or a module put in its place, may expect slots as arguments.
            if type(layer) is not DecoderLayer or type(attention) is not Attention:
                return None
            if is_replaced(layer) or is_replaced(attention):
                return None
            _check_route(layer)
            # A buffer has the own slot of every layer.
            if attention.hands_on != "own" or not attention.projected:
                return None
        memories = {layer.layer_idx: layer.self_attn.memory for layer in storing}
        may_end_early = not torch.compiler.is_compiling() or self._is_looked_at(layers, kwargs)
        return begin_routes(memories, embeds, may_end_early=may_end_early)

    def _is_looked_at(self, layers: Iterable[nn.Module], kwargs: Mapping[str, Any]) -> bool:
        """Whether somebody gets what single layers return, by a hook or as outputs of the model.

        Asked before layers run on the last token alone, and while a compiler traces.
        """
        return any(
            kwargs.get(name) or getattr(self.config, name, False)
            for name in ("output_hidden_states", "output_attentions")
        ) or any(
            module._forward_hooks or module._forward_pre_hooks
            for part in (self.norm, *layers)
            for module in part.modules()
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            got = "neither" if input_ids is None else "both"
            raise ValueError(f"expected exactly one of input_ids and inputs_embeds, got {got}")
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        longest = self.config.max_position_embeddings
        if embeds.shape[1] > longest and not torch.compiler.is_compiling():
            logger.warning_once(
                f"a sequence of {embeds.shape[1]} tokens is longer than max_position_embeddings "
                f"({longest}); predictions beyond that position get worse"
            )
        return embeds


def _of_last_token(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of attention for queries of the last token."""
    mask = kwargs["attention_mask"]
    # A mask [B, 1, T, keys] has a row for each query; one [B, keys] is of keys alone.
    if mask is not None and mask.ndim == 4:
        mask = mask[:, :, -1:]
    return {
        **kwargs,
        "attention_mask": mask,
        "position_embeddings": tuple(x[:, -1:] for x in kwargs["position_embeddings"]),
        "position_ids": kwargs["position_ids"][:, -1:],
    }


def _check_reads(layers: Sequence[DecoderLayer], i: int) -> None:
    """Raise ``ValueError`` where a layer reads a slot, or borrows what another layer has not."""
    layer = layers[i]
    for j in layer.sources:
        if not (layers[j].self_attn.projected or layers[j].self_attn.hands_on == "read"):
            raise ValueError(f"layer {i} reads layer {j}, which has no slot")
    if layer.lenders and (layer.self_attn.projected or layer.sources):
        raise ValueError(
            f"layer {i} borrows from layers {list(layer.lenders)}, and can neither project keys "
            f"and values nor read slots, got projections of {list(layer.self_attn.projected)} and "
            f"sources {list(layer.sources)}"
        )
    for j in layer.lenders:
        if not 0 <= j < i or layers[j].lenders:
            raise ValueError(
                f"layer {i} borrows from layer {j}, which is no earlier layer with keys and values "
                "of its own"
            )


def _check_route(layer: DecoderLayer) -> None:
    """Raise ``ValueError`` if a memory reads other layers than those whose slots it is handed.

    In a buffer it finds the slots of all layers, also those that it is not handed otherwise.
    """
    memory = layer.self_attn.memory
    route = memory.as_route() if isinstance(memory, Memory) else None
    own = (layer.layer_idx,) if layer.self_attn.projected else ()
    if route is not None and tuple(route[0]) != (*layer.sources, *own):
        raise ValueError(
            f"layer {layer.layer_idx} is handed the slots of layers {[*layer.sources, *own]}, and "
            f"its {type(memory).__name__} reads {list(route[0])}: Variant.sources and the memory "
            "must name the same layers; prune_routers changes both"
        )
