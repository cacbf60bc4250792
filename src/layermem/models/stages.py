"""A causal LM cut into stages of consecutive layers, as torch's pipelining wants them.

    first stage    ids -> embeddings -> its layers -> (*state, *handed)
    other stages   (*state, *handed) -> its layers -> (*state, *handed)
    last stage     (*state, *handed) -> its layers -> norm and head -> logits

From one stage to the next go the state of the stream and, key and value each, the slots of all
layers so far that a later layer reads, and what later layers borrow. With a full router that is
every slot; a window keeps it few (``crossing``). Rows have one length and no padding, and there is
no cache.
"""

from typing import Any, cast, final

import torch
from torch import Tensor, nn

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Handed, run_layer
from layermem.models.inputs import create_mask
from layermem.models.seams import Variant


def stage_layers(n_layers: int, n_stages: int) -> list[range]:
    """Return the layers of each stage, as evenly as they go; the first stages have one more."""
    if not 1 <= n_stages <= n_layers:
        raise ValueError(f"n_stages must be from 1 to the {n_layers} layers, got {n_stages}")
    size, more = divmod(n_layers, n_stages)
    starts = [i * size + min(i, more) for i in range(n_stages + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def crossing(
    variant: type[Variant[Any]], config: DecoderConfig, boundary: int
) -> tuple[Handed, ...]:
    """Return what layers before ``boundary`` hand to it or to later layers."""
    later = range(boundary, config.num_hidden_layers)
    slots = {("slot", j) for layer in later for j in variant.sources(config, layer)}
    lent = {("lent", j) for layer in later for j in variant.lenders(config, layer)}
    return tuple(sorted(cast("set[Handed]", {x for x in slots | lent if x[1] < boundary})))


@final
class DecoderStage(nn.Module):
    """The layers of one stage, with the embeddings before the first and the head after the last.

    It holds the model's own modules under the model's own names, so that the ``state_dict`` of all
    stages together is that of the model.
    """

    def __init__(self, model: DecoderForCausalLM, layers: range) -> None:
        super().__init__()
        config, decoder = model.config, model.model
        if config.tie_word_embeddings:
            raise ValueError(
                "the embeddings and the head share a weight (tie_word_embeddings=True), which lies "
                "in the first and in the last stage; build the model with tie_word_embeddings=False"
            )
        if decoder.reads_ids:
            raise ValueError(
                "layers of this model read token ids, which stages do not hand on: train it whole"
            )
        self.config = config
        self.is_first, self.is_last = layers.start == 0, layers.stop == config.num_hidden_layers
        self.arriving = crossing(decoder.variant, config, layers.start)
        self.leaving = crossing(decoder.variant, config, layers.stop)
        self.model: Any = nn.Module()
        self.model.layers = nn.ModuleDict({str(i): decoder.layers[i] for i in layers})
        self.model.rotary_emb = decoder.rotary_emb
        # The stream begins in the first stage and ends, perhaps with weights, in the last.
        stream = decoder.stream
        self.shows_reduction = stream.shows_reduction
        self._begin = stream.begin
        if self.is_first:
            self.model.embed_tokens = decoder.embed_tokens
        if self.is_last:
            self.model.stream, self.model.norm = stream, decoder.norm
            self.lm_head = model.lm_head

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Run the stage on token ids [B, T], or on what the stage before it has returned."""
        state, handed = self._receive(inputs)
        tokens = state[0].shape[1]
        positions = torch.arange(tokens, device=state[0].device)[None]
        kwargs = {
            "attention_mask": create_mask(self.config, state[0], None, None, None),
            "position_embeddings": self.model.rotary_emb(state[0], positions),
            "position_ids": positions,
        }
        for layer in self.model.layers.values():
            state = run_layer(layer, state, handed, kwargs)
        if self.is_last:
            logits: Tensor = self.lm_head(self.model.norm(self.model.stream.end(state)))
            return logits
        # A tensor that nothing reads has no gradient to send back, and stays.
        kept = (tensor for name in self.leaving for tensor in handed[name])
        sent = (*state[self.shows_reduction :], *kept)
        # What is sent has to be contiguous; what only passes through is not to be its own input.
        return tuple(x.contiguous().view_as(x) for x in sent)

    def _receive(
        self, inputs: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], dict[Handed, tuple[Tensor, ...]]]:
        """Return the state, and what earlier layers have handed on."""
        if self.is_first:
            (ids,) = inputs
            return self._begin(self.model.embed_tokens(ids)), {}
        inputs = tuple(_Received.apply(x) for x in inputs)
        n_state = len(inputs) - 2 * len(self.arriving)
        pairs = zip(inputs[n_state::2], inputs[n_state + 1 :: 2], strict=True)
        # In the place of a tensor that nothing reads stands another.
        state = inputs[: self.shows_reduction] + inputs[:n_state]
        return state, dict(zip(self.arriving, pairs, strict=True))


class _Received(torch.autograd.Function):
    """The same tensor, whose gradient is contiguous, as what is sent back has to be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()
