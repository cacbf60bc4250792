"""``attach`` and ``detach``: layer memory for a model of transformers, in place.

Keys and values are routed as the projections return them: before any norm per head, before rope and
before the cache. So a norm still gives keys the scale that its queries were trained with, layers
may differ in rope base and attention window, and a cache of any kind holds routed keys.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from layermem.models.lime_router import Grain, LimeRouter
from layermem.retrofit.attached_model import swap_back, swap_classes
from layermem.retrofit.attachment import (
    ATTRIBUTE,
    DEFAULTS,
    MEMORY,
    Attachment,
    attachment_of,
    check_same_memory,
    has_memory,
)
from layermem.retrofit.hosts import Host, find_host, find_module, find_saved, measure
from layermem.retrofit.proof import prove_slices
from layermem.variants.lime import Lime, LimeConfig

# Wrappers, and classes of tensors, of which each process has a part.
_DISTRIBUTED = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DTensor"}
ModelT = TypeVar("ModelT", bound=nn.Module)


def attach(
    model: ModelT,
    router: Literal["full", "last", "first"] = "full",
    window: int | None = None,
    init: Literal["identity", "paper", "value_residual"] = "identity",
    *,
    shares_kv: bool = True,
    grain: Grain = "pair",
    host: Host | None = None,
) -> ModelT:
    """Add layer memory to a model, in place, and return it.

    Every layer but the first gets a router, ``self_attn.memory`` in a LLaMA, whose ``weight`` is
    that of ``LimeRouter``. ``router`` and ``window`` choose the layers that it reads, as
    ``LimeConfig.router`` and ``router_window`` do. With ``shares_kv=False`` keys and values have
    weights of their own (``value_weight``), and ``grain`` says for what a router has a
    number, as ``LimeConfig.router_grain`` does. With ``init="identity"`` the model computes what
    it did: bit for bit in eager float32; the others are for random weights, as pretrained ones then
    compute something else, and "value_residual" is for ``shares_kv=False``. Give the whole model,
    which then saves itself with its memory: a model that holds an attached part does not. ``host``
    says where the parts of an architecture lie that is not in ``layermem.retrofit.HOSTS``.

    Keys and values are routed as the projections return them: before norms of keys, rope and the
    cache. Routers have 32 bits or more on any base, and FSDP wants one dtype for all that trains.
    Attach before wrapping or sharding the model. Random weights train with the recipe by
    ``shares_kv=False``, ``grain="layer"`` and ``init="value_residual"``.
    """
    if host is None:
        owner, found = find_host(model)
    else:
        path, _, name = host.layers.rpartition(".")
        owner, found = find_module(model, path), replace(host, layers=name)
    settings = {"router": router, "window": window, "shares_kv": shares_kv, "grain": grain}
    attachment, routers = _prepare(model, owner, found, settings, init)
    if host is not None and (reason := prove_slices(model, attachment)):
        shape = attachment.shape
        warnings.warn(
            f"the Host for {type(owner).__name__} could not be proved: {reason}; compare its "
            f"{shape.heads} key-value heads of width {shape.head_dim} with the model's code",
            stacklevel=2,
        )
    _install(model, attachment, routers)
    return model


def attach_as_saved(model: nn.Module, memory: Mapping[str, Any]) -> None:
    """Attach memory as it was when ``Attachment.describe`` returned ``memory``.

    Its mapping was proved then, and weights may not be there yet.
    """
    settings = {name: memory.get(name, default) for name, default in DEFAULTS.items()}
    attachment, routers = _prepare(model, *find_saved(model, memory), settings)
    check_same_memory(attachment.describe(), memory)
    _install(model, attachment, routers)


def _prepare(
    model: nn.Module, owner: nn.Module, host: Host, settings: dict[str, Any], init: str = "identity"
) -> tuple[Attachment, list[LimeRouter]]:
    """Return what is put into a model, of which nothing is changed yet."""
    if has_memory(model):
        raise ValueError(
            f"{type(model).__name__} has layer memory already; detach(model) removes it first"
        )
    kinds = {type(module).__name__ for module in model.modules()}
    # Quantised weights may be tensors of another class too.
    kinds |= {type(parameter.data).__name__ for parameter in model.parameters()}
    if distributed := kinds & _DISTRIBUTED:
        raise ValueError(
            f"{type(model).__name__} has {', '.join(distributed)}, which would not take in new "
            "routers; attach before wrapping or sharding the model"
        )
    attentions, shape = measure(model, owner, host)
    if settings["router"] == "average":
        raise ValueError('router must be "full", "last" or "first", which start as the identity')
    fields: dict[str, Any] = {f"router_{name}": value for name, value in settings.items()}
    fields["router"] = fields.pop("router_router")
    config = LimeConfig(num_hidden_layers=len(attentions), router_init=init, **fields)
    sources = [Lime.sources(config, i) for i in range(len(attentions))]
    routers = [Lime.router(config, shape.heads, (*sources[i], i)) for i in range(1, len(sources))]
    return Attachment(owner, host, attentions, shape, sources, settings), routers


def _install(model: nn.Module, attachment: Attachment, routers: Sequence[LimeRouter]) -> None:
    for attention, router in zip(attachment.attentions[1:], routers, strict=True):
        router.keeps_32_bits = True
        attention.add_module(MEMORY, router.to(**_placement(attention, model)))
    attachment.install()
    setattr(attachment.owner, ATTRIBUTE, attachment)
    swap_classes(model, attachment.owner)
    _forget_compiled()


def detach(model: ModelT) -> ModelT:
    """Remove what ``attach`` has added, in place, and return the model."""
    attachment = attachment_of(model)
    attachment.remove()
    for parameter, before in attachment.trained_before.items():
        parameter.requires_grad_(before)
    swap_back(model)
    delattr(attachment.owner, ATTRIBUTE)
    _forget_compiled()
    return model


def router_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of the routers of an attached model, from the first layer on."""
    for router in attachment_of(model).routers.values():
        yield from router.parameters()


def trainable(model: nn.Module, which: Literal["routers", "all"]) -> int:
    """Let only the routers of an attached model train, or all its parameters; return how many.

    ``detach`` lets those train again that did before.
    """
    if which not in ("routers", "all"):
        raise ValueError(f'which must be "routers" or "all", got {which!r}')
    routers = {id(parameter) for parameter in router_parameters(model)}
    before = attachment_of(model).trained_before
    for parameter in model.parameters():
        learns = which == "all" and _has_gradients(parameter)
        before.setdefault(parameter, parameter.requires_grad)
        parameter.requires_grad_(learns or id(parameter) in routers)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def _forget_compiled() -> None:
    """Let torch.compile compile anew: code that it has compiled does not look for new hooks."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _placement(attention: nn.Module, model: nn.Module) -> dict[str, Any]:
    """Return the device and dtype of a router in an attention.

    The dtype has 32 bits or more: in 16 a step of 1e-3 on a weight of 1 is rounded away.
    """
    parameters = (*attention.parameters(), *model.parameters())
    weights = next(p for p in parameters if _has_gradients(p))
    device = weights.device
    if device.type == "meta":
        # accelerate brings offloaded weights to this device when the module is called.
        hooks = [vars(module).get("_hf_hook") for module in attention.modules()]
        places = (getattr(hook, "execution_device", None) for hook in hooks)
        # A model that is built without weights has no such hooks.
        device = next((place for place in places if place is not None), device)
    return {"device": device, "dtype": torch.promote_types(weights.dtype, torch.float32)}


def _has_gradients(parameter: Tensor) -> bool:
    """Return whether a parameter may be trained: no integer, and none of 8 bits."""
    return parameter.is_floating_point() and parameter.element_size() > 1
