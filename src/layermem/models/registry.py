"""The variants by name, and their registration with transformers' Auto classes.

It does not know: which variants there are.
"""

import difflib
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
)
from transformers.models.auto import modeling_auto as tables

from layermem.models.configuration import DecoderConfig, check_dtype
from layermem.models.decoder import Decoder, DecoderForCausalLM
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One registered variant and its classes."""

    variant: type[Variant]
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


def register(name: str, entry: Entry) -> None:
    """Make a variant known by name, here and to transformers' Auto classes."""
    if name in _ENTRIES:
        raise ValueError(f"a variant named {name!r} is registered already")
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
    _ENTRIES[name] = entry


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
