"""Parameter groups, the AdamW optimizer over them, and the learning rate of each group at a step.

Weight matrices have weight decay; norms, biases and embeddings have none. A variant's own
parameters (``Variant.overrides``) may have settings of their own. The learning rate of each group
rises from zero and then falls to ``optim.min_lr``, the same for all groups.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.lime_router import LimeRouter
from layermem.models.seams import ParameterOverride
from layermem_bench.config.run import Optim

# Names of the groups that every model has; a group of overridden parameters has its override's.
DECAYED, PLAIN = "decayed", "plain"
NO_DECAY = " (no decay)"
# All that differs in training a model of transformers with attached memory.
_ATTACHED = (ParameterOverride(module=LimeRouter, lr=5e-3, weight_decay=0.0),)


def is_ours(model: nn.Module) -> bool:
    """Return whether a model is a decoder of this library, and not one of transformers."""
    return isinstance(model, DecoderForCausalLM)


def overrides_of(model: Any) -> Sequence[ParameterOverride]:
    """Return the optimizer settings of a variant's own parameters, or of attached routers."""
    return tuple(model.variant.overrides if is_ours(model) else _ATTACHED)


def parameter_groups(
    model: nn.Module, overrides: Sequence[ParameterOverride], optim: Optim
) -> list[dict[str, Any]]:
    """Split the trainable parameters into groups with ``name``, ``lr`` and ``weight_decay``;
    ``optim.router_lr`` is for parameters with ``overrides`` alone."""
    override_of = find_overridden(model, overrides)
    if optim.router_lr is not None and not override_of:
        raise ValueError(
            f"optim.router_lr={optim.router_lr:g} has no effect: {type(model).__name__} trains no "
            "parameters that a variant adds; leave it out"
        )
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    groups: dict[str, dict[str, Any]] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        key, lr, decay = DECAYED, optim.lr, optim.weight_decay
        if parameter.ndim < 2 or id(parameter) in embeddings:
            key, decay = PLAIN, 0.0
        if override := override_of.get(id(parameter)):
            # Compared with None, since a learning rate of zero is valid: it freezes the group.
            lr = next(rate for rate in (optim.router_lr, override.lr, optim.lr) if rate is not None)
            decay = decay if override.weight_decay is None else override.weight_decay
            # The matrices and the vectors of one override may have different decays.
            key = override.name if decay else f"{override.name}{NO_DECAY}"
        group = groups.setdefault(key, {"name": key, "params": [], "lr": lr, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def find_overridden(
    model: nn.Module, overrides: Sequence[ParameterOverride]
) -> dict[int, ParameterOverride]:
    """Return the first override of each trained parameter that has one, by the parameter's id."""
    return {
        id(parameter): override
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        for override in reversed(overrides)
        if parameter.requires_grad and override.applies_to(module, name)
    }


def build_optimizer(
    model: nn.Module,
    overrides: Sequence[ParameterOverride],
    optim: Optim,
    device: torch.device,
) -> AdamW:
    """Return AdamW over all groups; on CUDA its step is one kernel for each group."""
    optimizer = AdamW(
        parameter_groups(model, overrides, optim),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        # On a CPU a fused step rounds differently, and would not repeat recorded learning curves.
        fused=True if device.type == "cuda" else None,
    )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


def set_learning_rates(optimizer: Optimizer, optim: Optim, max_steps: int, step: int) -> None:
    """Set the learning rate of every group for a step, the first being 0."""
    for group in optimizer.param_groups:
        peak = group["initial_lr"]
        group["lr"] = peak * _share_of_peak(peak, optim, max_steps, step)


def _share_of_peak(peak: float, optim: Optim, max_steps: int, step: int) -> float:
    warmup = min(optim.warmup_steps, max_steps // 10)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    # A group whose peak is below the floor keeps its peak.
    floor = min(1.0, optim.min_lr / peak) if peak else 1.0
    # The last step of the run uses the floor.
    progress = min(1.0, (step - warmup) / max(1, max_steps - 1 - warmup))
    match optim.schedule:
        case "cosine":
            return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            return 1 - (1 - floor) * progress
        case _:
            return 1.0
