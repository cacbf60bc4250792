"""The decoder as a citizen of transformers: what it supports, how it loads, what it refuses.

It does not know: the forward.
"""

import copy
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

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
# What from_llama takes: our plain decoder is a LLaMA.
LLAMAS = ("llama", "layermem_plain")
# Where a variant's own parameters live: the two seams.
_OWN = re.compile(r"\.memory\.|_connection\.|(^|\.)stream\.")


class PreTrainedDecoder(PreTrainedModel):
    """Base of every model class of every variant."""

    config: DecoderConfig
    variant: ClassVar[type[Variant]] = Variant
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
        wants_info = kwargs.pop("output_loading_info", False)
        # A state dict in hand, or none at all, is a caller who knows what is missing.
        source = None if "state_dict" in kwargs else pretrained_model_name_or_path
        if source is not None:
            _check_source(cls, source, kwargs)
        model, info = super().from_pretrained(
            pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
        )
        if source is not None:
            _check_complete(model, info, str(source))
        return (model, info) if wants_info else model

    @classmethod
    def from_llama(cls, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Self:
        """Take over the weights of a Hugging Face LLaMA, as a path, a hub name or a model.

        The result computes what the LLaMA computes: what the variant adds starts at zero effect
        (for LIMe, ``router_init="identity"``). Keyword arguments that are fields of the config go
        there (``router="last", router_window=4``), the others to ``from_pretrained``.
        """
        names = {"num_labels", *(field.name for field in dataclass_fields(cls.config_class))}
        own = {name: kwargs.pop(name) for name in sorted(names & kwargs.keys() - {"dtype"})}
        own = {**(cls.variant.plain_fields or {}), **own}
        check_dtype(kwargs.get("dtype"))
        if isinstance(source, PreTrainedModel):
            llama, name, place = source.config, type(source).__name__, None
            # Copies: the new model must not write through to the one it came from.
            kwargs["state_dict"] = {key: t.clone() for key, t in source.state_dict().items()}
            kwargs.setdefault("dtype", source.dtype)
        else:
            _check_path(source)
            llama, name, place = AutoConfig.from_pretrained(source), str(source), source
            kwargs.setdefault("dtype", "auto")

        config = _adopt(cls, llama, own)
        with _without_load_report():
            model, info = super().from_pretrained(
                place, config=config, **{**kwargs, "output_loading_info": True}
            )
        _check_complete(model, info, name, but_own=True)
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
            f"from_llama takes a LLaMA checkpoint, got one of model_type {llama.model_type!r}"
        )
    values = llama.to_dict()
    dropped = _OWN_TO_THE_FILE + (("id2label", "label2id") if "num_labels" in own else ())
    for name in dropped:
        values.pop(name, None)
    return cls.config_class(**{**values, **own})


def _check_path(source: str | os.PathLike[str]) -> None:
    """Raise early where a path was meant; a hub name is left to transformers."""
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise OSError(f"{path} is not a checkpoint: it holds no config.json")
    elif path.exists():
        raise OSError(f"{path} is a file; a checkpoint is a folder with a config.json")
    elif path.is_absolute() or str(source).startswith((".", "~")) or len(path.parts) > 2:
        raise OSError(f"{path} does not exist; give a checkpoint's folder or a hub name")


def _check_source(
    cls: type[PreTrainedDecoder], source: str | os.PathLike[str], kwargs: Mapping[str, Any]
) -> None:
    """Raise before loading where the caller's config or fields contradict the checkpoint's."""
    _check_path(source)
    check_dtype(kwargs.get("dtype", kwargs.get("torch_dtype")))
    config = kwargs.get("config")
    given = config.to_dict() if isinstance(config, DecoderConfig) else kwargs
    given = {name: given[name] for name in cls.config_class.shape_fields if name in given}
    if not given or kwargs.get("ignore_mismatched_sizes"):
        return
    saved = cls.config_class.from_dict(PreTrainedConfig.get_config_dict(source)[0])
    for name, value in given.items():
        if value != getattr(saved, name):
            raise ValueError(
                f"{source} was saved with {name}={getattr(saved, name)}, got {name}={value}; "
                "its weights fit no other: leave it out"
            )


def _check_complete(
    model: PreTrainedModel, info: Mapping[str, Any], source: str, *, but_own: bool = False
) -> None:
    """Raise if part of the decoder was not in the checkpoint, or part of it found no place.

    ``but_own``: what the variant adds to the plain decoder may be missing. Heads may always be.
    """
    name = type(model).__name__
    mismatched = {key[0] for key in info["mismatched_keys"]}
    missing = {key for key in info["missing_keys"] if _in_decoder(model, key)} - mismatched
    stray = {key for key in info["unexpected_keys"] if "layers." in key}
    # Old LLaMA checkpoints hold a buffer that follows from the config.
    stray = {key for key in stray if "rotary_emb." not in key}
    own = {key for key in missing if _OWN.search(key)}

    _check_depth(model.config.num_hidden_layers, missing - own, stray, source)
    if own and not but_own:
        raise ValueError(
            f"{source} has no weights for {len(own)} parameters that {name} adds to a LLaMA, such "
            f"as {min(own)}; to add them to a LLaMA checkpoint use {name}.from_llama"
        )
    if missing - own:
        raise ValueError(f"{source} lacks {len(missing - own)} weights, such as {min(missing)}")
    if stray:
        raise ValueError(
            f"{source} has {len(stray)} weights that {name} has no place for, such as "
            f"{min(stray)}; load it with the class that saved it"
        )


def _check_depth(depth: int, missing: set[str], stray: set[str], source: str) -> None:
    """Raise if there are layers beyond the config's, or the last ones are missing."""
    beyond = {i for key in stray if (i := _layer_of(key)) is not None and i >= depth}
    absent = {
        i
        for key in missing
        if key.endswith(".input_layernorm.weight") and (i := _layer_of(key)) is not None
    }
    first = min(absent, default=depth)
    cut_short = 0 < first < depth and absent == set(range(first, depth))
    found = max(beyond) + 1 if beyond else first if cut_short else None
    if found is not None:
        raise ValueError(f"{source} holds {found} layers, its config num_hidden_layers={depth}")


def _layer_of(key: str) -> int | None:
    found = re.search(r"layers\.(\d+)\.", key)
    return int(found[1]) if found else None


def _in_decoder(model: PreTrainedModel, key: str) -> bool:
    return model.base_model is model or key.startswith(f"{model.base_model_prefix}.")


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
