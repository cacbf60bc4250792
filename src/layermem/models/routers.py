"""Routers over depth with constant weights: the memory, and what models with such routers offer.

``StaticRouter`` is the memory. ``RouterMethods`` is the base of the model classes of a variant with
such routers: it adds a summary of the routers and their pruning. ``router_metrics`` are the figures
that training logs.

Letters: R key-value heads, S source layers.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from layermem.models.lent_heads import LentHeads
from layermem.models.memories import unadapted_memories
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.seams import Memory, Part, WeightsUnknown
from layermem.ops.route import Slot
from layermem.ops.route.pruning import By, check_options, prune

Grain = Literal["pair", "head", "layer"]
"""For what a router has a number, at each source: a pair of heads, a head, or all of them."""


class StaticRouter(Memory):
    """A memory with one ``weight`` for keys and values, source layer major.

    By its ``grain`` the weight is [R, S * R], [R, S] or [1, S]: at each source it has ``columns``.
    ``layer`` is the index of its own layer, and ``sources`` are those of the layers that it reads,
    ascending; unless a layer is given it is the last source. The weight is a parameter if it is
    learned and a buffer if it is fixed.

    A subclass with a weight for keys and another for values, of the same shape, sets
    ``weight_names`` to {"keys": "weight", "values": the other's name}.
    """

    # The name of each weight, by what it reads.
    weight_names: ClassVar[Mapping[str, str]] = MappingProxyType({"keys and values": "weight"})
    weight: Tensor

    def __init__(
        self,
        num_heads: int,
        sources: tuple[int, ...],
        layer: int | None = None,
        grain: Grain = "pair",
    ) -> None:
        super().__init__()
        self.num_heads, self.sources, self.grain = num_heads, sources, grain
        self.rows = 1 if grain == "layer" else num_heads
        self.columns = num_heads if grain == "pair" else 1
        self.layer = sources[-1] if layer is None else layer
        # Whether processes of tensor parallelism share its heads.
        self.is_shared = False

    def named_weights(self) -> dict[str, Tensor]:
        """Return each weight by what it reads."""
        return {reads: getattr(self, name) for reads, name in self.weight_names.items()}

    def own_part(self, weight: Tensor) -> Tensor:
        """Return the columns of a weight for the own layer; none if it is no source."""
        return weight[:, -self.columns :] if self.sources[-1] == self.layer else weight[:, :0]

    @property
    def is_learned(self) -> bool:
        return isinstance(self.weight, nn.Parameter)

    @abstractmethod
    def route_by(self, slots: Sequence[Slot], *weights: Tensor) -> Slot:
        """Route slots by ``weights``, which are ``named_weights`` or their part of some heads.

        Of the slots [B, R, T, E] only these heads are then given.
        """

    @abstractmethod
    def initial_last(self, reads: str) -> Tensor:
        """Return the initial weights on the last source, of the weight with this name."""

    @abstractmethod
    def with_sources(self, sources: tuple[int, ...]) -> Self:
        """Return a new router like this one that reads other sources, newly initialised."""

    def extra_repr(self) -> str:
        grain = "" if self.grain == "pair" else f", grain={self.grain}"
        return f"heads={self.num_heads}, sources={list(self.sources)}{grain}"

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        if len(self.weight_names) > 1:
            raise WeightsUnknown(
                f"a {type(self).__name__} has one weight for keys and one for values; use "
                "static_weights_by_part"
            )
        return self.sources, self._by_source(self.weight)

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        if len(self.weight_names) == 1:
            return super().static_weights_by_part()
        keys, values = map(self._by_source, self.named_weights().values())
        return {"key": (self.sources, keys), "value": (self.sources, values)}

    def _by_source(self, weight: Tensor) -> Tensor:
        by_source = weight.unflatten(1, (len(self.sources), self.columns))
        if self.grain == "head":
            return by_source * torch.eye(self.num_heads).to(weight)[:, None]
        # Of a router with a number a layer, one head stands for all.
        return by_source


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedRouter:
    """What pruning removed from the router of a layer: source layers, other weights, their share.

    ``zeroed`` counts the weights set to zero in the layers kept.
    """

    layer: int
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    zeroed: int
    dropped_share: float

    def __str__(self) -> str:
        dropped = ", ".join(map(str, self.dropped)) or "none"
        return (
            f"layer {self.layer:3d}  reads {len(self.kept):3d}, dropped layers: {dropped}; "
            f"{self.zeroed} more weights zeroed; {self.dropped_share:.2%} of the weight removed"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrunedToHeads:
    """What the heads of a layer read since its router was pruned to one source for each.

    ``heads``: of each head the layer of keys, head, layer of values, head; ``dropped_share``: the
    share of the absolute weight that was removed.
    """

    layer: int
    heads: tuple[tuple[int, int, int, int], ...]
    dropped_share: float

    def __str__(self) -> str:
        read = "  ".join(f"{j}:{g}/{i}:{h}" for j, g, i, h in self.heads)
        return (
            f"layer {self.layer:3d}  reads {read}; {self.dropped_share:.2%} of the weight removed"
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
        sources = [list(layer.sources or layer.lenders) for layer in decoder.layers]
        routers = _prunable_routers(decoder)
        pruned = [_prune(router, keep, by) for router in routers.values()]
        for smaller_router, row in pruned:
            decoder.layers[row.layer].self_attn.memory = smaller_router
            sources[row.layer] = [j for j in row.kept if j != row.layer]
        self.config.router_sources = sources
        decoder.update_sources()
        return [row for _, row in pruned]

    @torch.no_grad()
    def prune_to_heads(self) -> list[PrunedToHeads]:
        """Let each head of the layers that mix read its largest source alone, in place.

        A model with upper="mix" becomes one with upper="borrow" and ``borrow_heads``, and computes
        what it would with all other weights of these layers set to zero. The weights that are left
        go into the projections of queries and outputs. Of a long cache such a layer reads as much
        as one of a plain decoder, on a CPU in 32 bits; elsewhere it first copies what its heads
        read. It was trained to read more, so train it further; prune before creating an optimiser.
        """
        decoder, config = self.base_model, self.config
        if getattr(config, "upper", "borrow") != "mix":
            raise ValueError(
                'only a model with upper="mix" has layers that mix what others lend, got '
                f'upper="{getattr(config, "upper", None)}"'
            )
        routers = _prunable_routers(decoder)
        pruned = []
        for layer in decoder.layers:
            if layer.lenders:
                _check_plain_weights(layer.self_attn, layer.layer_idx)
                pruned.append((layer, *_largest_heads(routers[layer.layer_idx])))
        for layer, row, of_keys, of_values in pruned:
            attention = layer.self_attn
            groups = attention.num_key_value_groups * attention.head_dim
            for parameter in attention.q_proj.parameters():
                by_row = of_keys.repeat_interleave(groups).to(parameter)
                parameter.mul_(by_row[:, None] if parameter.ndim == 2 else by_row)
            weight = attention.o_proj.weight
            weight.mul_(of_values.repeat_interleave(groups).to(weight))
            memory = LentHeads(row.heads, config.num_key_value_heads)
            attention.memory = memory.train(attention.memory.training)
        rows = [row for _, row, *_ in pruned]
        config.upper, config.borrow_heads = "borrow", [list(map(list, row.heads)) for row in rows]
        decoder.update_sources()
        if config.router_sources is not None:
            config.router_sources = [list(x.sources or x.lenders) for x in decoder.layers]
        return rows


def check_sources(router_sources: Sequence[Sequence[int]], n_layers: int) -> None:
    """Raise ``ValueError`` unless there is a list of earlier layers for each of ``n_layers``."""
    if len(router_sources) != n_layers:
        raise ValueError(
            f"router_sources must have a list for each of the {n_layers} layers, got "
            f"{len(router_sources)} lists"
        )
    for layer, sources in enumerate(router_sources):
        if sources != sorted(set(sources) & set(range(layer))):
            raise ValueError(
                f"router_sources[{layer}] must list layers below {layer}, ascending and without "
                f"repetition, got {sources}"
            )


def learned_routers(model: nn.Module) -> list[StaticRouter]:
    """Return the routers with learned weights that a forward calls now."""
    return [m for m in unadapted_memories(model) if isinstance(m, StaticRouter) and m.is_learned]


def _prunable_routers(decoder: Any) -> dict[int, StaticRouter]:
    """Return the learned routers by layer; raise unless each is whole, plain and finite."""
    routers = learned_routers(decoder)
    for router in routers:
        where = f"the router of layer {router.layer}"
        if decoder.layers[router.layer].self_attn.memory is not router:
            raise ValueError(
                f"{where} is wrapped by an adapter (of PEFT, with "
                'modules_to_save=["memory"]), which would keep the old one; merge it into the '
                "model first (merge_and_unload) and prune the model that this returns"
            )
        if router.is_shared:
            raise ValueError(
                f"{where} is shared by the processes of tensor parallelism; load the model without "
                "a tp_plan, prune it and save it"
            )
        weights = router.named_weights().values()
        if type(router).__name__.startswith("Parametrized") or any(w.is_meta for w in weights):
            raise ValueError(
                f"{where} has weights that are offloaded or parametrized; load the model whole "
                "(without device_map), remove parametrizations, and prune it then"
            )
        if not all(weight.isfinite().all() for weight in weights):
            raise ValueError(f"{where} has weights that are not finite; load an earlier checkpoint")
    return {router.layer: router for router in routers}


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


def _prune(router: StaticRouter, keep: float | int, by: By) -> tuple[StaticRouter, PrunedRouter]:
    """Return a router without its small weights, and the row about what was removed."""
    # Keys and values keep the same layers, because slots hold both.
    old = torch.cat([weight.detach() for weight in router.named_weights().values()])
    new, read = prune(old, keep, by, router.columns)
    columns = read.repeat_interleave(router.columns)
    old_sum, new_sum = (float(w.abs().sum(dtype=torch.float64)) for w in (old, new))

    kept = tuple(j for j, is_read in zip(router.sources, read.tolist(), strict=True) if is_read)
    smaller = router.with_sources(kept).train(router.training)
    kept_part = new[:, columns].contiguous()
    for name, part in zip(router.weight_names.values(), kept_part.split(router.rows), strict=True):
        needs_gradient = getattr(router, name).requires_grad
        setattr(smaller, name, nn.Parameter(part.clone(), requires_grad=needs_gradient))
    return smaller, PrunedRouter(
        layer=router.layer,
        kept=kept,
        dropped=tuple(sorted({*router.sources} - {*kept})),
        zeroed=int(((new == 0) & (old != 0))[:, columns].sum()),
        dropped_share=1 - new_sum / old_sum if old_sum else 0.0,
    )


def _check_plain_weights(attention: nn.Module, layer: int) -> None:
    """Raise unless queries and outputs of a layer are matrices that can be scaled."""
    for name in ("q_proj", "o_proj"):
        linear = getattr(attention, name)
        if type(linear) is not nn.Linear or not linear.weight.is_floating_point():
            raise ValueError(
                f"{name} of layer {layer} is a {type(linear).__module__}.{type(linear).__name__}, "
                "whose weights cannot be scaled; merge adapters (merge_and_unload), or load the "
                "model without quantisation"
            )


def _largest_heads(router: StaticRouter) -> tuple[PrunedToHeads, Tensor, Tensor]:
    """Return what each head reads with its largest weight, and these weights of keys and values."""
    chosen, kept, total = [], 0.0, 0.0
    scales = []
    for sources, weights in router.static_weights_by_part().values():
        # [target, source, source head]; one head stands for all, and reads that of its number.
        n_heads = router.num_heads
        if weights.shape[2] == 1:
            weights = weights * torch.eye(n_heads).to(weights)[:, None]
        flat = weights.detach().flatten(1)
        largest = flat.abs().argmax(1)
        scales.append(flat.gather(1, largest[:, None])[:, 0])
        chosen.append([(sources[k // n_heads], k % n_heads) for k in largest.tolist()])
        kept += float(scales[-1].abs().sum(dtype=torch.float64))
        total += float(flat.abs().sum(dtype=torch.float64))
    heads = tuple((*key, *value) for key, value in zip(*chosen, strict=True))
    row = PrunedToHeads(
        layer=router.layer, heads=heads, dropped_share=1 - kept / total if total else 0.0
    )
    return row, scales[0], scales[1]


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
                moved=not torch.equal(nearest, router.initial_last(reads)),
                reads=reads,
            )
        )
    return rows
