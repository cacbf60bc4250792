"""Value embeddings: some layers add to their values those of the token, from a table.

With U_l a table of layer l and t the id of the token, for each key-value head:

    V~_l = V_l + 2 sigmoid(A_l q_l) U_l[t]      keys and queries unchanged; before the cache

    new weights    U_l [V, G E], A_l [G, H E]
    initial        0, 0: a gate is 1, and a new model computes what the plain decoder does

Source: karpathy/nanochat, ``gpt.py``, and ``neomme`` of transformers, whose form this is where A_l
is 0. Deviations: nanochat's tables begin at random values, NeoMME's at 0; nanochat's gate is a map
of the first channels of the layer's input, here it is one of the query before rope, as in
``value_residual``; NeoMME's two layers share a table. Neither table nor gate has weight decay.

Letters: B batch, H query heads, G key-value heads, T tokens, E head width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.registry import declare
from layermem.models.seams import Memory, OwnLayerMemory, ParameterOverride, Variant
from layermem.ops.route import Slot


@strict
class ValueEmbeddingsConfig(DecoderConfig):
    """The fields of a LLaMA, and which layers have a table."""

    value_layers: Literal["alternate", "ends"] = "alternate"
    """Layers with a table: "alternate" every second one, the last among them, as in nanochat;
    "ends" the first and the last, as in NeoMME."""

    def has_table(self, layer: int) -> bool:
        """Return whether a layer adds values of tokens."""
        last = self.num_hidden_layers - 1
        return layer in (0, last) if self.value_layers == "ends" else (last - layer) % 2 == 0


@final
class ValueEmbeddingMemory(Memory):
    """Own keys, and own values with those of the token: ``table`` [V, G E], ``gate`` [G, H E]."""

    reads_ids = True

    def __init__(self, config: ValueEmbeddingsConfig) -> None:
        super().__init__()
        heads, width = config.num_key_value_heads, config.head_dim
        self.table = nn.Parameter(torch.empty(config.vocab_size, heads * width))
        self.gate = nn.Parameter(torch.empty(heads, config.num_attention_heads * width))

    def reset_parameters(self) -> None:
        initialization.zeros_(self.table)
        initialization.zeros_(self.gate)

    def forward(
        self, query: Tensor, slots: Sequence[Slot], token_ids: Tensor | None = None
    ) -> Slot:
        assert token_ids is not None
        key, value = slots[-1]
        gate = 2 * nn.functional.linear(query.transpose(1, 2).flatten(2), self.gate).sigmoid()
        of_tokens = nn.functional.embedding(token_ids, self.table).unflatten(
            -1, (len(self.gate), -1)
        )
        return key, value + (gate[..., None] * of_tokens).transpose(1, 2).to(value.dtype)


class ResizedTables(PreTrainedDecoder):
    """Tables of as many tokens as the embeddings; those of new tokens are 0."""

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        embeddings: Any = super()._resize_token_embeddings(*args, **kwargs)
        for part in self.modules():
            if isinstance(part, ValueEmbeddingMemory):
                old = part.table.detach()[: len(embeddings.weight)]
                new = len(embeddings.weight) - len(old)
                table = nn.functional.pad(old, (0, 0, 0, new))
                part.table = nn.Parameter(table, requires_grad=part.table.requires_grad)
        return embeddings


@final
class ValueEmbeddings(Variant[ValueEmbeddingsConfig]):
    """Differences from the plain decoder:

    * memory: some layers add values of the token ids, so that embeddings alone are no input.
    """

    released = ("NeoMME",)
    overrides = (ParameterOverride(module=ValueEmbeddingMemory, weight_decay=0.0),)

    @classmethod
    def memory(cls, config: ValueEmbeddingsConfig, layer_idx: int) -> Memory:
        return ValueEmbeddingMemory(config) if config.has_table(layer_idx) else OwnLayerMemory()

    @classmethod
    def extra_parameters(cls, config: ValueEmbeddingsConfig) -> int:
        """Return V G E of each table and G H E of each gate."""
        tables = sum(config.has_table(layer) for layer in range(config.num_hidden_layers))
        width = config.num_key_value_heads * config.head_dim
        return tables * width * (config.vocab_size + config.num_attention_heads)

    @classmethod
    def extra_flops(cls, config: ValueEmbeddingsConfig) -> int:
        """Return 2 for each weight of a gate; a row of a table is looked up."""
        gates = cls.extra_parameters(config) // (config.vocab_size + config.num_attention_heads)
        return 2 * gates * config.num_attention_heads


declare("value_embeddings", ValueEmbeddingsConfig, ValueEmbeddings, base=ResizedTables)
