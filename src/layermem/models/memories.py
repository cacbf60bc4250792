"""Which memory each layer of a model calls, also where PEFT keeps several of one layer.

With ``modules_to_save=["memory"]`` PEFT keeps the original beside a copy for every adapter, and
calls one of them. Whoever looks at a model's memories wants that one.

It does not know: any particular variant, decoders, training.
"""

import sys
from typing import Any

from torch import nn

from layermem.models.seams import Memory, WeightsUnknown


def memories(model: nn.Module) -> list[Memory]:
    """Return the memories that a forward of ``model`` calls now, one a layer, in their order."""
    return [memory for memory, _ in _walk(model)]


def plain_memories(model: nn.Module) -> list[Memory]:
    """As ``memories``; raise if the weights in one of them are not those that its forward uses."""
    pairs = _walk(model)
    for memory, wrapper in pairs:
        if wrapper is not None:
            raise WeightsUnknown(
                f"an adapter ({type(wrapper).__name__} of PEFT) changes the weights of a "
                f"{type(memory).__name__} as it is called; merge it into the model first "
                '(merge_and_unload), or train memories whole (modules_to_save=["memory"])'
            )
    return [memory for memory, _ in pairs]


def _walk(model: nn.Module) -> list[tuple[Memory, nn.Module | None]]:
    """Return each memory that is called, and what changes its weights in the call, if anything."""
    called: list[tuple[Memory, nn.Module | None]] = []
    seen: set[int] = set()
    waiting: list[tuple[nn.Module, nn.Module | None]] = [(model, None)]
    while waiting:
        module, wrapper = waiting.pop()
        module = _copy_in_use(module)
        if id(module) in seen:
            continue
        seen.add(id(module))
        if isinstance(module, Memory):
            called.append((module, wrapper))
            continue
        changing = module if _changes_weights(module) else None
        waiting.extend((child, changing) for child in reversed(list(module.children())))
    return called


def _copy_in_use(module: nn.Module) -> nn.Module:
    """Return the copy that PEFT's wrapper hands its calls to; any other module is its own."""
    peft = _peft()
    if peft is None or not isinstance(module, peft.utils.ModulesToSaveWrapper):
        return module
    wrapper: Any = module
    adapters, copies = wrapper.active_adapters, wrapper.modules_to_save
    if wrapper.disable_adapters or not adapters or any(name not in copies for name in adapters):
        return wrapper.original_module
    return copies[adapters[0]]


def _changes_weights(module: nn.Module) -> bool:
    """Whether this is an adapter that computes with other weights than its module holds."""
    peft = _peft()
    if peft is None or not isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer):
        return False
    adapter: Any = module
    # Unmerged it adds its own; merged and switched off it will take them out.
    return bool(adapter.merged == adapter.disable_adapters)


def _peft() -> Any:
    """Return PEFT if somebody has imported it, as whoever wraps a module has."""
    return sys.modules.get("peft")
