"""Parameter groups, their optimiser, and the learning rate of each, step by step.

Weight matrices decay; norms, biases and embeddings do not; what a variant overrides (its data:
``Variant.overrides``) has its own rate and decay. Every group's rate rises from zero, then falls to
one absolute floor, the same for all.

It does not know: the trainer, any particular variant.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from layermem.config import Optim
from layermem.models.seams import ParameterOverride


def parameter_groups(
    model: nn.Module, overrides: Sequence[ParameterOverride], optim: Optim
) -> list[dict[str, Any]]:
    """Split the trainable parameters; each group has ``name``, ``lr`` and ``weight_decay``."""
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        key, lr, decay = "decayed", optim.lr, optim.weight_decay
        found = next((o for o in overrides if re.search(o.pattern, name)), None)
        if found:
            key = found.pattern
            # Zero is a rate, and freezes what it is given to.
            lr = next(r for r in (optim.router_lr, found.lr, optim.lr) if r is not None)
            decay = decay if found.weight_decay is None else found.weight_decay
        elif parameter.ndim < 2 or id(parameter) in embeddings:
            key, decay = "plain", 0.0
        group = groups.setdefault(key, {"name": key, "params": [], "lr": lr, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def adamw(
    model: nn.Module,
    overrides: Sequence[ParameterOverride],
    optim: Optim,
    device: torch.device,
) -> AdamW:
    """Return the optimiser of all groups; on CUDA a step is one kernel a group (fused)."""
    optimizer = AdamW(
        parameter_groups(model, overrides, optim),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        # On a CPU a fused step rounds otherwise, and curves recorded there would not be met again.
        fused=True if device.type == "cuda" else None,
    )
    optimizer.register_load_state_dict_pre_hook(_carried_out_as_here)
    return optimizer


def _carried_out_as_here(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Take everything from a checkpoint but how a step is carried out: that is this machine's."""
    groups = [
        {**saved, "fused": own["fused"]}
        for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**state, "param_groups": groups}


def schedule(optimizer: Optimizer, optim: Optim, max_steps: int) -> LambdaLR:
    """Return the schedule of every group, scaled to ``max_steps``."""
    return LambdaLR(
        optimizer, [_factor(group["lr"], optim, max_steps) for group in optimizer.param_groups]
    )


def _factor(peak: float, optim: Optim, max_steps: int) -> Callable[[int], float]:
    warmup = min(optim.warmup_steps, max_steps // 10)
    # A group whose peak is below the floor stays where it is.
    floor = min(1.0, optim.min_lr / peak) if peak else 1.0

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        # The last step that is taken has the floor.
        progress = min(1.0, (step - warmup) / max(1, max_steps - 1 - warmup))
        match optim.schedule:
            case "cosine":
                return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
            case "linear":
                return 1 - (1 - floor) * progress
            case _:
                return 1.0

    return factor
