"""What models with routers over depth offer: a summary of the routers, and their pruning.

``RouterMethods`` is the base of the model classes of a variant with static routers.
``router_metrics`` are the figures that training logs.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layermem.models.lime_router import LimeRouter, learned_routers
from layermem.models.memories import is_replaced
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import WeightsUnknown


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterRow:
    """Figures about the weights of one router.

    ``off_layer_share`` is the share of the absolute weight on earlier layers. ``largest`` is the
    largest absolute weight, initially at most 1.23, and NaN if there is one. ``moved`` says whether
    the weights on the last source, initially the identity or half of it, have changed. ``reads`` is
    "keys and values", or, in rows of their own, "keys" or "values".
    """

    layer: int
    sources: tuple[int, ...]
    off_layer_share: float
    largest: float
    moved: bool
    reads: str

    def __str__(self) -> str:
        return (
            f"layer {self.layer:3d}  {len(self.sources):3d} sources  "
            f"off-layer {self.off_layer_share:6.1%}  largest {self.largest:8.3f}  "
            f"{'moved' if self.moved else 'as initialised'}, {self.reads}"
        )


class RouterMethods(PreTrainedDecoder):
    """Methods of model classes with static routers."""

    def router_summary(self) -> list[RouterRow]:
        """Return a row for each learned router, and warn about those that have not moved.

        Where keys and values have weights of their own, each has a row.
        """
        rows = [row for router in learned_routers(self) for row in _summarise(router)]
        unmoved = sorted({row.layer for row in rows if not row.moved})
        if unmoved:
            warnings.warn(
                f"the routers of layers {unmoved} have not moved from their initial values: is the "
                "model untrained, are they frozen, or do they lack their learning rate (1e-2)?",
                stacklevel=2,
            )
        return rows

    @torch.no_grad()
    def prune_routers(self, keep: float | int) -> list[RouterRow]:
        """Have every router read fewer layers, in place; return the rows of ``router_summary``.

        ``keep`` is a share of each router's absolute weight, 0 < keep <= 1, of which the fewest and
        largest source layers are kept; or, as an int, their number. The own layer is always kept.

        The model computes what it would with the other weights set to zero, in no more time, and
        in less where it is deep and reads less than half. The config holds the layers that are
        left, so that the model saves and loads. The routers have new parameters: prune before
        creating an optimiser.
        """
        if not (0 < keep <= 1 or (isinstance(keep, int) and keep > 1)):
            raise ValueError(
                "keep must be a share of the weight in (0, 1], as a float, or a number of layers, "
                f"as an int of at least 1; got {keep!r}"
            )
        decoder = self.base_model
        routers = learned_routers(decoder)
        for router in routers:
            if decoder.layers[router.layer].self_attn.memory is not router or is_replaced(router):
                raise ValueError(
                    f"the router of layer {router.layer} is wrapped by an adapter, offloaded or "
                    "shared by processes; merge adapters into the model (merge_and_unload), and "
                    "load it whole in one process to prune it"
                )
        sources = [list(layer.sources) for layer in decoder.layers]
        for router in routers:
            router.keep_sources(_largest_sources(router, keep))
            sources[router.layer] = list(router.sources[:-1])
        self.config.router_sources = sources
        decoder.update_sources()
        return [row for router in routers for row in _summarise(router)]


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
        for w in map(Tensor.float, router.named_weights().values())
    ]
    square, own, total = torch.stack(sums).sum(0).tolist()
    share = 1 - own / total if total else math.nan
    return {"router_norm": math.sqrt(square), "off_layer_share": share}


def _summarise(router: LimeRouter) -> list[RouterRow]:
    weights = {reads: w.detach().float().cpu() for reads, w in router.named_weights().items()}
    own = router.own_part
    return [
        RouterRow(
            layer=router.layer,
            sources=router.sources,
            off_layer_share=1 - float(own(weight).abs().sum() / weight.abs().sum()),
            largest=float(weight.abs().max()),
            moved=not torch.equal(own(weight), own(router.initial(reads))),
            reads=reads,
        )
        for reads, weight in weights.items()
    ]


def _largest_sources(router: LimeRouter, keep: float | int) -> list[int]:
    """Return the sources that ``prune_routers`` keeps."""
    weights = torch.cat([weight.double() for weight in router.named_weights().values()])
    # Keys and values keep the same layers, because slots hold both.
    size = weights.abs().unflatten(1, (-1, router.columns)).sum((0, 2))
    own = len(size) - 1
    order = [own, *size[:own].argsort(descending=True, stable=True).tolist()]
    if isinstance(keep, float):
        # The next one is needed as long as the sum of those before it is below the share.
        sums = size[order].cumsum(0)
        keep = 1 + int((sums[:-1] < keep * sums[-1]).sum())
    return [router.sources[place] for place in sorted(order[:keep])]
