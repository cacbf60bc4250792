"""The memories that a forward calls, and whether their layers share a buffer.

With ``modules_to_save=["memory"]`` PEFT keeps the original of each memory and a copy for each
adapter, and calls one of them. Analysis, metrics and pruning must read that one.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from layermem.models.seams import (
    Memory,
    OwnLayerMemory,
    Part,
    WeightsUnknown,
    weights_of_part,
)
from layermem.ops.shared_buffer import Shared, begin


def begin_routes(
    memories: Mapping[int, nn.Module | None],
    like: Tensor,
    part: Part | None = None,
    *,
    may_end_early: bool = True,
) -> Shared | None:
    """Return what the layers of a forward, native or attached, share a buffer by, or None.

    ``memories`` are those of the layers that have slots, by layer. Layers share a buffer if every
    memory but the first layer's is a route, and if nothing else runs when a memory is called;
    ``shared_buffer.begin`` then decides by the weights and by ``like``, a tensor of the forward.
    ``part``: as in ``weights_of_part``.
    """
    routers: dict[int, tuple[Tensor, ...] | None] = {}
    sources: dict[int, tuple[int, ...]] = {}
    for layer, memory in memories.items():
        if memory is not None and has_company(memory):
            return None
        route = memory.as_route() if isinstance(memory, Memory) else None
        if route is not None:
            sources[layer], routers[layer] = route[0], weights_of_part(route[1], part)
        elif layer == 0 and (memory is None or type(memory) is OwnLayerMemory):
            sources[layer], routers[layer] = (0,), None
        else:
            return None
    return begin(routers, sources, like, may_end_early=may_end_early)


def runs_twice(layer: nn.Module) -> bool:
    """Whether activation checkpointing runs a layer again in the backward."""
    return bool(getattr(layer, "gradient_checkpointing", False)) and layer.training


def recompute_layers(model: Any, every: int = 1) -> None:
    """Switch activation checkpointing on for one layer of each ``every``, from the first on."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0


def is_replaced(*modules: nn.Module) -> bool:
    """Whether the forward of one of these very modules was replaced, as accelerate does."""
    return any("forward" in vars(module) for module in modules)


def are_looked_at(config: Any, modules: Iterable[nn.Module], kwargs: Mapping[str, Any]) -> bool:
    """Return whether somebody gets what single layers return: by a hook, or as a model's output."""
    return any(
        kwargs.get(name) or getattr(config, name, False)
        for name in ("output_hidden_states", "output_attentions")
    ) or any(
        part._forward_hooks or part._forward_pre_hooks
        for module in modules
        for part in module.modules()
    )


def has_company(memory: nn.Module) -> bool:
    """Whether other code than its own runs when a memory is called, and may change what it does.

    A hook before it may change its weights or slots. A hook after it may follow the gradients of
    slots; without gradients it only reads.
    """
    hooks = memory._forward_hooks or memory._backward_hooks or memory._backward_pre_hooks
    return bool(
        is_replaced(memory) or memory._forward_pre_hooks or (hooks and torch.is_grad_enabled())
    )


def active_memories(model: nn.Module) -> list[Memory]:
    """Return the memories that a forward of ``model`` calls now, one for each layer, in order."""
    return [memory for memory, _ in _find_active(model)]


def unadapted_memories(model: nn.Module) -> list[Memory]:
    """Return ``active_memories``; raise ``WeightsUnknown`` if an adapter changes their weights."""
    pairs = _find_active(model)
    for memory, wrapper in pairs:
        if wrapper is not None:
            raise WeightsUnknown(
                f"an adapter ({type(wrapper).__name__} of PEFT) changes the weights of a "
                f"{type(memory).__name__} when it is called; merge it into the model first "
                '(merge_and_unload), or train whole memories (modules_to_save=["memory"])'
            )
    return [memory for memory, _ in pairs]


def _find_active(model: nn.Module) -> list[tuple[Memory, nn.Module | None]]:
    """Return each memory that is called, and the adapter that changes its weights, if any."""
    active: list[tuple[Memory, nn.Module | None]] = []
    seen: set[int] = set()
    waiting: list[tuple[nn.Module, nn.Module | None]] = [(model, None)]
    while waiting:
        module, wrapper = waiting.pop()
        module = _resolve_wrapper(module)
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, Memory):
            active.append((module, wrapper))
            continue
        adapter = module if _changes_weights(module) else None
        waiting.extend((child, adapter) for child in reversed(list(module.children())))
    return active


def _resolve_wrapper(module: nn.Module) -> nn.Module:
    """Return the copy that PEFT's ``ModulesToSaveWrapper`` calls; any other module as it is."""
    peft = _imported_peft()
    if peft is None or not isinstance(module, peft.utils.ModulesToSaveWrapper):
        return module
    wrapper: Any = module
    adapters, copies = wrapper.active_adapters, wrapper.modules_to_save
    if wrapper.disable_adapters or not adapters or any(name not in copies for name in adapters):
        return wrapper.original_module
    return copies[adapters[0]]


def _changes_weights(module: nn.Module) -> bool:
    """Whether this is an adapter whose module computes with other weights than it holds."""
    peft = _imported_peft()
    if peft is None or not isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer):
        return False
    adapter: Any = module
    # Not merged, it adds its weights in the call; merged and disabled, it subtracts them.
    return bool(adapter.merged == adapter.disable_adapters)


def _imported_peft() -> Any:
    """Return PEFT if it has been imported (a wrapped module implies that it has), else None."""
    return sys.modules.get("peft")
