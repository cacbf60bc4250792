"""LIMe, layer-integrated memory: attention reads keys and values of every earlier layer.

THE MECHANISM. At layer l, a router W in R^{R x SR} mixes the slots of its S source layers, the own
one last, before rope and with one weight for keys and values:

    [K~; V~]_l = W_l [slot_0; ...; slot_l]                                      (equation (2))

The paper's ablations are values of ``LimeConfig.router``. Initial weights:

    columns           router_init="paper"                  router_init="identity"
    own layer         identity                             identity
    earlier layers    U(-b, b), b = sqrt(3 / (S R))        0

``router="average"`` has the constant weight identity / S for every source and learns nothing.

Letters: R key-value heads, S source layers, B batch, T tokens, E head width.
It does not know: how ``route`` computes the product, rope, caches, training.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import GenerationMixin, initialization
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)

from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder, DecoderForCausalLM
from layermem.models.memories import plain_memories
from layermem.models.pretrained import PreTrainedDecoder
from layermem.models.registry import Entry, register
from layermem.models.seams import (
    Memory,
    OwnLayer,
    ParameterOverride,
    Variant,
    WeightsUnknown,
    forked_generator,
)
from layermem.ops.route import Slot, route, store
from layermem.ops.route.pruning import By, prune
from layermem.ops.route.pruning import check as check_pruning

RouterInit = Literal["paper", "identity", "average"]
# With what PEFT puts between where it trains routers whole: the copy of one adapter.
_ROUTER_NAME = r"\.memory\.(modules_to_save\.[^.]+\.)?weight$"


@strict
class LimeConfig(DecoderConfig):
    """The fields of a LLaMA, and which layers the routers read."""

    model_type: ClassVar[str] = "layermem_lime"
    shape_fields: ClassVar[tuple[str, ...]] = (
        *DecoderConfig.shape_fields,
        "router",
        "router_window",
        "router_sources",
    )

    router: Literal["full", "average", "last", "first"] = "full"
    """Source layers: all; all, averaged and not learned; the last ``router_window``, own counted;
    the first ``router_window``, with the preceding and the own layer."""
    router_window: int | None = None
    """Number of layers for router="last" and router="first"; None for the others."""
    router_init: Literal["paper", "identity"] = "paper"
    """Off-layer weights at the start: the paper's random ones, or zero ("identity": the model
    starts as the plain decoder, as adding memory to a pretrained model requires)."""
    router_sources: list[list[int]] | None = None
    """For each layer the earlier layers it reads, ascending, where they were chosen one by one (as
    by ``prune_routers``); None: those that ``router`` says."""

    def validate_router(self) -> None:
        """Check that a windowed router has a window and no other has."""
        window, windowed = self.router_window, self.router in ("last", "first")
        if windowed and window is None:
            raise ValueError(f'router="{self.router}" needs router_window, the number of layers')
        if not windowed and window is not None:
            raise ValueError(
                f'router="{self.router}" has no window, got router_window={window}; '
                'leave it None or choose router="last" or "first"'
            )
        if window is not None and window < 1:
            raise ValueError(f"router_window must be at least 1, got {window}")

    def validate_router_sources(self) -> None:
        """Check that every layer has its sources, and that they lie below it."""
        chosen, depth = self.router_sources, self.num_hidden_layers
        if chosen is None:
            return
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


@final
class LimeRouter(Memory):
    """The router of one layer: ``weight`` [R, S * R], source layer major, own layer last.

    ``sources`` are the indices of the layers it reads, the own one last. Usable on its own, in any
    loop that keeps its slots.
    """

    def __init__(
        self, num_heads: int, sources: Sequence[int], *, init: RouterInit = "paper"
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sources = tuple(sources)
        self.init = init
        weight = torch.empty(num_heads, len(self.sources) * num_heads)
        if init == "average":
            self.register_buffer("weight", weight, persistent=False)
        else:
            self.weight = nn.Parameter(weight)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the initial weights of the table above, without touching torch's random state."""
        n_sources, heads = len(self.sources), self.num_heads
        # On the CPU in float32, so that one seed gives the same routers everywhere.
        own = torch.eye(heads, device="cpu", dtype=torch.float32)
        initial = (own / n_sources).repeat(1, n_sources)
        if self.init != "average":
            initial.zero_()
            if self.init == "paper":
                bound = math.sqrt(3 / (n_sources * heads))
                generator = forked_generator(f"router {self.sources[-1]}")
                initial.uniform_(-bound, bound, generator=generator)
            initial[:, -heads:] = own
        # transformers' copy_ leaves alone what a checkpoint has filled in.
        initialization.copy_(self.weight, initial)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, slots: Sequence[Slot]) -> Slot:
        """Route the slots of ``sources``, [B, R, T, E] each; the own one is (key, value)."""
        return route(slots, self.weight)

    def static_weights(self) -> tuple[tuple[int, ...], Tensor]:
        return self.sources, self.weight.unflatten(1, (len(self.sources), self.num_heads))

    def extra_repr(self) -> str:
        return f"heads={self.num_heads}, sources={list(self.sources)}, init={self.init}"


@final
class Lime(Variant):
    """Differences from the plain decoder:

    * memory: every layer but the first routes over depth (``LimeRouter``);
    * optimiser: routers learn at 1e-2 and do not decay.
    """

    overrides = (ParameterOverride(pattern=_ROUTER_NAME, lr=1e-2, weight_decay=0.0),)
    plain_fields = {"router_init": "identity"}

    @classmethod
    def sources(cls, config: LimeConfig, layer_idx: int) -> tuple[int, ...]:
        if config.router_sources is not None:
            return tuple(config.router_sources[layer_idx])
        window = config.router_window or 0
        match config.router:
            case "last":
                return tuple(range(max(0, layer_idx + 1 - window), layer_idx))
            case "first":
                first = range(min(layer_idx, window))
                return tuple(sorted({*first, *range(max(0, layer_idx - 1), layer_idx)}))
            case _:
                return tuple(range(layer_idx))

    @classmethod
    def memory(cls, config: LimeConfig, layer_idx: int) -> Memory:
        if layer_idx == 0:
            return OwnLayer()
        return LimeRouter(
            config.num_key_value_heads,
            (*cls.sources(config, layer_idx), layer_idx),
            init="average" if config.router == "average" else config.router_init,
        )

    @classmethod
    def store(cls, key: Tensor, value: Tensor) -> Slot:
        return store(key, value)

    @classmethod
    def init_weights(cls, module: nn.Module) -> bool:
        if isinstance(module, LimeRouter):
            module.reset_parameters()
        return isinstance(module, LimeRouter)

    @classmethod
    def extra_parameters(cls, config: LimeConfig) -> int:
        """Sum of R x SR over the layers with a router."""
        return 0 if config.router == "average" else cls._weights(config)

    @classmethod
    def extra_flops(cls, config: LimeConfig) -> int:
        """Each weight multiplies E numbers of a key and E of a value."""
        return 4 * config.head_dim * cls._weights(config)

    @classmethod
    @torch.no_grad()
    def metrics(cls, model: nn.Module) -> dict[str, float]:
        """Norm of all routers' weights, and the share of them that lies on earlier layers.

        Nothing where an adapter changes the weights as a router is called.
        """
        try:
            routers = _trainable(model)
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

    @classmethod
    def _weights(cls, config: LimeConfig) -> int:
        layers = range(1, config.num_hidden_layers)
        return config.num_key_value_heads**2 * sum(1 + len(cls.sources(config, i)) for i in layers)


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


class LimePreTrained(PreTrainedDecoder):
    """Ties config and variant to the model classes below."""

    config: LimeConfig
    variant = Lime

    def router_summary(self, largest: float = 10.0) -> list[RouterRow]:
        """Return a row for each trainable router, and warn about those gone wrong.

        A router has not moved if its own-layer block is still exactly the identity; it has exploded
        if a weight is not finite or beyond ``largest`` (the initial ones are at most 1.23).
        """
        routers = _trainable(self)
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
        check_pruning(keep, by)
        if self.config.router == "average":
            raise ValueError('router="average" has no learned weights to prune')
        decoder = self.base_model
        sources = [list(Lime.sources(self.config, i)) for i in range(len(decoder.layers))]
        routers = _trainable(decoder)
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
        decoder.wire()
        return [row for _, row in pruned]


def _trainable(model: nn.Module) -> list[LimeRouter]:
    """Return the routers that a forward calls now, but for fixed ones."""
    return [m for m in plain_memories(model) if isinstance(m, LimeRouter) and m.init != "average"]


def _pruned(router: LimeRouter, keep: float | int, by: By) -> tuple[LimeRouter, PrunedRouter]:
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
    smaller = LimeRouter(router.num_heads, kept, init=router.init).train(router.training)
    kept_part = new[:, columns].contiguous()
    smaller.weight = nn.Parameter(kept_part, requires_grad=router.weight.requires_grad)
    return smaller, PrunedRouter(
        layer=router.sources[-1],
        kept=kept,
        dropped=tuple(sorted({*router.sources} - {*kept})),
        zeroed=int(((new == 0) & (old != 0))[:, columns].sum()),
        dropped_share=1 - new_sum / old_sum if old_sum else 0.0,
    )


def _describe(router: LimeRouter) -> RouterRow:
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


@final
class LimeModel(LimePreTrained, Decoder):
    """Token ids to hidden states."""


@final
class LimeForCausalLM(LimePreTrained, DecoderForCausalLM, GenerationMixin):
    """Next-token prediction."""

    decoder_class = LimeModel


@final
class LimeForSequenceClassification(GenericForSequenceClassification, LimePreTrained):
    """One label for a text."""


@final
class LimeForTokenClassification(GenericForTokenClassification, LimePreTrained):
    """One label for each token."""


@final
class LimeForQuestionAnswering(GenericForQuestionAnswering, LimePreTrained):
    """Start and end of an answer in a text."""


register(
    "lime",
    Entry(
        variant=Lime,
        config=LimeConfig,
        decoder=LimeModel,
        causal_lm=LimeForCausalLM,
        sequence_classification=LimeForSequenceClassification,
        token_classification=LimeForTokenClassification,
        question_answering=LimeForQuestionAnswering,
    ),
)
