"""``PreTrainedDecoder``, base of all model classes: initialisation, saving, loading.

transformers reads the files. What is checked here: weights are of this variant and of these fields,
and none of the decoder's is missing, which transformers would report and draw at random.
"""

import copy
import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Self, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from layermem.models.card import write_card
from layermem.models.configuration import PREFIX, DecoderConfig
from layermem.models.layers import AbsentLinear
from layermem.models.seams import Variant
from layermem.models.tensor_parallel import share_layers

# Whose modules transformers initialises; those of others would keep what memory holds.
_INITIALISED = ("torch", "transformers")
# The model types that from_llama takes: the plain decoder is a LLaMA.
LLAMA_MODEL_TYPES = ("llama", f"{PREFIX}plain")
# Fields of a LLaMA's config about its file or class, which a config of ours does not take over.
FILE_FIELDS = ("model_type", "architectures", "transformers_version", "auto_map", "pretraining_tp")
# Arguments that locate a checkpoint's files. All its files are read with the same ones, so that the
# config and the weights are of one revision.
_LOCATION_ARGUMENTS = (
    *("revision", "subfolder", "cache_dir", "force_download", "local_files_only", "proxies"),
    "token",
)
# Names of a variant's own parameters: those at the two seams.
_VARIANT_PARAMETER = re.compile(r"\.memory\.|_connection\.|(^|\.)stream\.")


class PreTrainedDecoder(PreTrainedModel):
    """Base of every model class of every variant."""

    config: DecoderConfig
    variant: ClassVar[type[Variant[Any]]] = Variant
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["DecoderLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["cache", "past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, AbsentLinear):
            module.draw(self.config.initializer_range)
        elif self.variant.init_weights(module):
            return
        elif _draws_for_itself(module):
            # Of a plugin, whose ``overrides`` do not name it. What others draw stays the same.
            with torch.random.fork_rng(devices=[]):
                cast("Any", module).reset_parameters()
        else:
            super()._init_weights(module)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Do nothing: otherwise transformers would copy our source files into every checkpoint."""

    @classmethod
    def maybe_distribute_model(
        cls, model: Any, distributed_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Let tensor parallelism shard the heads where their number allows it, then do as ever."""
        if getattr(distributed_config, "tp_size", None):
            share_layers(model, distributed_config)
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save as transformers does, with a model card where there is none."""
        # With PEFT's adapters, those alone are saved.
        if is_main_process and not getattr(self, "_hf_peft_config_loaded", False):
            write_card(save_directory, self)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load as transformers does, but raise instead of leaving part of the decoder random.

        A checkpoint of another variant is refused, and so are fields with another value than it was
        saved with, where its weights would compute something else. The folder of a PEFT adapter
        loads the model that the adapter names, and the adapter.
        """
        # With a state dict or without a source, missing weights are the caller's intention.
        source: Any = pretrained_model_name_or_path
        if source is None or kwargs.get("state_dict") is not None:
            return super().from_pretrained(source, *args, **kwargs)
        source, adapter, how = _pop_adapter(source, kwargs)
        location = location_arguments(kwargs)
        check_path(source, location.get("subfolder", ""))
        saved = PreTrainedConfig.get_config_dict(source, **location)[0]
        _check_model_type(cls, source, saved)
        _check_given(cls, source, saved, kwargs)
        wants_info = kwargs.pop("output_loading_info", False)
        with naming_source(source):
            model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
        _check_complete(model, info, source)
        if adapter is not None:
            info = model.load_adapter(adapter, **how, dtype=model.dtype).to_dict()
            if lost := {*info["missing_keys"], *info["unexpected_keys"]}:
                raise ValueError(
                    f"{len(lost)} weights, such as {min(lost)}, are in the adapter {adapter} "
                    f"or in the model {source} alone; is it whole, and of that model?"
                )
        return (model, info) if wants_info else model

    @classmethod
    def from_llama(cls, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Self:
        """Build a model with the weights of a Hugging Face LLaMA: a path, a hub name or a model.

        It computes what the LLaMA does: its own parameters begin without effect. Keyword arguments
        are fields of the config, of which some have an effect at once (``router="average"``), or of
        ``from_pretrained``. Variants that lack projections (``lime_half``, ``cla``) are refused.
        """
        names = {"num_labels", *(field.name for field in dataclass_fields(cls.config_class))}
        given = {name: kwargs.pop(name) for name in sorted(names & kwargs.keys() - {"dtype"})}
        llama: PreTrainedConfig
        if isinstance(source, PreTrainedModel):
            llama, name, path, dtype = source.config, type(source).__name__, None, source.dtype
            # Copies: the new model must not share memory with the old one.
            state = {key: tensor.clone() for key, tensor in source.state_dict().items()}
        else:
            location = location_arguments(kwargs)
            check_path(source, location.get("subfolder", ""))
            llama = AutoConfig.from_pretrained(source, **location)
            name, path, dtype, state = str(source), source, "auto", None
        # "torch_dtype" is its older name, which transformers ignores beside it.
        kwargs["dtype"] = kwargs.pop("torch_dtype", None) or kwargs.get("dtype") or dtype
        config = config_from_llama(cls, llama, given)
        with without_loading_report(), naming_source(name):
            model, info = super().from_pretrained(
                path, config=config, state_dict=state, output_loading_info=True, **kwargs
            )
        _check_complete(model, info, name, of_llama=True)
        if "lm_head.weight" in info["missing_keys"]:
            raise ValueError(
                f"{name} has no lm_head.weight, so the head of {cls.__name__} would be random; "
                "use a LLaMA for causal LM, or one of our classes without that head"
            )
        if isinstance(source, PreTrainedModel):
            if source.can_generate() and model.can_generate():
                model.generation_config = copy.deepcopy(source.generation_config)
            model = model.to(source.device).train(source.training)
        return model


def config_from_llama(
    cls: type[PreTrainedDecoder], llama: PreTrainedConfig, given: Mapping[str, Any]
) -> DecoderConfig:
    """Return the config with which ``from_llama`` begins: the LLaMA's values, those with which the
    variant computes what it computes, and the fields that are given."""
    if llama.model_type not in LLAMA_MODEL_TYPES:
        raise ValueError(
            f"from_llama takes a LLaMA checkpoint, got one of model_type {llama.model_type!r}, "
            "whose layers may compute something else from weights of the same names"
        )
    dropped = FILE_FIELDS + (("id2label", "label2id") if "num_labels" in given else ())
    values = {name: value for name, value in llama.to_dict().items() if name not in dropped}
    _check_fields("the LLaMA", llama, given, DecoderConfig.shape_fields())
    # Before the plain fields, with which a variant that shares keys and values would share none.
    config = cls.config_class(**{**values, **given})
    layers = range(config.num_hidden_layers)
    if absent := sum(len(cls.variant.projects(config, layer)) < 2 for layer in layers):
        raise ValueError(
            f"{absent} of the {len(layers)} layers of {cls.__name__} lack a key or value "
            "projection of a LLaMA, so that it cannot begin as the LLaMA; choose a variant or "
            "fields whose layers have both, or train a new model"
        )
    plain = cls.variant.plain_fields_beside(given)
    for name in (n for n in plain if n.endswith("_init") and given.get(n, plain[n]) != plain[n]):
        warnings.warn(f"{name}={given[name]!r} does not begin as the LLaMA", stacklevel=3)
    return cls.config_class(**{**values, **plain, **given})


def location_arguments(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a loading call that locate the files."""
    return {name: kwargs[name] for name in _LOCATION_ARGUMENTS if kwargs.get(name) is not None}


def check_path(source: str | os.PathLike[str], subfolder: str = "") -> None:
    """Raise if ``source`` is a path without a checkpoint; hub names are left to transformers."""
    path = Path(source)
    if path.exists() and not (path / subfolder / "config.json").is_file():
        raise OSError(f"{path / subfolder} is not a checkpoint: it has no config.json")
    is_path = path.is_absolute() or str(source).startswith((".", "~")) or len(path.parts) > 2
    if is_path and not path.exists():
        raise OSError(f"{path} does not exist; pass a checkpoint's folder or a hub name")


@contextmanager
def naming_source(source: Any) -> Iterator[None]:
    """Name the checkpoint whose weights are cut short, damaged, or more than tensors."""
    try:
        yield
    except (SafetensorError, UnpicklingError) as error:
        raise ValueError(
            f"weights of {source} cannot be read ({str(error).splitlines()[0]}); fetch them again, "
            "or, if you trust them, save them as model.safetensors"
        ) from error


@contextmanager
def without_loading_report() -> Iterator[None]:
    """Leave out transformers' report of missing and unexpected weights, which are checked here."""

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    reporter = logging.getLogger("transformers.modeling_utils")
    reporter.addFilter(is_no_report)
    try:
        yield
    finally:
        reporter.removeFilter(is_no_report)


def _draws_for_itself(module: nn.Module) -> bool:
    """Return whether a module has weights and a ``reset_parameters`` that are not a library's."""
    if next(module.parameters(recurse=False), None) is None:
        return False
    resets = (cls for cls in type(module).__mro__ if "reset_parameters" in vars(cls))
    cls = next(resets, None)
    return cls is not None and cls.__module__.split(".")[0] not in _INITIALISED


def _pop_adapter(source: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model to load, and the PEFT adapter and how to load it, if there is one.

    An Auto class has read the adapter's config already and passes its model as ``source``.
    """
    options = dict(kwargs.get("adapter_kwargs") or {})
    adapter = options.pop("_adapter_model_path", None)
    if adapter is None:
        folder = Path(source, kwargs.get("subfolder") or "")
        if not (folder / "adapter_config.json").is_file():
            return source, None, {}
        text = (folder / "adapter_config.json").read_text(encoding="utf-8")
        source, adapter = json.loads(text)["base_model_name_or_path"], folder
        kwargs.pop("subfolder", None)
    kwargs.pop("adapter_kwargs", None)
    name = kwargs.pop("adapter_name", "default")
    return source, str(adapter), {"adapter_name": name, "adapter_kwargs": options}


def _check_model_type(cls: type[PreTrainedDecoder], source: Any, saved: Mapping[str, Any]) -> None:
    """Raise if ``cls`` would compute something else with the weights of a checkpoint."""
    expected, model_type = cls.config_class.model_type, saved.get("model_type")
    allowed = LLAMA_MODEL_TYPES if expected in LLAMA_MODEL_TYPES else (expected,)
    if model_type and model_type not in allowed:
        advice = "load it with transformers.AutoModelForCausalLM or another Auto class"
        if model_type in LLAMA_MODEL_TYPES:
            advice = f"{cls.__name__}.from_llama takes them over as a start"
        raise ValueError(
            f"{source} holds a model of model_type {model_type!r}, and {cls.__name__} "
            f"({expected!r}) would compute something else with its weights; {advice}"
        )


def _check_given(
    cls: type[PreTrainedDecoder], source: Any, saved: Mapping[str, Any], kwargs: dict[str, Any]
) -> None:
    """Raise if the caller's config or fields contradict those of the checkpoint."""
    config, names = kwargs.get("config"), cls.config_class.shape_fields()
    if isinstance(config, (str, os.PathLike)):
        location = location_arguments(kwargs)
        config = kwargs["config"] = cls.config_class.from_pretrained(config, **location)
    given = kwargs if config is None else config.to_dict()
    if not given.keys().isdisjoint(names):
        _check_fields(str(source), cls.config_class.from_dict(dict(saved)), given, names)


def _check_fields(
    source: str, saved: PreTrainedConfig, given: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Raise if fields would give another meaning to weights.

    Weights of one shape may belong to two heads of width 8 or to one of 16.
    """
    for name in names:
        if name in given and given[name] != getattr(saved, name, given[name]):
            raise ValueError(
                f"{source} has {name}={getattr(saved, name)}, got {name}={given[name]}; its "
                f"weights cannot be used with another value: leave {name} out"
            )


def _check_complete(
    model: PreTrainedModel, info: Mapping[str, Any], source: Any, *, of_llama: bool = False
) -> None:
    """Raise if the checkpoint lacks weights of the decoder, or has some that the decoder lacks.

    Heads may be missing, and those of other models are left out. ``info``: transformers' loading
    info. ``of_llama``: the checkpoint has none of the variant's own parameters.
    """
    inner, parts = f"{model.base_model_prefix}.", {name for name, _ in model.named_children()}
    mismatched = {key for key, *_ in info["mismatched_keys"]}
    missing = {k for k in info["missing_keys"] if model.base_model is model or k.startswith(inner)}
    # Old LLaMA checkpoints have a buffer of rope.
    unexpected = {
        key
        for key in info["unexpected_keys"]
        if key.partition(".")[0] in {*parts, inner[:-1]} and "rotary_emb." not in key
    }
    if of_llama:
        own = {key for key in model.state_dict() if _VARIANT_PARAMETER.search(key)}
        if present := own - missing:
            raise ValueError(
                f"{source} has layer memory of its own, such as {min(present)}: detach it first"
            )
        missing -= own
    kind = f"{type(model).__name__} with num_hidden_layers={model.config.num_hidden_layers}"
    for problem, keys in (
        (f"lacks {{}} weights of a {kind}", missing - mismatched),
        (f"has {{}} weights that a {kind} lacks", unexpected),
    ):
        if keys:
            raise ValueError(f"{source} {problem.format(len(keys))}, such as {min(keys)}")
