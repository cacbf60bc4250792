"""``SourceHeads``: routers whose products the processes of tensor parallelism share.

Each process has some of the key-value heads of every slot. It computes what these heads add to all
heads of the result, and a reduce-scatter sums the parts and leaves each process its own heads:

    process 0 of 2    W[:, its columns] slots[its heads]  \\  sum   out[first half of the heads]
    process 1 of 2    W[:, its columns] slots[its heads]  /       out[second half of the heads]

Slots, routed heads and the cache are thus shared too. The weights, which are few, are whole in each
process, so that optimisers, summaries and checkpoints see them as ever. A process computes the
gradient of its own columns alone, and the backward sums it over the processes.

Importing this module registers the style with transformers under the name ``SOURCE_HEADS``.

Letters: R key-value heads, S source layers, B batch, T tokens, E head width.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, TensorParallelLayer

from layermem.models.configuration import LOCAL_HEADS
from layermem.models.static_router import StaticRouter
from layermem.ops.route import Slot, route

SOURCE_HEADS = "layermem_source_heads"
ROUTED_HEADS: Mapping[str, str] = MappingProxyType(
    {**LOCAL_HEADS, "layers.*.self_attn.memory": SOURCE_HEADS}
)
"""Rules of a tensor-parallel plan with which each process routes to heads of its own."""


class SourceHeads(TensorParallelLayer):
    """transformers' parallel style for memories; one that is no router stays as it is."""

    def install_forward(self, module: nn.Module, mesh: Any) -> nn.Module:
        if not isinstance(module, StaticRouter):
            return module

        def forward(router: StaticRouter, query: Tensor, slots: Sequence[Slot]) -> Slot:
            return route_own_heads(router, slots, mesh)

        # Bound to the router, so that a copy of it (of PEFT) is called with its own weights.
        module.is_shared = True
        module.forward = MethodType(forward, module)  # type: ignore[method-assign]
        return module


def route_own_heads(router: StaticRouter, slots: Sequence[Slot], mesh: Any) -> Slot:
    """Route slots [B, R / n, T, E] of each of the n processes of ``mesh`` to as many heads."""
    own, weights = _own_heads(router.num_heads, mesh), router.named_weights().values()
    if router.grain != "pair":
        # Each head reads itself alone.
        return route(slots, *(_sum_gradient(w, mesh) for w in weights))
    if not router.is_learned:
        # A constant weight takes each head from the same head of every source.
        weight = _columns(router.weight[own], own, router.num_heads)
        return route(slots, weight)
    parts = (_columns(_sum_gradient(w, mesh), own, router.num_heads) for w in weights)
    key, value = route(slots, *parts)
    # [R, 2, B, T, E]: the heads lie first, as the processes share them.
    routed = _sum_and_scatter(torch.stack((key, value)).transpose(0, 2).contiguous(), mesh)
    key, value = routed.transpose(0, 2).unbind()
    return key, value


def _own_heads(heads: int, mesh: Any) -> slice:
    share = heads // mesh.size()
    return slice(mesh.get_local_rank() * share, (mesh.get_local_rank() + 1) * share)


def _columns(weight: Tensor, own: slice, heads: int) -> Tensor:
    """Return the columns [*, S * R / n] of some source heads, of [*, S * R]."""
    return weight.unflatten(1, (-1, heads))[:, :, own].flatten(1)


def _sum_gradient(weight: Tensor, mesh: Any) -> Tensor:
    """Return the same weight, whose gradient is summed over the processes."""
    if not torch.is_grad_enabled():
        return weight
    from torch.distributed.tensor import DTensor, Partial, Replicate

    whole = DTensor.from_local(weight, mesh, [Replicate()], run_check=False)
    return whole.to_local(grad_placements=[Partial()])


def _sum_and_scatter(parts: Tensor, mesh: Any) -> Tensor:
    """Sum over the processes, and return the rows of this one: [R / n, ...] of [R, ...]."""
    from torch.distributed.tensor import DTensor, Partial, Shard

    summed = DTensor.from_local(parts, mesh, [Partial()], run_check=False)
    local: Tensor = summed.redistribute(placements=[Shard(0)]).to_local()
    return local


ALL_PARALLEL_STYLES.register(SOURCE_HEADS, SourceHeads())
