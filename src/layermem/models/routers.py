"""Routers over depth whose weights are constant: what models that have them can say and do.

``StaticRouter`` is the memory, ``RouterMethods`` the base of the model classes of a variant that
uses it: a summary of its routers, and pruning. ``router_metrics`` is what training watches.

Letters: R key-value heads, S source layers.
It does not know: any particular variant, how a product is computed, training.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from layermem.models.memories import plain_memories
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Memory, WeightsUnknown
from layermem.ops.route.pruning import By, check_options, prune

# The parameter's name, with what PEFT puts between where it trains routers whole: the copy of one
# adapter.
ROUTER_NAME = r"\.memory\.(modules_to_save\.[^.]+\.)?weight$"


class StaticRouter(Memory):
    """A memory that reads its sources with one ``weight`` [R, S * R]: source layer major, own last.

    ``sources`` are the indices of the layers it reads, the own one last.
    """

    weight: Tensor

    def __init__(self, num_heads: int, sources: tuple[int, ...]) -> None:
        super().__init__()
        self.num_heads, self.sources = num_heads, sources

    @property
    @abstractmethod
    def is_learned(self) -> bool:
        """Whether the weight is a parameter."""

    @abstractmethod
    def narrowed(self, sources: tuple[int, ...]) -> Self:
        """Return a router as this one, with other weights, of fewer sources."""

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        return self.sources, self.weight.unflatten(1, (len(self.sources), self.num_heads))


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterRow:
    """What one router's weights look like."""

    layer: int
    """Index of the layer that reads."""
    sources: tuple[int, ...]
    """Indices of the layers read, the own one last."""
    off_layer_share: float
    """Share of the absolute weight that lies on earlier layers."""
    largest: float
    """Largest absolute weight."""
    moved: bool
    """Whether the own-layer block, the identity at the start, has changed."""

    def __str__(self) -> str:
        state = "moved" if self.moved else "as initialised"
        return (
            f"layer {self.layer:3d}  {len(self.sources):3d} sources  "
            f"off-layer {self.off_layer_share:6.1%}  largest {self.largest:8.3f}  {state}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRouter:
    """What pruning took from one router."""

    layer: int
    """Index of the layer that reads."""
    kept: tuple[int, ...]
    """Indices of the layers it still reads, the own one last."""
    dropped: tuple[int, ...]
    """Indices of the layers it reads no more."""
    zeroed: int
    """Number of entries set to zero in the layers kept."""
    dropped_share: float
    """Share of the absolute weight that is gone."""

    def __str__(self) -> str:
        dropped = ", ".join(map(str, self.dropped)) or "none"
        return (
            f"layer {self.layer:3d}  reads {len(self.kept):3d}, dropped layers: {dropped}; "
            f"{self.zeroed} more entries zeroed; {self.dropped_share:.2%} of the weight gone"
        )


class RouterMethods(PreTrainedDecoder):
    """Model classes with static routers."""

    def router_summary(self, largest: float = 10.0) -> list[RouterRow]:
        """Return a row for each trainable router, and warn about those gone wrong.

        A router has not moved if its own-layer block is still exactly the identity; it has exploded
        if a weight is not finite or beyond ``largest`` (the initial ones are at most 1.23).
        """
        routers = learned_routers(self)
        rows = [_describe(router) for router in routers]
        still = [row.layer for row in rows if not row.moved]
        burst = [row.layer for row in rows if not row.largest <= largest]
        if still:
            warnings.warn(
                f"the routers of layers {still} have not moved from their initial values: is the "
                "model untrained, are they frozen, or is their learning rate (1e-2) missing?",
                stacklevel=2,
            )
        if burst:
            warnings.warn(
                f"the routers of layers {burst} have exploded (a weight beyond {largest:g} or not "
                "finite): lower their learning rate, or clip gradients",
                stacklevel=2,
            )
        return rows

    @torch.no_grad()
    def prune_routers(self, keep: float | int, by: By = "layer") -> list[PrunedRouter]:
        """Drop what is small from every router; return a row for each that says what went.

        ``keep`` is a share of each router's absolute weight, 0 < keep <= 1, met by the fewest and
        largest; or, as an int, a number. ``by="layer"`` weighs whole source layers and always keeps
        the own one; ``by="entry"`` weighs single entries, sets the small ones to zero (training
        would move them again), and drops the layers with none left. Logits are those of the same
        weights set to zero, in less time; the config remembers the layers, so that the model saves
        and loads. The routers are new parameters: prune before building an optimiser.
        """
        check_options(keep, by)
        if self.config.router == "average":
            raise ValueError('router="average" has no learned weights to prune')
        decoder = self.base_model
        sources = [list(self.variant.sources(self.config, i)) for i in range(len(decoder.layers))]
        routers = learned_routers(decoder)
        for router in routers:
            layer = router.sources[-1]
            if decoder.layers[layer].self_attn.memory is not router:
                raise ValueError(
                    f"the router of layer {layer} is wrapped by an adapter (of PEFT, with "
                    'modules_to_save=["memory"]), which would keep the old one; merge it into the '
                    "model first (merge_and_unload), prune what that returns"
                )
        pruned = [_pruned(router, keep, by) for router in routers]
        for smaller, row in pruned:
            decoder.layers[row.layer].self_attn.memory = smaller
            sources[row.layer] = list(row.kept[:-1])
        self.config.router_sources = sources
        decoder.update_sources()
        return [row for _, row in pruned]


def check_sources(chosen: Sequence[Sequence[int]], depth: int) -> None:
    """Raise unless ``chosen`` names earlier layers for each of ``depth`` layers."""
    if len(chosen) != depth:
        raise ValueError(
            f"router_sources must hold a list for each of the {depth} layers, got {len(chosen)}"
        )
    for layer, sources in enumerate(chosen):
        if sources != sorted(set(sources) & set(range(layer))):
            raise ValueError(
                f"router_sources[{layer}] must name layers below {layer}, ascending and each "
                f"once, got {sources}"
            )


def learned_routers(model: nn.Module) -> list[StaticRouter]:
    """Return the routers that a forward calls now, but for fixed ones."""
    return [m for m in plain_memories(model) if isinstance(m, StaticRouter) and m.is_learned]


@torch.no_grad()
def router_metrics(model: nn.Module) -> dict[str, float]:
    """Return the norm of all routers' weights, and the share of them that lies on earlier layers.

    Nothing where an adapter changes the weights as a router is called.
    """
    try:
        routers = learned_routers(model)
    except WeightsUnknown:
        return {}
    if not routers:
        return {}
    square, own, total = (
        torch.stack(
            [
                torch.stack([w.square().sum(), w[:, -len(w) :].abs().sum(), w.abs().sum()])
                for w in (router.weight.float() for router in routers)
            ]
        )
        .sum(0)
        .tolist()
    )
    return {"router_norm": math.sqrt(square), "off_layer_share": 1 - own / total}


def _pruned(router: StaticRouter, keep: float | int, by: By) -> tuple[StaticRouter, PrunedRouter]:
    """Return a router without what is small, and the row that says what that was."""
    old = router.weight.detach()
    if not old.isfinite().all():
        raise ValueError(
            f"the router of layer {router.sources[-1]} has weights that are not finite"
        )
    new, read = prune(old, keep, by)
    columns = read.repeat_interleave(router.num_heads)
    old_sum, new_sum = (float(w.abs().sum(dtype=torch.float64)) for w in (old, new))

    kept = tuple(j for j, is_read in zip(router.sources, read.tolist(), strict=True) if is_read)
    smaller = router.narrowed(kept).train(router.training)
    kept_part = new[:, columns].contiguous()
    smaller.weight = nn.Parameter(kept_part, requires_grad=router.weight.requires_grad)
    return smaller, PrunedRouter(
        layer=router.sources[-1],
        kept=kept,
        dropped=tuple(sorted({*router.sources} - {*kept})),
        zeroed=int(((new == 0) & (old != 0))[:, columns].sum()),
        dropped_share=1 - new_sum / old_sum if old_sum else 0.0,
    )


def _describe(router: StaticRouter) -> RouterRow:
    weight = router.weight.detach().float().cpu()
    own = weight[:, -router.num_heads :]
    size = weight.abs()
    return RouterRow(
        layer=router.sources[-1],
        sources=router.sources,
        off_layer_share=1 - float(own.abs().sum() / size.sum()),
        # NaN is the largest of all: `max` of torch hands it on.
        largest=float(size.max()),
        moved=not torch.equal(own, torch.eye(router.num_heads)),
    )
