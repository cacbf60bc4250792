"""``PreTrainedDecoder``, base of all model classes: initialisation, loading, ``from_llama``."""

import copy
import os
import re
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from layermem.models.card import TAGS, imports_of, write_card
from layermem.models.checkpoints import (
    LLAMA_MODEL_TYPES,
    adapter_config,
    check_complete,
    check_fields,
    check_path,
    join_subfolder,
    location_arguments,
    naming_source,
    read_saved_config,
    without_loading_report,
)
from layermem.models.configuration import PREFIX, DecoderConfig, check_dtype, computing_fields
from layermem.models.layers import AbsentLinear
from layermem.models.seams import Variant
from layermem.models.static_router import StaticRouter
from layermem.models.tensor_parallel import share_layers

# Whose modules transformers initialises; those of others would keep what memory holds.
_INITIALISED = ("torch", "transformers")
# Fields of a LLaMA's config about its file or class, which a config of ours does not take over.
_FILE_FIELDS = (
    "model_type",
    "architectures",
    "transformers_version",
    "auto_map",
    "pretraining_tp",
)


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
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load as transformers does, but raise instead of leaving part of the decoder random.

        A checkpoint whose layers, heads or routers are not those of the config is refused too.
        """
        # With a state dict or without a source, missing weights are the caller's intention.
        source = pretrained_model_name_or_path
        if source is None or kwargs.get("state_dict") is not None:
            return super().from_pretrained(source, *args, **kwargs)
        _refuse_gguf(cls, kwargs)
        adapter = _pop_adapter(source, kwargs)
        if adapter is not None:
            return _load_with_adapter(cls, adapter[0], adapter[1], args, kwargs)
        location = location_arguments(kwargs)
        check_path(source, location)
        saved = read_saved_config(cls, source, location)
        check_fields(cls, source, saved, kwargs)
        kwargs["config"] = _config_of_same_commit(kwargs.get("config"), saved)
        wants_info = kwargs.pop("output_loading_info", False)
        with naming_source(source):
            model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
        check_complete(model, info, str(source), saved.get("model_type"))
        return (model, info) if wants_info else model

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save as transformers does, with a model card where there is none."""
        self._check_reads_as_config()
        # With PEFT's adapters, those alone are saved.
        if is_main_process and not getattr(self, "_hf_peft_config_loaded", False):
            self._write_card(save_directory)
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    def _check_reads_as_config(self) -> None:
        """Raise if the model that its config makes would not read what this one reads."""
        layers, config = self.base_model.layers, self.config
        if len(layers) != config.num_hidden_layers:
            raise ValueError(
                f"{type(self).__name__} has {len(layers)} layers, and its config says "
                f"num_hidden_layers={config.num_hidden_layers}, as an interrupted "
                "assistant_early_exit leaves it: set it back before saving"
            )
        for i, layer in enumerate(layers):
            reads = self.variant.sources(config, i), self.variant.lenders(config, i)
            if reads != (layer.sources, layer.lenders):
                raise ValueError(
                    f"layer {i} of {type(self).__name__} reads {list(layer.sources)} and borrows "
                    f"from {list(layer.lenders)}; by its config, which was changed after the model "
                    f"was built, these are {list(reads[0])} and {list(reads[1])}: set the config "
                    "back, or build the model from the changed one"
                )

    def _write_card(self, folder: str | os.PathLike[str]) -> None:
        name, config = type(self).__name__, self.config
        autos = (auto for auto, cls in config.auto_classes.items() if cls == name)
        auto = next(autos, "AutoModel")
        variant = config.model_type.removeprefix(PREFIX)
        write_card(
            folder,
            self,
            title=f"{variant} {_kind_of(name)}",
            description=f"`{name}`, a decoder of the variant `{variant}`: "
            f"{config.num_hidden_layers} layers of width {config.hidden_size}, "
            f"{config.num_attention_heads} query heads, "
            f"{config.num_key_value_heads} key-value heads",
            tags=[*TAGS, variant],
            code=f"{imports_of(type(config))}\n"
            f"from transformers import {auto}\n\n"
            f'model = {auto}.from_pretrained("this-folder")',
        )

    @classmethod
    def maybe_distribute_model(
        cls, model: Any, distributed_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Let tensor parallelism shard the heads where their number allows it, then do as ever."""
        if getattr(distributed_config, "tp_size", None):
            share_layers(model, distributed_config)
        return super().maybe_distribute_model(model, distributed_config, *args, **kwargs)

    @classmethod
    def from_llama(cls, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Self:
        """Build a model with the weights of a Hugging Face LLaMA: a path, a hub name or a model.

        The new model computes what the LLaMA computes, because the variant's own parameters start
        without effect (``Variant.plain_fields``; for LIMe ``router_init="identity"``). Keyword
        arguments that are fields of the config are set there (``router="last",
        router_window=4``), and some begin otherwise, with an effect at once (``router="average"``,
        or weights that are constants); the others (``revision``, ``subfolder``, ``dtype``,
        ``device_map``...) are passed to ``from_pretrained``. A variant whose layers lack
        projections of the LLaMA (``lime_half``, ``cla``, ``yoco``, ``fused_kv``) is refused.
        """
        names = {"num_labels", *(field.name for field in dataclass_fields(cls.config_class))}
        given = {name: kwargs.pop(name) for name in sorted(names & kwargs.keys() - {"dtype"})}
        _refuse_gguf(cls, kwargs)
        # The older name of dtype, which transformers ignores if both are given.
        if "torch_dtype" in kwargs:
            kwargs.setdefault("dtype", kwargs.pop("torch_dtype"))
        check_dtype(kwargs.get("dtype"))
        _refuse_config_and_state_dict(kwargs)
        if isinstance(source, PreTrainedModel):
            _check_forward(source)
            if any(t.is_meta for t in source.state_dict().values()):
                raise ValueError(
                    f"weights of this {type(source).__name__} are offloaded: pass the folder or "
                    "the hub name that it was loaded from, or load it without device_map"
                )
            llama, name, path = source.config, type(source).__name__, None
            # Copies: the new model must not share memory with the old one.
            kwargs["state_dict"] = {key: t.clone() for key, t in source.state_dict().items()}
            kwargs.setdefault("dtype", source.dtype)
        else:
            llama, name, path = _read_llama_config(source, kwargs), str(source), source
            kwargs.setdefault("dtype", "auto")
            if getattr(llama, "layer_memory", None) is not None:
                raise ValueError(
                    f"{source} has layer memory attached, and what its routers read is not in its "
                    "weights: load it (AutoModelForCausalLM.from_pretrained) and pass the model"
                )

        config = config_from_llama(cls, llama, given)
        with without_loading_report(), naming_source(name):
            model, info = super().from_pretrained(
                path, config=config, **{**kwargs, "output_loading_info": True}
            )
        check_complete(model, info, name, llama.model_type, allow_missing_own=True)
        if "lm_head.weight" in info["missing_keys"]:
            raise ValueError(
                f"{name} has no lm_head.weight, so the head of {cls.__name__} would be random; "
                "use a LLaMA for causal LM, or one of our classes without that head"
            )
        if isinstance(source, PreTrainedModel):
            _check_same_reads(source, model)
            if source.can_generate() and model.can_generate():
                model.generation_config = copy.deepcopy(source.generation_config)
            model = model.to(source.device).train(source.training)
        return model


def _draws_for_itself(module: nn.Module) -> bool:
    """Return whether a module has weights and a ``reset_parameters`` that are not a library's."""
    if next(module.parameters(recurse=False), None) is None:
        return False
    resets = (cls for cls in type(module).__mro__ if "reset_parameters" in vars(cls))
    cls = next(resets, None)
    return cls is not None and cls.__module__.split(".")[0] not in _INITIALISED


def _check_same_reads(source: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise if routers that are taken over would read other layers than in the source."""
    for path, router in source.base_model.named_modules():
        if isinstance(router, StaticRouter):
            ours = model.base_model.get_submodule(path)
            if (router.sources, router.grain) != (ours.sources, ours.grain):
                raise ValueError(
                    f"{path} reads the layers {list(router.sources)} in {type(source).__name__}, "
                    f"and with these fields {list(cast('Any', ours.sources))}, by weights of the "
                    "same shape: give the fields that it was trained with, or detach its memory"
                )


def _kind_of(class_name: str) -> str:
    """Return what a class of ours is, in words, by its name."""
    task = class_name.partition("For")[2]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", task).lower()
    return {"": "decoder", "CausalLM": "language model"}.get(task, f"model for {words}")


def check_shapes(llama: PreTrainedConfig, fields: Mapping[str, Any]) -> None:
    """Raise if fields would give another meaning to the weights of a LLaMA.

    Weights of one shape may belong to two heads of width 8 or to one of 16.
    """
    names = computing_fields(DecoderConfig)
    for name in [name for name in names if name in fields and hasattr(llama, name)]:
        if fields[name] != getattr(llama, name):
            raise ValueError(
                f"the LLaMA has {name}={getattr(llama, name)}, got {name}={fields[name]}; its "
                f"weights cannot be used with another value: leave {name} out"
            )


def config_from_llama(
    cls: type[PreTrainedDecoder], llama: PreTrainedConfig, given: Mapping[str, Any]
) -> DecoderConfig:
    """Return the config with which ``from_llama`` begins: the LLaMA's values, those with which the
    variant computes what it computes, and the fields that are given."""
    if llama.model_type not in LLAMA_MODEL_TYPES:
        raise ValueError(
            f"from_llama takes a LLaMA checkpoint, got one of model_type {llama.model_type!r} "
            f"({', '.join(llama.architectures or ['no architectures'])}), whose layers may compute "
            "something else from weights of the same names"
        )
    values = llama.to_dict()
    dropped = _FILE_FIELDS + (("id2label", "label2id") if "num_labels" in given else ())
    for name in dropped:
        values.pop(name, None)
    check_shapes(llama, given)
    # Before the plain fields, with which a variant that shares keys and values would share none.
    config = cls.config_class(**{**values, **given})
    layers = range(config.num_hidden_layers)
    if absent := sum(len(cls.variant.projects(config, layer)) < 2 for layer in layers):
        fields = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(
            f"with {fields or 'its defaults'} {absent} of the {len(layers)} layers of "
            f"{cls.__name__} lack a key or value projection of a LLaMA, so that it cannot begin as "
            "the LLaMA; choose a variant whose layers have both, or train a new model"
        )
    return cls.config_class(**{**values, **cls.variant.plain_fields_beside(given), **given})


def _refuse_config_and_state_dict(kwargs: Mapping[str, Any]) -> None:
    if "config" in kwargs or kwargs.get("state_dict") is not None:
        raise TypeError(
            "from_llama takes config and weights of the LLaMA, and no config or state_dict beside "
            'it: pass fields that differ by name, as router="last", and a LLaMA with the weights'
        )


def _check_forward(source: PreTrainedModel) -> None:
    """Raise ``ValueError`` if a LLaMA's class overrides the forward of transformers."""
    for kind in type(source).__mro__:
        if kind.__module__.split(".")[0] in ("transformers", "layermem"):
            return
        if "forward" in vars(kind):
            raise ValueError(
                f"{type(source).__name__} has a forward of its own, which the new model would not "
                "compute; pass a LlamaForCausalLM to from_llama"
            )


def _read_llama_config(source: str | os.PathLike[str], kwargs: dict[str, Any]) -> PreTrainedConfig:
    """Return the config of a LLaMA's checkpoint, read with the location arguments in ``kwargs``."""
    location = location_arguments(kwargs)
    adapter = adapter_config(source, location) if isinstance(source, (str, os.PathLike)) else None
    if adapter is not None:
        raise ValueError(
            f"{source} is a PEFT adapter of {adapter['base_model_name_or_path']}; merge the two "
            "(merge_and_unload) and pass the merged model to from_llama"
        )
    check_path(source, location)
    code = {"code_revision": kwargs.pop("code_revision", None)}
    code["trust_remote_code"] = kwargs.get("trust_remote_code")
    config: PreTrainedConfig = AutoConfig.from_pretrained(source, **location, **code)
    own_code = {name for name in getattr(config, "auto_map", None) or {} if name != "AutoConfig"}
    if code["trust_remote_code"] and own_code and not isinstance(config, DecoderConfig):
        raise ValueError(
            f"{source} has code of its own for {min(own_code)}, which the new model would not run; "
            "leave trust_remote_code out if it computes what a LLaMA does"
        )
    return config


def _refuse_gguf(cls: type[PreTrainedModel], kwargs: dict[str, Any]) -> None:
    if kwargs.get("gguf_file") is not None:
        raise ValueError(
            f"{cls.__name__} does not load GGUF files; load it with transformers' LlamaForCausalLM "
            f"and pass that model to {cls.__name__}.from_llama"
        )


def _config_of_same_commit(config: Any, saved: Mapping[str, Any]) -> Any:
    """Return the caller's config with the commit of the checkpoint's own config.

    Older versions of transformers load the weights of the config's commit, not of ``revision``.
    """
    commit = saved.get("_commit_hash")
    if commit is None or getattr(config, "_commit_hash", None) in (None, commit):
        return config
    config = copy.deepcopy(config)
    config._commit_hash = commit
    return config


def _pop_adapter(source: str | os.PathLike[str], kwargs: dict[str, Any]) -> Any:
    """Return base and PEFT adapter, each with its location arguments, None if there is no adapter.

    An Auto class has read the adapter's config already and passes the base model as ``source``.
    """
    options = dict(kwargs.pop("adapter_kwargs", None) or {})
    adapter_path = options.pop("_adapter_model_path", None)
    location = location_arguments(kwargs)
    # Revision and subfolder are those of one repository; the others hold for both.
    shared = {name: location[name] for name in location.keys() - {"revision", "subfolder"}}
    if adapter_path is not None and str(adapter_path) != str(source):
        return (source, location), (adapter_path, {**shared, **options})
    adapter = adapter_config(source, {**location, **options})
    if adapter is None:
        return None
    if adapter.get("revision"):
        shared["revision"] = adapter["revision"]
    base = adapter["base_model_name_or_path"], shared
    return base, join_subfolder(source, {**location, **options})


def _load_with_adapter(
    cls: type[PreTrainedDecoder], base: Any, adapter: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Load the base model of an adapter with the usual checks, and add the adapter to it."""
    wants_info = kwargs.pop("output_loading_info", False)
    name = kwargs.pop("adapter_name", "default")
    others = {key: kwargs[key] for key in kwargs.keys() - location_arguments(kwargs).keys()}
    model = cls.from_pretrained(base[0], *args, **others, **base[1])
    source, location = adapter
    info = model.load_adapter(
        str(source), adapter_name=name, adapter_kwargs=location, dtype=model.dtype
    ).to_dict()
    wrong = {"lacks": info["missing_keys"], "has no place for": info["unexpected_keys"]}
    for what, names in wrong.items():
        if names:
            raise ValueError(
                f"{source} {what} {len(names)} weights, such as {min(names)}; is it whole, and an "
                f"adapter of {base[0]}? Of a kind that transformers renames (DoRA), load the base "
                "and pass it to peft.PeftModel.from_pretrained(model, adapter)"
            )
    return (model, info) if wants_info else model
