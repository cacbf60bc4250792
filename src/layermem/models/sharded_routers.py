"""``SourceHeads``: routers whose products the processes of tensor parallelism share.

Each process has some of the key-value heads of every slot. It computes what these heads add to all
heads of the result, and a reduce-scatter sums the parts and leaves each process its own heads:

    process 0 of 2    W[:, its columns] slots[its heads]  \\  sum   out[first half of the heads]
    process 1 of 2    W[:, its columns] slots[its heads]  /       out[second half of the heads]

Slots, routed heads and the cache are thus shared too. The weights, which are few, are whole in each
process. A process computes the gradient of its own columns alone, and the backward sums it over the
processes.

Importing this module registers the style with transformers under the name ``SOURCE_HEADS``.

Letters: R key-value heads, S source layers, B batch, T tokens, E head width.
"""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, TensorParallelLayer

from layermem.models.configuration import LOCAL_HEADS
from layermem.models.lime_router import LimeRouter
from layermem.ops.route import Slot, route

SOURCE_HEADS = "layermem_source_heads"
ROUTED_HEADS = {**LOCAL_HEADS, "layers.*.self_attn.memory": SOURCE_HEADS}
"""Rules of a tensor-parallel plan with which each process routes to heads of its own."""


class SourceHeads(TensorParallelLayer):
    """transformers' parallel style for memories; one that is no router stays as it is."""

    def install_forward(self, module: nn.Module, mesh: Any) -> nn.Module:
        if isinstance(module, LimeRouter):

            def forward(router: LimeRouter, query: Tensor, slots: Sequence[Slot]) -> Slot:
                return route_own_heads(router, slots, mesh)

            # Bound to the router: a copy of it (of PEFT) is called with its own weights.
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
        return module


def route_own_heads(router: LimeRouter, slots: Sequence[Slot], mesh: Any) -> Slot:
    """Route slots [B, R / n, T, E] of each of the n processes of ``mesh`` to as many heads."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    share, rank = router.num_heads // mesh.size(), mesh.get_local_rank()
    own = slice(rank * share, (rank + 1) * share)

    def own_columns(weight: Tensor) -> Tensor:
        # [*, S * R / n] of [*, S * R].
        return weight.unflatten(1, (-1, router.num_heads))[:, :, own].flatten(1)

    if not router.is_learned:
        # A constant weight takes each head from the same head of every source.
        return route(slots, own_columns(router.weight[own]))
    weights = list(router.named_weights().values())
    if torch.is_grad_enabled():
        # The gradient of each is summed over the processes.
        wholes = [DTensor.from_local(w, mesh, [Replicate()], run_check=False) for w in weights]
        weights = [whole.to_local(grad_placements=[Partial()]) for whole in wholes]
    if router.grain != "pair":
        # Each head reads itself alone.
        return route(slots, *weights)
    key, value = route(slots, *map(own_columns, weights))
    # [R, 2, B, T, E]: the heads lie first, as the processes share them.
    parts = torch.stack((key, value)).transpose(0, 2).contiguous()
    summed = DTensor.from_local(parts, mesh, [Partial()], run_check=False)
    routed: Tensor = summed.redistribute(placements=[Shard(0)]).to_local()
    key, value = routed.transpose(0, 2).unbind()
    return key, value


ALL_PARALLEL_STYLES.register(SOURCE_HEADS, SourceHeads())
