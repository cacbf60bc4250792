"""What lies in a checkpoint's folder or hub repository, and the checks of it around loading.

It does not know: how weights are loaded.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import find_adapter_config_file, is_peft_available

from layermem.models.configuration import check_dtype

# What from_llama takes: our plain decoder is a LLaMA.
LLAMAS = ("llama", "layermem_plain")
# Arguments that say where a checkpoint's files are. Every file of it is read with the same ones, or
# the config of one revision meets the weights of another.
_WHERE = (
    "revision",
    "subfolder",
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "token",
)
# Where a variant's own parameters live: the two seams.
_OWN = re.compile(r"\.memory\.|_connection\.|(^|\.)stream\.")


def whereabouts(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a loading call that say where the files are."""
    return {name: kwargs[name] for name in _WHERE if kwargs.get(name) is not None}


def inner(source: Any, where: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a local folder with the subfolder in its path; a hub name as it is."""
    rest = {name: where[name] for name in where if name != "subfolder"}
    if not Path(source).is_dir():
        return source, dict(where)
    return Path(source, where.get("subfolder", "")), rest


def check_path(source: str | os.PathLike[str], where: Mapping[str, Any]) -> None:
    """Raise early where a path was meant; a hub name is left to transformers."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"a checkpoint is a folder or a hub name, got a {type(source).__name__}; of a model "
            "with PEFT adapters give merge_and_unload()"
        )
    path = Path(source)
    if path.is_dir():
        folder = path / where.get("subfolder", "")
        if not (folder / "config.json").is_file():
            hint = ", ".join(sorted(p.parent.name for p in folder.glob("*/config.json")))
            more = f'; give subfolder=, one of "{hint}"' if hint else ""
            raise OSError(f"{folder} is not a checkpoint: it holds no config.json{more}")
    elif path.exists():
        raise OSError(f"{path} is a file; a checkpoint is a folder with a config.json")
    elif not _may_be_hub_name(source):
        raise OSError(f"{path} does not exist; give a checkpoint's folder or a hub name")


def _may_be_hub_name(source: str | os.PathLike[str]) -> bool:
    path, text = Path(source), str(source)
    is_path = path.is_absolute() or text.startswith((".", "~")) or len(path.parts) > 2
    return not is_path and not path.exists()


def adapter_config(source: str | os.PathLike[str], where: Mapping[str, Any]) -> Any:
    """Return the config of the PEFT adapter that ``source`` is, None if it is a model."""
    is_local = Path(source).is_dir()
    # Older transformers look for adapters past the subfolder.
    source, where = inner(source, where)
    if not (Path(source).is_dir() if is_local else _may_be_hub_name(source)):
        return None
    path = Path(source, where.get("subfolder", ""))
    if not is_peft_available():
        if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
            raise ImportError(f"{path} is a PEFT adapter, which needs peft: pip install peft")
        return None
    file = find_adapter_config_file(source, **where)
    if file is None:
        return None
    if (path / "config.json").is_file():
        raise ValueError(
            f"{path} holds a model and an adapter of it in one place, where the one cannot be "
            "checked without the other; move adapter_config.json and adapter_model.* into a "
            "folder of their own and load that"
        )
    adapter = json.loads(Path(file).read_text(encoding="utf-8"))
    if not adapter.get("base_model_name_or_path"):
        raise ValueError(
            f"{path} is a PEFT adapter that does not name its model; load the model and give it "
            "to peft.PeftModel.from_pretrained(model, adapter)"
        )
    return adapter


def saved_config(
    cls: type[PreTrainedModel], source: str | os.PathLike[str], where: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the checkpoint's config.json says, if its model is one that ``cls`` can load."""
    values: dict[str, Any] = PreTrainedConfig.get_config_dict(source, **where)[0]
    kind, own = values.get("model_type"), _config_class(cls).model_type
    if kind and kind != own and not kind.startswith("layermem_") and kind not in LLAMAS:
        _refuse(cls, source, values)
    return values


def _refuse(
    cls: type[PreTrainedModel], source: str | os.PathLike[str], values: Mapping[str, Any]
) -> Never:
    """Raise for a model of another family."""
    raise ValueError(
        f"{source} holds a model of model_type {values['model_type']!r} "
        f"({', '.join(values.get('architectures') or ['no architectures'])}); {cls.__name__} "
        f"loads {_config_class(cls).model_type!r}, and from_llama adds to a LLaMA what is its own "
        "and takes no other family: load this one with transformers.AutoModel"
    )


def check_fields(
    cls: type[PreTrainedModel],
    source: str | os.PathLike[str],
    saved_values: Mapping[str, Any],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise where the caller's config or fields contradict the checkpoint's."""
    check_dtype(kwargs.get("dtype", kwargs.get("torch_dtype")))
    config_class, config = _config_class(cls), kwargs.get("config")
    given: dict[str, Any] = {} if isinstance(config, PreTrainedConfig) else dict(kwargs)
    if isinstance(config, (str, os.PathLike)):
        values = PreTrainedConfig.get_config_dict(config, **whereabouts(kwargs))[0]
        config = config_class.from_dict(values)
    # A head that was tied is in no file, one that was not would be kept beside the embedding.
    names = (*config_class.shape_fields, "tie_word_embeddings")
    given = {**{name: getattr(config, name) for name in names if hasattr(config, name)}, **given}
    given = {name: given[name] for name in names if name in given}
    if not given:
        return
    saved = config_class.from_dict(dict(saved_values))
    for name, value in given.items():
        if value != getattr(saved, name):
            raise ValueError(
                f"{source} was saved with {name}={getattr(saved, name)}, got {name}={value}; "
                "its weights fit no other: leave it out"
            )


def check_complete(
    model: PreTrainedModel,
    info: Mapping[str, Any],
    source: str,
    kind: str | None,
    *,
    but_own: bool = False,
) -> None:
    """Raise if part of the decoder was not in the checkpoint, or part of it found no place.

    ``kind`` is the checkpoint's model_type. ``but_own``: what the variant adds to the plain decoder
    may be missing. Heads may always be.
    """
    name = type(model).__name__
    mismatched = {key[0] for key in info["mismatched_keys"]}
    missing = {key for key in info["missing_keys"] if _in_decoder(model, key)} - mismatched
    stray = {key for key in info["unexpected_keys"] if _is_decoders(model, key)}
    own = {key for key in missing if _OWN.search(key)}

    _check_any(model, missing - own, info["unexpected_keys"], source)
    _check_depth(model.config.num_hidden_layers, missing - own, stray, source)
    if missing - own:
        first = min(missing - own)
        raise ValueError(f"{source} lacks {len(missing - own)} weights, such as {first}")
    if own and not but_own:
        mend = (
            f"to add them to a LLaMA checkpoint use {name}.from_llama"
            if kind in LLAMAS
            else f"its config says {kind!r}, so they should be there: save or download it again"
        )
        raise ValueError(
            f"{source} has no weights for {len(own)} parameters that {name} adds to a LLaMA, such "
            f"as {min(own)}; {mend}"
        )
    if stray:
        raise ValueError(
            f"{source} has {len(stray)} weights that {name} has no place for, such as "
            f"{min(stray)}; load it with the class that saved it"
        )


def _check_any(
    model: PreTrainedModel, missing: set[str], unexpected: set[str], source: str
) -> None:
    """Raise if not one weight of the plain decoder was there."""
    ours = {key for key, _ in model.named_parameters() if _in_decoder(model, key)}
    ours = {key for key in ours if not _OWN.search(key)}
    if not ours <= missing:
        return
    theirs = f"such as {', '.join(sorted(unexpected)[:3])}" if unexpected else "none at all"
    raise ValueError(
        f"{source} holds none of the weights of {type(model).__name__}, such as {min(ours)}, but "
        f"{theirs}; if they are the same under other names, say so with key_mapping={{old: new}}"
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


def _config_class(cls: type[PreTrainedModel]) -> Any:
    return cls.config_class


def _layer_of(key: str) -> int | None:
    found = re.search(r"layers\.(\d+)\.", key)
    return int(found[1]) if found else None


def _in_decoder(model: PreTrainedModel, key: str) -> bool:
    return model.base_model is model or key.startswith(f"{model.base_model_prefix}.")


def _is_decoders(model: PreTrainedModel, key: str) -> bool:
    """Whether a key without a place is part of what the checkpoint's model computes.

    Other heads are not, nor is the buffer of old LLaMA checkpoints that follows from the config.
    """
    if "rotary_emb." in key:
        return False
    module = key.rpartition(".")[0]
    known = any(module == name for name, _ in model.named_modules())
    inside = key.startswith(f"{model.base_model_prefix}.")
    return known or inside or "layers." in key or _OWN.search(key) is not None
