"""The causal language model: a decoder with a head over the vocabulary, its logits and its loss.

Letters: B batch, T tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.inputs import CACHE, CONTRACT, LOSS, names, takes_older_name
from layermem.models.memories import is_replaced
from layermem.models.pretrained import PreTrainedDecoder
from layermem.ops.loss import IGNORE_INDEX, chunked_cross_entropy


@dataclass
class LossOutput(CausalLMOutputWithPast):
    """The output of a causal LM whose loss was computed in chunks, without logits."""

    token_losses: Tensor | None = None
    """The loss of each token [B, T], without gradients; zero where the next token has no label."""


class DecoderForCausalLM(PreTrainedDecoder, GenerationMixin):
    """A decoder with a linear head over the vocabulary.

    ``registry.declare`` makes a subclass for each variant, which sets ``decoder_class``.
    """

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

    @takes_older_name
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        loss_chunk: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, and the loss if labels are given; see transformers for the arguments.

        ``loss_chunk``: with labels, compute the loss from the logits of this many tokens at a time
        and return it without logits (``LossOutput``). 0 means all tokens.
        """
        # Passed only where it has an effect: what stands in the decoder's place may not know it.
        cut = {"last_token_only": True} if self._needs_last_token(labels, logits_to_keep) else {}
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **{CACHE: cache},
            **cut,
            **(kwargs if labels is None else self._without_loss_keywords(kwargs)),
        )
        if labels is not None and loss_chunk:
            return self._chunked_loss(outputs, labels, loss_chunk, **kwargs)
        logits = self.lm_head(_select_tokens(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )

    def _needs_last_token(self, labels: Tensor | None, logits_to_keep: int | Tensor) -> bool:
        """Return whether the last layers may run on the last token alone."""
        last_alone = isinstance(logits_to_keep, int) and logits_to_keep == 1 and labels is None
        model: Any = self.model
        return last_alone and model.last_token_from < self.config.num_hidden_layers

    def _without_loss_keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords that are not for the loss alone."""
        return {
            name: value
            for name, value in kwargs.items()
            if name in CONTRACT or not (name in LOSS or names(self.loss_function, name))
        }

    def _chunked_loss(
        self,
        outputs: BaseModelOutputWithPast,
        labels: Tensor,
        chunk: int,
        *,
        num_items_in_batch: Tensor | int | None = None,
        shift_labels: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        **_: Any,
    ) -> LossOutput:
        """Compute transformers' loss of a causal LM from the logits of a chunk at a time."""
        if self.loss_function is not ForCausalLMLoss or ignore_index != IGNORE_INDEX:
            raise TypeError(
                "loss_chunk computes transformers' loss of a causal LM with ignore_index "
                f"{IGNORE_INDEX}, but the model has another loss_function or ignore_index is "
                f"{ignore_index}; leave loss_chunk out"
            )
        if not _is_plain_linear(self.lm_head):
            raise TypeError(
                "loss_chunk multiplies with the weight of lm_head, which must be a Linear without "
                f"hooks, whole on this device, got {self.lm_head}; leave loss_chunk out"
            )
        x = outputs.last_hidden_state
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        targets = shift_labels.to(x.device)
        total, losses = chunked_cross_entropy(
            x.flatten(0, 1), self.lm_head.weight, targets.flatten(), chunk
        )
        count = (
            (targets != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        )
        return LossOutput(
            loss=total / count,
            token_losses=losses.view_as(targets),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )


def _is_plain_linear(module: nn.Module) -> bool:
    """Return whether a module only multiplies with its weight, which is a whole tensor."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return (
        type(module) is nn.Linear
        and not (hooks or module._backward_hooks or module._backward_pre_hooks)
        and not is_replaced(module)
        and type(module.weight) in (nn.Parameter, Tensor)
    )


def _select_tokens(x: Tensor, which: int | Tensor) -> Tensor:
    """Return the last ``which`` tokens of x (0: all), or those that an index tensor or mask names.

    An index tensor is [N], the same for every row, or [B, N], one list for each row.
    """
    if isinstance(which, int):
        return x[:, -which:] if which else x
    if which.ndim == 1:
        return x[:, which]
    return x[which] if which.dtype == torch.bool else x.take_along_dim(which[..., None], dim=1)
