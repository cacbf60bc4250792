"""LoRA on the projections to keys and values: the control without memory.

PEFT's layers are put into the model in place, so that it stays a model of transformers whose
checkpoints hold all of its weights; at the end they are merged into it.

It does not know: runs, memory.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

from torch import nn


def check_peft() -> None:
    """Raise if PEFT is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError(
            "host.train=lora needs PEFT, which is not installed: pip install peft, or choose "
            "train=routers or all"
        )


def add_lora(model: nn.Module, projections: Sequence[str], parameters: int) -> int:
    """Put LoRA on modules and let nothing else train; return its rank.

    ``projections``: names of modules. The rank is the smallest with at least ``parameters``.
    """
    check_peft()
    from peft import LoraConfig, inject_adapter_in_model

    per_rank = sum(sum(_weight(model, name).shape) for name in projections)
    rank = -(-parameters // per_rank)
    is_conv1d = {type(model.get_submodule(name)).__name__ == "Conv1D" for name in projections}
    config = LoraConfig(
        r=rank,
        # The scale is 1 whatever the rank is.
        lora_alpha=rank,
        lora_dropout=0.0,
        target_modules=list(projections),
        fan_in_fan_out=True in is_conv1d,
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    inject_adapter_in_model(config, model)
    return rank


def merge_lora(model: nn.Module) -> None:
    """Merge LoRA into the weights that it is on, and remove it; nothing happens without it."""
    if not _lora_layers(model):
        return
    for name, layer in _lora_layers(model):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _lora_layers(model: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__module__.startswith("peft.tuners.lora")
        and isinstance(getattr(module, "base_layer", None), nn.Module)
    ]


def _weight(model: nn.Module, name: str) -> Any:
    return model.get_submodule(name).weight
