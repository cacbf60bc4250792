"""The plain decoder: both seams identity. A LLaMA under our roof, and every variant's baseline.

It does not know: other variants.
"""

from typing import ClassVar, final

from huggingface_hub.dataclasses import strict
from transformers import GenerationMixin
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)

from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder, DecoderForCausalLM
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.registry import Entry, register
from layermem.models.seams import Variant


@final
class Plain(Variant):
    """Differences from the plain decoder: none."""


@strict
class PlainConfig(DecoderConfig):
    """The fields of a LLaMA and no others."""

    model_type: ClassVar[str] = "layermem_plain"
    # No memory reads across heads: attention may be shared too.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise",
    }


class PlainPreTrained(PreTrainedDecoder):
    """Ties config and variant to the model classes below."""

    config: PlainConfig
    variant = Plain


@final
class PlainModel(PlainPreTrained, Decoder):
    """Token ids to hidden states."""


@final
class PlainForCausalLM(PlainPreTrained, DecoderForCausalLM, GenerationMixin):
    """Next-token prediction."""

    decoder_class = PlainModel


@final
class PlainForSequenceClassification(GenericForSequenceClassification, PlainPreTrained):
    """One label for a text."""


@final
class PlainForTokenClassification(GenericForTokenClassification, PlainPreTrained):
    """One label for each token."""


@final
class PlainForQuestionAnswering(GenericForQuestionAnswering, PlainPreTrained):
    """Start and end of an answer in a text."""


register(
    "plain",
    Entry(
        variant=Plain,
        config=PlainConfig,
        decoder=PlainModel,
        causal_lm=PlainForCausalLM,
        sequence_classification=PlainForSequenceClassification,
        token_classification=PlainForTokenClassification,
        question_answering=PlainForQuestionAnswering,
    ),
)
