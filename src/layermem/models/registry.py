"""The variants by name: their model classes, made from a declaration, and the Auto classes.

It does not know: which variants there are.
"""

import difflib
import sys
import types
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationMixin,
)
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.models.auto import modeling_auto as tables

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import DecoderConfig, check_dtype
from layermem.models.decoder import Decoder
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One registered variant and its classes."""

    variant: type[Variant[Any]]
    config: type[DecoderConfig]
    decoder: type[Decoder]
    causal_lm: type[DecoderForCausalLM]
    sequence_classification: type[PreTrainedDecoder]
    token_classification: type[PreTrainedDecoder]
    question_answering: type[PreTrainedDecoder]


_ENTRIES: dict[str, Entry] = {}
# transformers' tables of class names, into which registering with an Auto class does not write.
_NAMES: dict[Any, dict[str, str]] = {
    AutoModel: tables.MODEL_MAPPING_NAMES,
    AutoModelForCausalLM: tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    AutoModelForSequenceClassification: tables.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    AutoModelForTokenClassification: tables.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    AutoModelForQuestionAnswering: tables.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}


def declare(
    name: str,
    config: type[DecoderConfig],
    variant: type[Variant[Any]],
    *,
    base: type[PreTrainedDecoder] = PreTrainedDecoder,
) -> Entry:
    """Make the classes of a variant, and make them known here and to transformers' Auto classes.

    Of a ``NameConfig`` they are called ``NameModel``, ``NameForCausalLM``,
    ``NameForSequenceClassification`` and so on, and stand in the config's own module; the config's
    ``model_type`` is ``layermem_`` and the variant's name. ``base``: a subclass of
    ``PreTrainedDecoder`` with the methods that all of them have.
    """
    prefix = config.__name__.removesuffix("Config")
    if prefix == config.__name__:
        raise ValueError(f"the config of a variant is called ...Config, got {config.__name__}")
    if name in _ENTRIES:
        raise ValueError(f"a variant named {name!r} is registered already")

    def made(ending: str, bases: tuple[type, ...], meaning: str, **fields: Any) -> Any:
        body = {"__module__": config.__module__, "__doc__": meaning, **fields}
        cls = types.new_class(prefix + ending, bases, exec_body=lambda space: space.update(body))
        # Where pickle looks for it.
        setattr(sys.modules[config.__module__], cls.__name__, cls)
        return cls

    config.model_type = f"layermem_{name}"
    own = {"variant": variant, "__annotations__": {"config": config}}
    root = made("PreTrained", (base,), "Ties config and variant to the model classes.", **own)
    decoder = made("Model", (root, Decoder), "Token ids to hidden states.")
    # Tools look for the mixin among a class's own bases.
    bases = (root, DecoderForCausalLM, GenerationMixin)
    entry = Entry(
        variant=variant,
        config=config,
        decoder=decoder,
        causal_lm=made("ForCausalLM", bases, "Next-token prediction.", decoder_class=decoder),
        sequence_classification=made(
            "ForSequenceClassification",
            (GenericForSequenceClassification, root),
            "One label for a text.",
        ),
        token_classification=made(
            "ForTokenClassification",
            (GenericForTokenClassification, root),
            "One label for each token.",
        ),
        question_answering=made(
            "ForQuestionAnswering",
            (GenericForQuestionAnswering, root),
            "Start and end of an answer in a text.",
        ),
    )
    _register(entry)
    _ENTRIES[name] = entry
    return entry


def _register(entry: Entry) -> None:
    """Make the classes of a variant known to transformers' Auto classes."""
    auto_classes = {
        AutoModel: entry.decoder,
        AutoModelForCausalLM: entry.causal_lm,
        AutoModelForSequenceClassification: entry.sequence_classification,
        AutoModelForTokenClassification: entry.token_classification,
        AutoModelForQuestionAnswering: entry.question_answering,
    }
    AutoConfig.register(entry.config.model_type, entry.config)
    for auto, model in auto_classes.items():
        auto.register(entry.config, model)
        # What a class is for is looked up by its name: by Trainer, to shift the labels that it
        # smooths (a causal LM it does not know learns to copy its input), by model cards and by
        # ``transformers serve``. FSDP2 puts its own name before the class's.
        kind = entry.config.model_type
        _NAMES[auto].update({kind: model.__name__, f"{kind}.fsdp": f"FSDP{model.__name__}"})
    entry.config.auto_classes = {
        auto.__name__: model.__name__ for auto, model in auto_classes.items()
    }


def variants() -> list[str]:
    """Return the names of the registered variants, sorted."""
    return sorted(_ENTRIES)


def lookup(name: str) -> Entry:
    """Return the classes of a variant by its name."""
    if name not in _ENTRIES:
        raise ValueError(f"unknown variant {name!r}; there are {', '.join(variants())}")
    return _ENTRIES[name]


def build(name: str, **fields: Any) -> DecoderForCausalLM:
    """Return a causal LM of the named variant with fresh weights.

    ``fields`` are those of the variant's config, ``dtype`` and ``attn_implementation``. Weights
    follow from torch's seed: ``torch.manual_seed(0)`` before each of two builds gives two variants
    the same shared weights.
    """
    entry = lookup(name)
    known = {field.name for field in dataclass_fields(entry.config)}
    for field in fields.keys() - known - {"attn_implementation", "output_attentions"}:
        close = difflib.get_close_matches(field, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"{entry.config.__name__} has no field {field!r}{hint}")
    check_dtype(fields.get("dtype"))
    return entry.causal_lm._from_config(entry.config(**fields))
