"""The registry of variants: ``declare`` makes a variant's model classes, ``lookup`` returns them.

A variant is declared together with its pairs (``lime+hyper_connections``).
"""

import difflib
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any, get_args

from torch import nn
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

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import PREFIX, DecoderConfig, check_dtype
from layermem.models.decoder import Decoder
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import SubLayer, Variant
from layermem_base.plugins import unknown_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredVariant:
    """A variant with its config and model classes."""

    variant: type[Variant[Any]]
    config: type[DecoderConfig]
    base: type[PreTrainedDecoder]
    decoder: type[Decoder]
    causal_lm: type[DecoderForCausalLM]
    sequence_classification: type[PreTrainedDecoder]
    token_classification: type[PreTrainedDecoder]
    question_answering: type[PreTrainedDecoder]


BUILT_WITH = frozenset({"attn_implementation", "output_attentions"})
"""What a model may be built with beside the fields of its config."""
_REGISTERED: dict[str, RegisteredVariant] = {}
_AUTO_CLASSES: dict[str, Any] = {
    "decoder": AutoModel,
    "causal_lm": AutoModelForCausalLM,
    "sequence_classification": AutoModelForSequenceClassification,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
}


def declare(
    name: str,
    config: type[DecoderConfig],
    variant: type[Variant[Any]],
    *,
    base: type[PreTrainedDecoder] = PreTrainedDecoder,
) -> RegisteredVariant:
    """Make the model classes of a variant and register them, also with transformers' Auto classes.

    For ``LimeConfig`` the classes are ``LimeModel``, ``LimeForCausalLM``,
    ``LimeForSequenceClassification`` and so on, and belong to the module of the config. Pairs with
    the registered variants are made too. The config is ``@strict``, each of its fields has a
    docstring, and methods named ``validate_...`` refuse wrong values. Its ``model_type`` becomes
    ``layermem_`` followed by ``name``. A checkpoint is loaded with its own values of the fields,
    except of those named ``..._init``, which may differ. ``base`` is a subclass of
    ``PreTrainedDecoder`` with methods that all the classes get.
    """
    prefix = config.__name__.removesuffix("Config")
    if prefix == config.__name__:
        raise ValueError(
            f"the class name of a variant's config must end with Config, got {config.__name__}"
        )
    if name in _REGISTERED:
        raise ValueError(f"a variant named {name!r} is already registered; choose another name")

    def make_class(ending: str, bases: tuple[type, ...], doc: str, **attributes: Any) -> Any:
        body = {"__module__": config.__module__, "__doc__": doc, **attributes}
        cls = types.new_class(prefix + ending, bases, exec_body=lambda space: space.update(body))
        # Pickle finds a class by its module and name.
        setattr(sys.modules[config.__module__], cls.__name__, cls)
        return cls

    config.model_type, config.variant_class = f"{PREFIX}{name}", variant
    attributes = {"variant": variant, "__annotations__": {"config": config}}
    root = make_class("PreTrained", (base,), "Base of the variant's model classes.", **attributes)
    decoder = make_class("Model", (root, Decoder), "Token ids to hidden states.")
    # PEFT and others look for GenerationMixin among the direct bases of a class.
    bases = (root, DecoderForCausalLM, GenerationMixin)
    classes = {
        "decoder": decoder,
        "causal_lm": make_class(
            "ForCausalLM", bases, "Next-token prediction.", decoder_class=decoder
        ),
    }
    for field, generic, doc in (
        ("sequence_classification", GenericForSequenceClassification, "One label for a text."),
        ("token_classification", GenericForTokenClassification, "One label for each token."),
        ("question_answering", GenericForQuestionAnswering, "Start and end of an answer."),
    ):
        ending = generic.__name__.removeprefix("Generic")
        classes[field] = make_class(ending, (generic, root), doc)
    _register(config, classes)
    entry = RegisteredVariant(variant=variant, config=config, base=base, **classes)
    _REGISTERED[name] = entry
    if not _is_pair(name):
        # It imports this module.
        from layermem.models.pairs import declare_pairs

        declare_pairs(name)
    return entry


def _register(config: type[DecoderConfig], classes: Mapping[str, type]) -> None:
    """Register the classes of a variant with transformers' Auto classes."""
    AutoConfig.register(config.model_type, config)
    config.auto_classes = {}
    for field, model in classes.items():
        auto = _AUTO_CLASSES[field]
        auto.register(config, model)
        config.auto_classes[auto.__name__] = model.__name__
        # transformers looks up by class name what a class is for: Trainer, to shift labels under
        # label smoothing (an unknown causal LM would learn to copy its input), model cards and
        # ``transformers serve``. ``register`` does not add it. FSDP2 prefixes the class name.
        class_names = auto._model_mapping._model_mapping
        class_names[config.model_type] = model.__name__
        class_names[f"{config.model_type}.fsdp"] = f"FSDP{model.__name__}"


def list_variants() -> list[str]:
    """Return the names of the registered variants, those of plugins too, sorted."""
    return sorted(name for name in _REGISTERED if not _is_pair(name))


def lookup(name: str, other_names: Iterable[str] = ()) -> RegisteredVariant:
    """Return a variant and its classes by its name, or a pair by both: ``lime+hyper_connections``.

    The variant that fills the memory seam is named first. ``other_names`` are understood where the
    name was given, and are named beside the variants where it is unknown.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if _is_pair(name):
        # It imports this module.
        from layermem.models.pairs import reason_against

        raise ValueError(f"{name!r} is no pair: {reason_against(*name.split('+'))}")
    pairs = (
        ", and pairs A+B of one that changes what attention reads and one that changes the "
        "residual stream"
    )
    raise unknown_name("variant", name, sorted({*list_variants(), *other_names}), further=pairs)


def _is_pair(name: str) -> bool:
    return "+" in name


def check_names(entry: RegisteredVariant, names: Iterable[str]) -> None:
    """Raise ``TypeError`` if the variant's config has no field of one of these names."""
    known = {field.name for field in dataclass_fields(entry.config)}
    for name in sorted(set(names) - known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"{entry.config.__name__} has no field {name!r}{hint}")


def build(name: str, **fields: Any) -> DecoderForCausalLM:
    """Return a causal LM of the named variant with newly initialised weights.

    ``fields`` are those of the variant's config, ``dtype`` and ``attn_implementation``. The weights
    depend on torch's random state: ``torch.manual_seed(0)`` before each of two calls gives two
    variants the same shared weights.
    """
    entry = lookup(name)
    check_names(entry, fields.keys() - BUILT_WITH)
    check_dtype(fields.get("dtype"))
    return entry.causal_lm._from_config(entry.config(**fields))


class Seams(nn.Module):
    """The initialised modules of a variant, or pair, for a model that is not ours.

    ``fields`` are those of its config. ``sources`` says whose slots a layer's memory is given.
    """

    def __init__(self, name: str, **fields: Any) -> None:
        super().__init__()
        check_names(entry := lookup(name), fields)
        config, variant = entry.config(**fields), entry.variant
        layers, read = range(config.num_hidden_layers), variant.hands_on(config) == "read"
        memories = [variant.memory(config, i) for i in layers]
        parts = min(len(variant.projects(config, i)) for i in layers)
        by_ids = any(memory.reads_ids for memory in memories)
        if parts < 2 or by_ids or read or variant.inputs_by_head(config):
            raise ValueError(f"{name} changes more of a layer than its seams; use layermem.build")
        pairs = [[variant.connection(config, i, at) for at in get_args(SubLayer)] for i in layers]
        self.memories = nn.ModuleList(memories)
        self.connections = nn.ModuleList(map(nn.ModuleList, pairs))
        self.stream, self.overrides = variant.stream(config), variant.overrides
        self.sources = [variant.sources(config, i) for i in layers]
        for module in self.modules():
            variant.init_weights(module)
