"""``attach`` and ``detach``: layer memory for a model of transformers, in place.

Keys and values are routed as the projections return them: before any norm per head, before rope and
before the cache. So a norm still gives keys the scale that its queries were trained with, layers
may differ in rope base and attention window, and a cache of any kind holds routed keys.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from layermem.models.lineage import FIELD as LINEAGE
from layermem.models.static_router import Grain
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
from layermem.retrofit.hosts import (
    Host,
    ProjectionShape,
    declared_heads,
    declared_width,
    find_given,
    find_head_dim,
    find_host,
    find_module,
    find_saved,
    measure,
)
from layermem.retrofit.proof import prove_slices
from layermem.variants.lime import Lime, LimeConfig, make_router

# Classes of tensors of which each process has a part.
_SHARDED = ("DTensor", "ShardedTensor")
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
# What `Attachment.describe`, config.json and routers.json say of an attached model.
_SAVED = {
    *("architecture", "host", "layers", "heads", "head_dim", "path", *DEFAULTS),
    *("format", "base", "digest", LINEAGE),
}
ModelT = TypeVar("ModelT", bound=nn.Module)


def attach(
    model: ModelT,
    router: Literal["full", "last", "first"] = "full",
    window: int | None = None,
    init: Literal["identity", "paper"] = "identity",
    *,
    shares_kv: bool = True,
    grain: Grain = "pair",
    host: Host | None = None,
) -> ModelT:
    """Add layer memory to a pretrained model, in place, and return it.

    Every layer but the first gets a router, ``self_attn.memory`` in a LLaMA, whose ``weight`` is
    that of ``LimeRouter``. ``router`` and ``window`` choose the layers that it reads, as
    ``LimeConfig.router`` and ``router_window`` do. With ``shares_kv=False`` keys and values have
    weights of their own (``value_weight``), and ``grain`` says for what a router has a
    number, as ``LimeConfig.router_grain`` does. With ``init="identity"`` the model computes what
    it did: bit for bit in eager float32. Give the whole model, which then saves itself with its
    memory: a model that holds an attached part does not. ``host`` says where the parts of an
    architecture lie that is not in ``layermem.retrofit.HOSTS``.
    """
    given = host is not None
    owner, host = find_host(model) if host is None else find_given(model, host)
    settings = {"router": router, "window": window, "shares_kv": shares_kv, "grain": grain}
    _attach(model, owner, host, settings, init=init, proves=given)
    return model


def attach_as_saved(model: nn.Module, memory: Mapping[str, Any]) -> None:
    """Attach memory as it was when ``Attachment.describe`` returned ``memory``.

    Its mapping was proved then, and weights may not be there yet.
    """
    if unknown := sorted(memory.keys() - _SAVED):
        raise ValueError(
            f"{unknown[0]}={memory[unknown[0]]!r} is no setting of layer memory that this release "
            "knows; it was saved by a newer one: pip install --upgrade layermem"
        )
    owner, host = find_saved(model, memory)
    settings = {name: memory.get(name, default) for name, default in DEFAULTS.items()}
    _attach(model, owner, host, settings, init="identity", proves=False)
    check_same_memory(attachment_of(model).describe(), memory)


def _attach(
    model: nn.Module,
    owner: nn.Module,
    host: Host,
    settings: dict[str, Any],
    *,
    init: Literal["identity", "paper"],
    proves: bool,
) -> None:
    if has_memory(model):
        raise ValueError(
            f"{type(model).__name__} has layer memory already; detach(model) removes it first"
        )
    _refuse_distributed(model)
    attentions, shape = _measure_layers(model, owner, host)
    config = _router_config(len(attentions), **settings, init=init)
    sources = [Lime.sources(config, i) for i in range(len(attentions))]
    if proves and (reason := prove_slices(model, owner, host, attentions, shape)):
        warnings.warn(
            f"the Host for {type(owner).__name__} could not be proved: {reason}; compare its "
            f"{shape.heads} key-value heads of width {shape.head_dim} with the model's code",
            stacklevel=3,
        )
    attachment = Attachment(
        owner=owner,
        host=host,
        attentions=attentions,
        shape=shape,
        sources=sources,
        settings=settings,
    )
    try:
        for i, attention in enumerate(attentions[1:], start=1):
            memory = make_router(config, shape.heads, (*sources[i], i))
            memory.keeps_32_bits = True
            attention.add_module(MEMORY, memory.to(**_placement(attention, model)))
        attachment.install()
    except BaseException:
        # Half a memory would break every forward, and could not be detached.
        attachment.remove()
        raise
    setattr(owner, ATTRIBUTE, attachment)
    swap_classes(model, owner)
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


def projection_names(model: nn.Module) -> list[str]:
    """Return the names of all projections to keys and values of a known architecture."""
    owner, host = find_host(model)
    path = next(name for name, module in model.named_modules() if module is owner)
    layers = ".".join(filter(None, (path, host.layers)))
    return [
        f"{layers}.{i}.{host.attention}.{name}"
        for i in range(len(owner.get_submodule(host.layers)))  # type: ignore[arg-type]
        for name in host.projections
    ]


def routers_of_full_memory(model: nn.Module) -> int:
    """Count the parameters that ``attach(model)`` would add to a known architecture."""
    attentions, shape = _measure_layers(model, *find_host(model))
    return sum(shape.heads**2 * (i + 1) for i in range(1, len(attentions)))


def _refuse_distributed(model: nn.Module) -> None:
    """Raise ``ValueError`` where several processes would each have routers of their own."""
    wrapper = next((m for m in model.modules() if type(m).__name__ in _WRAPPERS), None)
    # Quantised weights may be tensors of another class too.
    sharded = any(type(p.data).__name__ in _SHARDED for p in model.parameters())
    if wrapper is not None or sharded:
        kind = type(wrapper).__name__ if wrapper is not None else "sharded weights"
        raise ValueError(
            f"{type(model).__name__} has {kind}, which would not take in new routers; attach "
            "before wrapping or sharding the model"
        )


def _forget_compiled() -> None:
    """Let torch.compile compile anew: code that it has compiled does not look for new hooks."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _find_attentions(owner: nn.Module, host: Host) -> list[nn.Module]:
    """Return the attention of each layer, with all its projections."""
    layers = list(owner.get_submodule(host.layers).children())
    if len(layers) < 2:
        raise ValueError(
            f"layer memory needs at least two layers with attention, {type(owner).__name__} has "
            f"{len(layers)}"
        )
    attentions = []
    for layer in layers:
        if "crossattention" in layer._modules:
            raise ValueError(
                f"{type(owner).__name__} has cross-attention, whose keys are of another sequence; "
                "layer memory is for decoders and encoders without it (add_cross_attention=False)"
            )
        attention = find_module(layer, host.attention, "its self-attention")
        for name in host.projections:
            find_module(attention, name, "a projection to keys or values")
        if hasattr(attention, MEMORY):
            raise ValueError(f"{type(attention).__name__} has a {MEMORY!r} of its own")
        attentions.append(attention)
    return attentions


def _measure_layers(
    model: nn.Module, owner: nn.Module, host: Host
) -> tuple[list[nn.Module], ProjectionShape]:
    """Return the attention of each layer and the shape of keys and values, the same in all."""
    attentions = _find_attentions(owner, host)
    config = getattr(owner, "config", None) or getattr(model, "config", None)
    query_heads = getattr(config, "num_attention_heads", 0)
    shapes: dict[ProjectionShape, list[int]] = {}
    for i, attention in enumerate(attentions):
        head_dim = find_head_dim(attention, host, config)
        for name in host.projections:
            shape = measure(attention.get_submodule(name), host, head_dim, query_heads)
            shapes.setdefault(shape, []).append(i)
    if len(shapes) > 1:
        parts = "; ".join(
            f"{shape.heads} heads of width {shape.head_dim} in layers {sorted(set(layers))}"
            for shape, layers in shapes.items()
        )
        raise ValueError(
            f"keys and values must have the same heads in all layers, got {parts}; layer memory "
            "cannot route between them"
        )
    shape = next(iter(shapes))
    _check_declared(shape, attentions[0], config)
    return attentions, shape


def _check_declared(shape: ProjectionShape, attention: nn.Module, config: Any) -> None:
    """Raise if heads are others than the model states: their slices would be of several heads."""
    width, heads = declared_width(attention, config), declared_heads(config)
    if width not in (None, shape.head_dim) or (heads and shape.heads not in heads):
        raise ValueError(
            f"the projections hold {shape.heads} key-value heads of width {shape.head_dim}, and "
            f"{type(attention).__name__} and its config state {' or '.join(map(str, heads))} of "
            f"width {width or 'unknown'}; correct Host(head_dim=..., layout=...)"
        )


def _router_config(
    n_layers: int, router: str, window: int | None, shares_kv: bool, grain: str, init: str
) -> LimeConfig:
    """Return a config of ours with the same routers, which checks how they are asked for."""
    if router not in ("full", "last", "first"):
        raise ValueError(
            f'router must be "full", "last" or "first", got {router!r}: these start as the '
            "identity, so that the model computes what it did"
        )
    if init not in ("identity", "paper"):
        raise ValueError(
            f'init must be "identity", with which the model computes what it did, or "paper", got '
            f"{init!r}"
        )
    fields: dict[str, Any] = {"router": router, "router_window": window, "router_init": init}
    fields |= {"router_shares_kv": shares_kv, "router_grain": grain}
    return LimeConfig(num_hidden_layers=n_layers, **fields)


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
