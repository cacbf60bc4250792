"""The plain decoder: both seams identity. A LLaMA under our roof, and every variant's baseline.

It does not know: other variants.
"""

from typing import TYPE_CHECKING, ClassVar, final

from huggingface_hub.dataclasses import strict

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.registry import declare
from layermem.models.seams import Variant


@strict
class PlainConfig(DecoderConfig):
    """The fields of a LLaMA and no others."""

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


@final
class Plain(Variant[PlainConfig]):
    """Differences from the plain decoder: none."""


declare("plain", PlainConfig, Plain)

if TYPE_CHECKING:
    # What the declaration makes, for type checkers.
    class PlainModel(Decoder): ...

    class PlainForCausalLM(DecoderForCausalLM): ...
