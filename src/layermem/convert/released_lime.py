"""Checkpoints of LIMe's released code as models of ours.

    config/config.json           a LLaMA's config; or config.json beside the weights
    final/model.safetensors      the weights; or pytorch_model.bin, or parts with an index

Two kinds of weights differ from ours (E head width, G key-value heads, D width, l layer):

    self_attn.kv_proj_weight [2 E G, D]      keys and values in one, heads interleaved: row
                                             f G + g is feature f of head g, the key's first
    self_attn.lime_router.static_weights     the router [G, (l + 1) G], own layer last, as ours

Names may begin with the prefixes of ``torch.compile`` and of DDP.
"""

import json
import re
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from layermem.models.checkpoints import naming_source
from layermem.variants.lime import LimeForCausalLM

_KEY_VALUE = "self_attn.kv_proj_weight"
_ROUTER = "self_attn.lime_router.static_weights"
_PREFIXES = re.compile(r"^((_orig_mod|module)\.)+")
_FOLDERS = (".", "final")
_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
# What names of weights say about checkpoints of that code that are no LIMe of the paper.
_OTHERS = {
    "lime_kv_proj": "of the earlier LIMe, which mixes hidden states (here the variant lime_hidden)",
    "attention_router.": "of the earlier LIMe, which mixes hidden states (here lime_hidden)",
    "static_alpha": "of its Hyper-Connections",
    "dynamic_alpha": "of its Hyper-Connections",
}


def find_weights(folder: Path) -> Path | None:
    """Return the file of weights, or their index, in a folder or in its folder ``final``."""
    paths = (folder / inner / name for inner in _FOLDERS for name in _FILES)
    return next((path for path in paths if path.is_file()), None)


def is_released_lime(folder: Path) -> bool:
    """Return whether a folder holds a checkpoint of the released code, of this or another model."""
    path = find_weights(folder)
    if path is None:
        return False
    names = _weight_names(path)
    return any(mark in name for name in names for mark in (_KEY_VALUE, *_OTHERS))


def load_released_lime(folder: Path) -> LimeForCausalLM:
    """Return the model of a folder, which computes what the released code computes."""
    path = find_weights(folder)
    if path is None:
        raise FileNotFoundError(f"{folder} holds no weights ({', '.join(_FILES)})")
    config = _read_config(folder)
    state = {_PREFIXES.sub("", name): tensor for name, tensor in _read_weights(path).items()}
    _refuse_others(path, state)
    routers = {
        layer: _take(state, f"model.layers.{layer}.{_ROUTER}", path)
        for layer in range(1, config.num_hidden_layers)
    }
    for layer in range(config.num_hidden_layers):
        _split_key_value(state, layer, config, path)
    model = LimeForCausalLM.from_llama(_as_llama(config, state, path))
    with torch.no_grad():
        for layer, weight in routers.items():
            own: Any = model.get_parameter(f"model.layers.{layer}.self_attn.memory.weight")
            if weight.shape != own.shape:
                raise ValueError(
                    f"{path}: the router of layer {layer} has shape {list(weight.shape)}, expected "
                    f"{list(own.shape)} for {config.num_key_value_heads} key-value heads"
                )
            own.copy_(weight)
    return model


def _read_config(folder: Path) -> LlamaConfig:
    candidates = (
        *(folder / "config.json", folder / "config" / "config.json"),
        folder.parent / "config" / "config.json",
    )
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no config.json; LIMe's code saves it as config/config.json beside the "
            "folder of the weights: copy it to them"
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    if values.get("model_type") != "llama":
        raise ValueError(
            f"{path} should be a LLaMA's config, and has model_type {values.get('model_type')!r}"
        )
    if values.get("attention_bias"):
        raise ValueError(f"{path} has attention_bias=true, which LIMe's code does not compute")
    return LlamaConfig.from_dict(values)


def _weight_names(path: Path) -> list[str]:
    """Return the names of the weights in a file, or of those that an index lists."""
    if path.suffix == ".json":
        return list(_index(path))
    if path.suffix == ".safetensors":
        with naming_source(path), safe_open(path, framework="pt") as file:
            return list(file.keys())
    return list(_load_pickled(path))


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of a file, or of all files of an index."""
    if path.suffix != ".json":
        return _read_file(path)
    index = _index(path)
    parts: dict[str, Tensor] = {}
    for name in sorted(set(index.values())):
        parts.update(_read_file(path.parent / name))
    if missing := sorted(index.keys() - parts.keys()):
        raise ValueError(f"{path} lists {missing[0]}, and {index[missing[0]]} does not have it")
    return parts


def _index(path: Path) -> dict[str, str]:
    files: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    for name in files.values():
        if Path(name).name != name:
            raise ValueError(f"{path} names the file {name!r}, which is not in its folder")
    return files


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return _load_pickled(path)
    with naming_source(path), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no dict)


def _load_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of ``torch.save``; nothing else in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        unsupported = re.search(r"Unsupported .{,120}", str(error))
        reason = unsupported[0] if unsupported else type(error).__name__
        raise ValueError(
            f"{path} cannot be read as tensors alone ({reason}); if you trust it, save its weights "
            "as model.safetensors"
        ) from error
    if not isinstance(content, Mapping) or not all(map(torch.is_tensor, content.values())):
        raise ValueError(f"{path} should hold tensors by name; save the state_dict of the model")
    return dict(content)


def _refuse_others(path: Path, state: Mapping[str, Tensor]) -> None:
    for mark, what in _OTHERS.items():
        if name := next((name for name in state if mark in name), None):
            raise ValueError(
                f"{path} has weights {what}, such as {name}; convert takes checkpoints of the "
                f"paper's LIMe, with {_KEY_VALUE}"
            )


def _take(state: dict[str, Tensor], name: str, path: Path) -> Tensor:
    if name not in state:
        raise ValueError(
            f"{path} has no {name}: it has fewer layers than its config.json says, or is damaged"
        )
    return state.pop(name)


def _split_key_value(state: dict[str, Tensor], layer: int, config: LlamaConfig, path: Path) -> None:
    """Replace a layer's joint projection by one of keys and one of values, whole heads each."""
    prefix = f"model.layers.{layer}."
    joint = _take(state, prefix + _KEY_VALUE, path)
    heads, width = int(config.num_key_value_heads), config.head_dim
    expected = [2 * width * heads, config.hidden_size]
    if list(joint.shape) != expected:
        raise ValueError(
            f"{path}: {prefix}{_KEY_VALUE} has shape {list(joint.shape)}, expected {expected} for "
            f"{heads} key-value heads of width {width}"
        )
    # [2, E, G, D] to [2, G E, D].
    split = joint.unflatten(0, (2, width, heads)).transpose(1, 2).flatten(1, 2)
    for name, weight in zip(("k_proj", "v_proj"), split, strict=True):
        state[f"{prefix}self_attn.{name}.weight"] = weight.contiguous()


def _as_llama(config: LlamaConfig, state: dict[str, Tensor], path: Path) -> LlamaForCausalLM:
    """Return a LLaMA with the weights; raise if one is missing, unknown or of another shape."""
    tie = "lm_head.weight", "model.embed_tokens.weight"
    if config.tie_word_embeddings:
        present = [name for name in tie if name in state]
        if len(present) == 2 and not torch.equal(state[tie[0]], state[tie[1]]):
            raise ValueError(
                f"{path}: head and embedding differ, and the config says tie_word_embeddings=true"
            )
        # Saved once, under either name.
        state.update({name: state[present[0]] for name in tie if present})
    extra = {name: tensor for name, tensor in state.items() if "rotary_emb." not in name}
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in extra.values()))
    model: Any
    model, info = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=extra, dtype=dtype, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            raise ValueError(
                f"{path} does not fit its config.json: {len(names)} {kind.replace('_', ' ')}, such "
                f"as {names[0]}"
            )
    return model
