"""What models with routers over depth offer: a summary of the routers, and their pruning.

``RouterMethods`` is the base of the model classes of a variant with static routers.
``router_metrics`` are the figures that training logs.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.router_pruning import PrunedRouter, prunable_routers, pruned_router
from layermem.models.seams import WeightsUnknown
from layermem.models.static_router import StaticRouter, learned_routers
from layermem.ops.pruning import By, check_options


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterRow:
    """Figures about the weights of one router.

    ``off_layer_share`` is the share of the absolute weight on earlier layers, ``largest`` the
    largest absolute weight, and ``moved`` says whether the weights on the last source, initially
    the identity or half of it, have changed. ``reads`` is "keys and values", or, in rows of their
    own, "keys" or "values".
    """

    layer: int
    sources: tuple[int, ...]
    off_layer_share: float
    largest: float
    moved: bool
    reads: str = "keys and values"

    def __str__(self) -> str:
        state = "moved" if self.moved else "as initialised"
        if self.reads != "keys and values":
            state = f"{state}, {self.reads}"
        return (
            f"layer {self.layer:3d}  {len(self.sources):3d} sources  "
            f"off-layer {self.off_layer_share:6.1%}  largest {self.largest:8.3f}  {state}"
        )


class RouterMethods(PreTrainedDecoder):
    """Methods of model classes with static routers."""

    def router_summary(self, largest: float = 10.0) -> list[RouterRow]:
        """Return a row for each learned router, and warn about those that look wrong.

        Where keys and values have weights of their own, each has a row.

        A router has not moved if its weights on its last source are still exactly the initial
        ones. It has exploded if a weight is not finite or larger than ``largest`` (initially,
        weights are at most 1.23).
        """
        routers = learned_routers(self)
        rows = [row for router in routers for row in _summarise(router)]
        unmoved = sorted({row.layer for row in rows if not row.moved})
        exploded = sorted({row.layer for row in rows if not row.largest <= largest})
        if unmoved:
            warnings.warn(
                f"the routers of layers {unmoved} have not moved from their initial values: is the "
                "model untrained, are they frozen, or do they lack their learning rate (1e-2)?",
                stacklevel=2,
            )
        if exploded:
            warnings.warn(
                f"the routers of layers {exploded} have exploded (a weight larger than {largest:g} "
                "or not finite): lower their learning rate, or clip gradients",
                stacklevel=2,
            )
        return rows

    @torch.no_grad()
    def prune_routers(self, keep: float | int, by: By = "layer") -> list[PrunedRouter]:
        """Remove small weights from every router, in place; return a row for each router.

        ``keep`` is a share of each router's absolute weight, 0 < keep <= 1, of which the fewest and
        largest source layers or weights are kept; or, as an int, their number. ``by="layer"``
        removes whole source layers, never the own one; ``by="entry"`` sets single weights to zero
        (further training would change them again) and removes the layers that have none left.

        The model computes what it would with these weights set to zero, in no more time, and in
        less where it is deep and reads less than half. The config holds the layers that are left,
        so that the model saves and loads. The routers become new parameters: prune before creating
        an optimiser.
        """
        check_options(keep, by)
        if self.config.router == "average":
            raise ValueError('router="average" has no learned weights to prune')
        decoder = self.base_model
        sources = [list(layer.sources) for layer in decoder.layers]
        routers = prunable_routers(decoder)
        pruned = [pruned_router(router, keep, by) for router in routers.values()]
        for smaller_router, row in pruned:
            decoder.layers[row.layer].self_attn.memory = smaller_router
            sources[row.layer] = [j for j in row.kept if j != row.layer]
        self.config.router_sources = sources
        decoder.update_sources()
        return [row for _, row in pruned]


@torch.no_grad()
def router_metrics(model: nn.Module) -> dict[str, float]:
    """Return the norm of all routers' weights, and the share of the weight on earlier layers.

    An empty dictionary if an adapter changes the weights when a router is called.
    """
    try:
        routers = learned_routers(model)
    except WeightsUnknown:
        return {}
    if not routers:
        return {}
    sums = [
        torch.stack([w.square().sum(), router.own_part(w).abs().sum(), w.abs().sum()])
        for router in routers
        for w in (weight.float() for weight in router.named_weights().values())
    ]
    square, own, total = torch.stack(sums).sum(0).tolist()
    share = 1 - own / total if total else math.nan
    return {"router_norm": math.sqrt(square), "off_layer_share": share}


def _summarise(router: StaticRouter) -> list[RouterRow]:
    rows = []
    for reads, weight in router.named_weights().items():
        weight = weight.detach().float().cpu()
        nearest, size = weight[:, -router.columns :], weight.abs()
        rows.append(
            RouterRow(
                layer=router.layer,
                sources=router.sources,
                off_layer_share=1 - float(router.own_part(size).sum() / size.sum()),
                # torch's `max` returns NaN if there is one.
                largest=float(size.max()),
                moved=not torch.equal(nearest, router.initial(reads)[:, -router.columns :]),
                reads=reads,
            )
        )
    return rows
