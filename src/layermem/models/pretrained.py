"""The decoder as a citizen of transformers: what it supports, how it loads, what it refuses.

It does not know: the forward.
"""

import copy
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from layermem.models.checkpoints import (
    LLAMAS,
    adapter_config,
    check_complete,
    check_fields,
    check_path,
    inner,
    saved_config,
    whereabouts,
)
from layermem.models.configuration import DecoderConfig, check_dtype
from layermem.models.seams import Variant

# What a LLaMA's config says about its own file or class, and nothing about the weights.
_OWN_TO_THE_FILE = (
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
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not self.variant.init_weights(module):
            super()._init_weights(module)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Do nothing: transformers would copy our source files into every saved folder."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Load as transformers does, but never leave part of the decoder at random.

        A checkpoint whose layers, heads or routers are not those of the config is refused.
        """
        # A state dict in hand, or none at all, is a caller who knows what is missing.
        source = pretrained_model_name_or_path
        if source is None or kwargs.get("state_dict") is not None:
            return super().from_pretrained(source, *args, **kwargs)
        _refuse_gguf(cls, kwargs)
        adapter = _take_adapter(source, kwargs)
        if adapter is not None:
            return _load_with_adapter(cls, adapter, args, kwargs)
        where = whereabouts(kwargs)
        check_path(source, where)
        saved = saved_config(cls, source, where)
        check_fields(cls, source, saved, kwargs)
        kwargs["config"] = _at_revision(kwargs.get("config"), saved)
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
        check_complete(model, info, str(source), saved.get("model_type"))
        return (model, info) if wants_info else model

    @classmethod
    def from_llama(cls, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Self:
        """Take over the weights of a Hugging Face LLaMA, as a path, a hub name or a model.

        The result computes what the LLaMA computes: what the variant adds starts at zero effect
        (for LIMe, ``router_init="identity"``). Keyword arguments that are fields of the config go
        there (``router="last", router_window=4``), the others (``revision``, ``subfolder``,
        ``dtype``, ``device_map``...) to ``from_pretrained``.
        """
        names = {"num_labels", *(field.name for field in dataclass_fields(cls.config_class))}
        own = {name: kwargs.pop(name) for name in sorted(names & kwargs.keys() - {"dtype"})}
        own = {**(cls.variant.plain_fields or {}), **own}
        _refuse_gguf(cls, kwargs)
        # Older spelling of transformers, which ignores it where the newer one stands beside.
        if "torch_dtype" in kwargs:
            kwargs.setdefault("dtype", kwargs.pop("torch_dtype"))
        check_dtype(kwargs.get("dtype"))
        _refuse_what_is_the_llamas(kwargs)
        if isinstance(source, PreTrainedModel):
            _check_forward(source)
            llama, name, place = source.config, type(source).__name__, None
            # Copies: the new model must not write through to the one it came from.
            kwargs["state_dict"] = {key: t.clone() for key, t in source.state_dict().items()}
            kwargs.setdefault("dtype", source.dtype)
        else:
            llama, name, place = _llama_config(source, kwargs), str(source), source
            kwargs.setdefault("dtype", "auto")

        config = _adopt(cls, llama, own)
        with _without_load_report():
            model, info = super().from_pretrained(
                place, config=config, **{**kwargs, "output_loading_info": True}
            )
        check_complete(model, info, name, llama.model_type, but_own=True)
        if "lm_head.weight" in info["missing_keys"]:
            raise ValueError(
                f"{name} has no lm_head.weight, without which {cls.__name__} would guess at random;"
                " take a LLaMA that predicts tokens, or one of our classes without that head"
            )
        if isinstance(source, PreTrainedModel):
            if source.can_generate() and model.can_generate():
                model.generation_config = copy.deepcopy(source.generation_config)
            model = model.to(source.device).train(source.training)
        return model


def _adopt(
    cls: type[PreTrainedDecoder], llama: PreTrainedConfig, own: Mapping[str, Any]
) -> DecoderConfig:
    """Turn a LLaMA's config into one of ours."""
    if llama.model_type not in LLAMAS:
        raise ValueError(
            f"from_llama takes a LLaMA checkpoint, got one of model_type {llama.model_type!r} "
            f"({', '.join(llama.architectures or ['no architectures'])}), whose layers may compute "
            "something else under the same names"
        )
    values = llama.to_dict()
    dropped = _OWN_TO_THE_FILE + (("id2label", "label2id") if "num_labels" in own else ())
    for name in dropped:
        values.pop(name, None)
    # Two heads of width 8 and one of 16 have weights of one shape.
    own_shape = (*DecoderConfig.shape_fields, "tie_word_embeddings")
    for name in [name for name in own_shape if name in own and hasattr(llama, name)]:
        if own[name] != getattr(llama, name):
            raise ValueError(
                f"the LLaMA has {name}={getattr(llama, name)}, got {name}={own[name]}; its weights "
                "fit no other: leave it out"
            )
    return cls.config_class(**{**values, **own})


def _refuse_what_is_the_llamas(kwargs: Mapping[str, Any]) -> None:
    if "config" in kwargs:
        raise TypeError(
            "from_llama makes the config from the LLaMA's; give the fields that differ by "
            'name, such as router="last", not a config'
        )
    if kwargs.get("state_dict") is not None:
        raise TypeError(
            "from_llama takes the weights of the LLaMA; load a state_dict into that first, and "
            "give from_llama the model"
        )


def _check_forward(source: PreTrainedModel) -> None:
    """Raise if a model's class has a forward of its own, under the name of a LLaMA."""
    for kind in type(source).__mro__:
        if kind.__module__.split(".")[0] in ("transformers", "layermem"):
            return
        if "forward" in vars(kind):
            raise ValueError(
                f"{type(source).__name__} has a forward of its own, which a decoder of ours would "
                "not compute; give from_llama a LlamaForCausalLM"
            )


def _llama_config(source: str | os.PathLike[str], kwargs: dict[str, Any]) -> PreTrainedConfig:
    """Return the config of a LLaMA's checkpoint, from where its weights will come."""
    where = whereabouts(kwargs)
    adapter = adapter_config(source, where) if isinstance(source, (str, os.PathLike)) else None
    if adapter is not None:
        raise ValueError(
            f"{source} is a PEFT adapter of {adapter['base_model_name_or_path']}; merge the two "
            "(merge_and_unload) and give from_llama the model that comes of it"
        )
    check_path(source, where)
    code = {"code_revision": kwargs.pop("code_revision", None)}
    code["trust_remote_code"] = kwargs.get("trust_remote_code")
    config: PreTrainedConfig = AutoConfig.from_pretrained(source, **where, **code)
    own_code = {name for name in getattr(config, "auto_map", None) or {} if name != "AutoConfig"}
    if code["trust_remote_code"] and own_code and not isinstance(config, DecoderConfig):
        raise ValueError(
            f"{source} brings code of its own for {min(own_code)}, which a decoder of ours would "
            "not run; leave trust_remote_code out if it computes what a LLaMA does"
        )
    return config


def _refuse_gguf(cls: type[PreTrainedModel], kwargs: dict[str, Any]) -> None:
    if kwargs.get("gguf_file") is not None:
        raise ValueError(
            f"{cls.__name__} loads no GGUF file; load it with transformers' LlamaForCausalLM and "
            f"give that model to {cls.__name__}.from_llama"
        )


def _at_revision(config: Any, saved: Mapping[str, Any]) -> Any:
    """Return the caller's config, of the commit that its weights are to come from.

    Older versions of transformers read them at the config's commit, whatever ``revision`` says.
    """
    commit = saved.get("_commit_hash")
    if commit is None or getattr(config, "_commit_hash", None) in (None, commit):
        return config
    config = copy.deepcopy(config)
    config._commit_hash = commit
    return config


class _Adapter(NamedTuple):
    """A PEFT adapter, the model it is to be put on, and the arguments that find each."""

    base: str | os.PathLike[str]
    source: str | os.PathLike[str]
    base_where: dict[str, Any]
    where: dict[str, Any]


def _take_adapter(source: str | os.PathLike[str], kwargs: dict[str, Any]) -> _Adapter | None:
    """Return the adapter that is to be loaded, if one is; its arguments leave ``kwargs``.

    An Auto class has read the adapter's config already and names the model as ``source``.
    """
    options = dict(kwargs.pop("adapter_kwargs", None) or {})
    named = options.pop("_adapter_model_path", None)
    where = whereabouts(kwargs)
    anywhere = {name: where[name] for name in where.keys() - {"revision", "subfolder"}}
    if named is not None and str(named) != str(source):
        return _Adapter(source, named, where, {**anywhere, **options})
    adapter = adapter_config(source, {**where, **options})
    if adapter is None:
        return None
    if adapter.get("revision"):
        anywhere["revision"] = adapter["revision"]
    source, where = inner(source, {**where, **options})
    return _Adapter(adapter["base_model_name_or_path"], source, anywhere, where)


def _load_with_adapter(
    cls: type[PreTrainedDecoder], adapter: _Adapter, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Load the model an adapter names, check it as any other, and put the adapter on it."""
    wants_info = kwargs.pop("output_loading_info", False)
    name = kwargs.pop("adapter_name", "default")
    others = {key: kwargs[key] for key in kwargs.keys() - whereabouts(kwargs).keys()}
    model = cls.from_pretrained(adapter.base, *args, **others, **adapter.base_where)
    info = model.load_adapter(
        str(adapter.source), adapter_name=name, adapter_kwargs=adapter.where, dtype=model.dtype
    ).to_dict()
    if info["missing_keys"]:
        raise ValueError(
            f"{adapter.source} lacks {len(info['missing_keys'])} weights of its own adapter, such "
            f"as {min(info['missing_keys'])}"
        )
    if info["unexpected_keys"]:
        raise ValueError(
            f"{adapter.source} has {len(info['unexpected_keys'])} weights that its own config and "
            f"model have no place for, such as {min(info['unexpected_keys'])}; is it of another "
            "model?"
        )
    return (model, info) if wants_info else model


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Keep back transformers' table of missing weights, where we check them ourselves."""
    reporter = logging.getLogger("transformers.modeling_utils")

    def no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    reporter.addFilter(no_report)
    try:
        yield
    finally:
        reporter.removeFilter(no_report)
