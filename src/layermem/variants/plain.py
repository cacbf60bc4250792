"""The plain decoder, a LLaMA: both seams are the identity. It is the baseline of every variant."""

from typing import TYPE_CHECKING, ClassVar, final

from huggingface_hub.dataclasses import strict

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import LOCAL_HEADS, DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.registry import declare
from layermem.models.seams import Variant


@strict
class PlainConfig(DecoderConfig):
    """The fields of a LLaMA."""

    # No memory mixes heads, so that attention can be sharded too.
    base_model_tp_plan: ClassVar[dict[str, str]] = {
        **DecoderConfig.base_model_tp_plan,
        **LOCAL_HEADS,
    }


@final
class Plain(Variant[PlainConfig]):
    """Differences from the plain decoder: none."""

    @classmethod
    def extra_saved(cls, config: PlainConfig) -> int:
        return 0


declare("plain", PlainConfig, Plain)

if TYPE_CHECKING:
    # For type checkers: the classes that the declaration makes.
    class PlainModel(Decoder): ...

    class PlainForCausalLM(DecoderForCausalLM): ...
