"""The decoder, written once for every variant: its layers, its two seams, and the causal LM.

Letters: L layers, B batch, T tokens, D width, H query heads, G key-value heads, E head width.
It does not know: any particular variant, files, training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from layermem.models.configuration import DecoderConfig
from layermem.models.layers import MLP, RMSNorm, RotaryEmbedding, attend
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Inputs, Variant
from layermem.ops.loss import IGNORED, chunked
from layermem.ops.rope import rotate
from layermem.ops.route import Slot

logger = logging.get_logger(__name__)


class Attention(nn.Module):
    """Attention over time, on the keys and values its memory hands it."""

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
        self.k_proj = nn.Linear(width, kv_width, bias=bias)
        self.v_proj = nn.Linear(width, kv_width, bias=bias)
        self.o_proj = nn.Linear(q_width, width, bias=bias)
        self.memory = variant.memory(config, layer_idx)
        self.store = variant.store

    def forward(
        self,
        x: Inputs,
        slots: Sequence[Slot],
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, ...]:
        """Return (output, attention weights or None, *the own slot)."""
        for_q, for_k, for_v = x if isinstance(x, tuple) else (x, x, x)
        query = self._heads(self.q_proj(for_q))
        own = self.store(self._heads(self.k_proj(for_k)), self._heads(self.v_proj(for_v)))

        key, value = self.memory(query, *own, (*slots, own))
        query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)

        y, weights = attend(
            self,
            self.config._attn_implementation,
            query,
            key,
            value,
            attention_mask,
            dropout=self.config.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        y = self.o_proj(y.reshape(*y.shape[:2], -1).contiguous())
        return y, weights, *own

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * E] -> [B, heads, T, E], token major in memory."""
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)


class DecoderLayer(GradientCheckpointingLayer):
    """One layer: attention and mlp, each read from the stream and written back to it.

    Flat tensors in, flat tensors out: a re-run of the layer (activation checkpointing) must find
    nothing changed, and re-entrant checkpointing sees only tensors passed by position.
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
        # Which slots it reads and whether its own is read: `Decoder.wire` says.
        self.sources: tuple[int, ...] = ()
        self.is_source = False
        self.stream_grows = stream_grows
        self.self_attn = Attention(config, variant, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn_connection = variant.connection(config, layer_idx, "attention")
        self.mlp_connection = variant.connection(config, layer_idx, "mlp")

    def forward(self, x: Tensor, *history: Tensor, **kwargs: Any) -> tuple[Tensor, ...]:
        """Run the layer on (x, *rest of the state, *keys and values of ``sources``, flat).

        Returns (x, *rest of the state), of a growing state only what is new, followed by the own
        key and value if a later layer reads them. ``kwargs`` are attention's.
        """
        n_state = len(history) - 2 * len(self.sources)
        state = (x, *history[:n_state])
        slots = tuple(zip(history[n_state::2], history[n_state + 1 :: 2], strict=True))

        inputs, carry = self.attn_connection.read(state, self.input_layernorm)
        y, _, *slot = self.self_attn(inputs, slots, **kwargs)
        state = self.attn_connection.write(carry, y)

        inputs, carry = self.mlp_connection.read(state, self.post_attention_layernorm)
        x, *new = self.mlp_connection.write(carry, self.mlp(inputs))
        new = new[n_state:] if self.stream_grows else new
        return (x, *new, *slot) if self.is_source else (x, *new)


class Decoder(PreTrainedDecoder):
    """Token ids to hidden states [B, T, D]. Owns the buffer: the slots of one forward."""

    _can_record_outputs = {"hidden_states": DecoderLayer, "attentions": Attention}

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        variant = self.variant
        stream = variant.stream(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            DecoderLayer(config, variant, i, stream_grows=stream.grows)
            for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
        self.stream = stream
        self.gradient_checkpointing = False
        self.wire()
        self.post_init()

    def wire(self) -> None:
        """Take from the config which slots each layer reads; a slot is kept while one will."""
        layers = cast("Sequence[DecoderLayer]", self.layers)
        last_reader: dict[int, int] = {}
        for i, layer in enumerate(layers):
            layer.sources = self.variant.sources(self.config, i)
            last_reader.update(dict.fromkeys(layer.sources, i))
        self._last_reads: list[list[int]] = [[] for _ in layers]
        for j, i in last_reader.items():
            self._last_reads[i].append(j)
        for j, layer in enumerate(layers):
            layer.is_source = j in last_reader

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run the decoder on token ids or embeddings; see transformers for the arguments."""
        embeds = self._embed(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            start = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = torch.arange(embeds.shape[1], device=embeds.device)[None] + start

        shared = {
            "attention_mask": create_causal_mask(
                config=self.config,
                inputs_embeds=embeds,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
            ),
            "position_embeddings": self.rotary_emb(embeds, position_ids),
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            **kwargs,
        }
        state = self.stream.begin(embeds)
        buffer: dict[int, list[Tensor]] = {}
        # Assisted generation shortens the model by lowering num_hidden_layers for a while.
        for layer in cast("list[DecoderLayer]", self.layers[: self.config.num_hidden_layers]):
            x, *new = layer(*state, *(t for j in layer.sources for t in buffer[j]), **shared)
            if layer.is_source:
                *new, key, value = new
                buffer[layer.layer_idx] = [key, value]
            for j in self._last_reads[layer.layer_idx]:
                del buffer[j]
            state = (x, *state[1:], *new) if self.stream.grows else (x, *new)

        return BaseModelOutputWithPast(
            last_hidden_state=self.norm(self.stream.end(state)), past_key_values=past_key_values
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            got = "neither" if input_ids is None else "both"
            raise ValueError(f"give exactly one of input_ids and inputs_embeds, got {got}")
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        longest = self.config.max_position_embeddings
        if embeds.shape[1] > longest and not torch.compiler.is_compiling():
            logger.warning_once(
                f"a sequence of {embeds.shape[1]} tokens is longer than max_position_embeddings "
                f"({longest}), the range the positions were made for; expect worse predictions"
            )
        return embeds


@dataclass
class LossOutput(CausalLMOutputWithPast):
    """What there is without logits."""

    token_losses: Tensor | None = None
    """The loss of each token [B, T], without gradients; zero where there is no label after it."""


class DecoderForCausalLM(PreTrainedDecoder, GenerationMixin):
    """A decoder with a head over the vocabulary. A variant's subclass names the decoder."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    decoder_class: type[Decoder]

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = self.decoder_class(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        loss_chunk: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and the loss where labels are given; see transformers for the rest.

        ``loss_chunk``, with labels: the loss is computed for so many tokens at a time, and there
        are no logits (``LossOutput``).
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        if labels is not None and loss_chunk:
            return self._loss(outputs, labels, loss_chunk, **kwargs)
        logits = self.lm_head(_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(
        self,
        outputs: BaseModelOutputWithPast,
        labels: Tensor,
        chunk: int,
        *,
        num_items_in_batch: Tensor | int | None = None,
        shift_labels: Tensor | None = None,
        ignore_index: int = IGNORED,
        **_: Any,
    ) -> LossOutput:
        """Return transformers' loss of a causal model without holding all logits."""
        if self.loss_function is not ForCausalLMLoss or ignore_index != IGNORED:
            raise TypeError(
                "loss_chunk computes transformers' loss of a causal model, and here is another "
                f"loss_function or ignore_index ({ignore_index}); leave loss_chunk out"
            )
        if type(self.lm_head) is not nn.Linear:
            raise TypeError(
                f"loss_chunk multiplies with the weights of lm_head itself, which is a "
                f"{type(self.lm_head).__name__}, not a Linear; leave loss_chunk out"
            )
        x = outputs.last_hidden_state
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        wanted = shift_labels.to(x.device)
        total, losses = chunked(x.flatten(0, 1), self.lm_head.weight, wanted.flatten(), chunk)
        count = (wanted != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return LossOutput(
            loss=total / count,
            token_losses=losses.view_as(wanted),
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _keep(x: Tensor, which: int | Tensor) -> Tensor:
    """Keep the last ``which`` tokens (0: all), or those at 1-D or per-row indices or a mask."""
    if isinstance(which, int):
        return x[:, -which:] if which else x
    if which.ndim == 1:
        return x[:, which]
    return x[which] if which.dtype == torch.bool else x.take_along_dim(which[..., None], dim=1)
