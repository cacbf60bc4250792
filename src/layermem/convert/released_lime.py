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
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig

from layermem.models.pretrained import config_from_llama, naming_source
from layermem.variants.lime import LimeForCausalLM

_KEY_VALUE = "kv_proj_weight"
_ROUTER = "lime_router.static_weights"
_PREFIXES = re.compile(r"^((_orig_mod|module)\.)+")
_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)


def find_released_lime(folder: Path) -> Path | None:
    """Return the file of weights, or their index, of the released code in a folder or its
    ``final``."""
    paths = (folder / inner / name for inner in (".", "final") for name in _FILES)
    path = next((path for path in paths if path.is_file()), None)
    if path is None or not any(name.endswith(_KEY_VALUE) for name in _read(path, False)):
        return None
    return path


def load_released_lime(path: Path) -> LimeForCausalLM:
    """Return the model of a file of weights, which computes what the released code computes."""
    config = _read_config(path.parent)
    weights = {_PREFIXES.sub("", name): tensor for name, tensor in _read(path).items()}
    state = {name: tensor for name, tensor in weights.items() if "rotary_emb." not in name}
    heads, width = int(config.num_key_value_heads or 0), int(config.head_dim or 0)
    try:
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}.self_attn."
            # [2, E, G, D] to [2, G E, D].
            joint = state.pop(at + _KEY_VALUE).unflatten(0, (2, width, heads))
            key, value = joint.transpose(1, 2).flatten(1, 2)
            state |= {f"{at}k_proj.weight": key, f"{at}v_proj.weight": value}
            if layer:
                state[f"{at}memory.weight"] = state.pop(at + _ROUTER)
        if config.tie_word_embeddings:
            # Saved once, under either name.
            tied = ("model.embed_tokens.weight", "lm_head.weight")
            state |= dict.fromkeys(tied, state[tied[tied[0] not in state]])
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in state.values()))
        model: Any
        model, info = LimeForCausalLM.from_pretrained(
            None,
            config=config_from_llama(LimeForCausalLM, config, {}),
            state_dict=state,
            dtype=dtype,
            output_loading_info=True,
        )
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit its config.json: {error}") from error
    if lost := sorted({*info["missing_keys"], *info["unexpected_keys"]}):
        raise ValueError(f"{path} does not fit its config.json: {', '.join(lost[:3])}")
    return model


def _read_config(folder: Path) -> LlamaConfig:
    places = (folder / "config.json", folder / "config/config.json")
    paths = [path for path in (*places, folder.parent / "config/config.json") if path.is_file()]
    if not paths:
        raise FileNotFoundError(
            f"{folder} has no config.json; LIMe's code saves it as config/config.json beside the "
            "folder of the weights: copy it to them"
        )
    config = LlamaConfig.from_json_file(paths[0])
    # What LIMe's code does not compute.
    if config.model_type != "llama" or config.attention_bias:
        raise ValueError(f"{paths[0]} should be the config of a LLaMA without attention_bias")
    return config


def _read(path: Path, with_tensors: bool = True) -> dict[str, Any]:
    """Return the weights of a file, or of all files of an index, by name; or the names alone."""
    if path.suffix == ".json":
        names = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        if not with_tensors:
            return dict(names)
        # Of its own folder alone: another one is no name.
        files = [path.with_name(name) for name in sorted(set(names.values()))]
        return {name: tensor for file in files for name, tensor in _read(file).items()}
    with naming_source(path):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                return {n: file.get_tensor(n) if with_tensors else None for n in names}
        # Tensors alone; nothing else in the file is run.
        state: dict[str, Tensor] = torch.load(
            path, map_location="cpu", weights_only=True, mmap=True
        )
    return state
