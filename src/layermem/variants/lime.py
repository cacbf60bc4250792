"""LIMe, layer-integrated memory: attention reads keys and values of every earlier layer.

The mechanism: at layer l, a router W in R^{R x SR} computes a weighted sum of the slots of its S
source layers, the own one last, before rope and with one weight for keys and values:

    [K~; V~]_l = W_l [slot_0; ...; slot_l]                                      (equation (2))

The paper's ablations are values of ``LimeConfig.router``. Initial weights:

    router_init       own layer       first layer     other earlier layers
    "paper"           identity        U(-b, b)        U(-b, b), b = sqrt(3 / (S R))
    "identity"        identity        0               0
    "value_residual"  identity / 2    identity / 2    0               of values; of keys, "identity"

``router="average"`` has the constant weight identity / S for every source and learns nothing. The
rest is not in the paper: with ``router_shares_kv=False`` keys and values have a W each, and
``router_grain`` gives W a number for each pair of heads, for each head, or for each source layer.

With ``storage`` some layers, the first among them, have keys and values of their own, and route
those of each other. The others have none, and no entry in the cache:

    upper="borrow"    a layer attends to what one storage layer does, by default the nearest below,
                      or each of its heads to what a head of some storage layer does
    upper="mix"       it attends to W_l [what the storage layers below attend to], keys rotated:
                      rope turns all of them alike

Letters: R key-value heads, S source layers, B batch, T tokens, E head width.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import LOCAL_HEADS, DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.lent_heads import LentHeads, lenders_of_heads
from layermem.models.registry import declare
from layermem.models.routers import RouterMethods, router_metrics
from layermem.models.seams import (
    Memory,
    ParameterOverride,
    Part,
    Variant,
    forked_generator,
    weights_of_part,
)
from layermem.models.sharded_routers import SOURCE_HEADS
from layermem.models.static_router import Grain, StaticRouter, check_sources
from layermem.ops.lent_attention import attend_to_routed, exchange_pays
from layermem.ops.route import Slot, route
from layermem_base.number_ranges import at_least, number

RECIPE: Mapping[str, Any] = MappingProxyType(
    {"router_shares_kv": False, "router_init": "value_residual", "router_grain": "layer"}
)
"""The fields that docs/recipe.md advises; the defaults are the paper's."""
RouterInit = Literal["paper", "identity", "value_residual", "average"]


@strict
class LimeConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the routers."""

    shape_fields = (
        *DecoderConfig.shape_fields,
        *("router", "router_window", "router_sources", "router_shares_kv", "router_grain"),
        *("storage", "upper", "borrow_from", "borrow_heads"),
    )
    local_heads_tp_plan: ClassVar[Mapping[str, str]] = MappingProxyType(
        {**LOCAL_HEADS, "layers.*.self_attn.memory": SOURCE_HEADS}
    )

    router: Literal["full", "average", "last", "first"] = "full"
    """Source layers: "full" all; "average" all, with constant weights; "last" the last
    ``router_window``, own included; "first" the first ``router_window``, the preceding, the own."""
    router_window: int | None = number(None, at_least(1))
    """Number of layers for router="last" and router="first"; None for the others."""
    router_init: Literal["paper", "identity", "value_residual"] = "paper"
    """Initial weights: "paper" random on earlier layers; "identity" zero on them, so that a new
    model computes what the plain decoder does, as needed to add memory to a pretrained model;
    "value_residual" values half of the own and half of the first layer, keys of the own."""
    router_sources: list[list[int]] | None = number(None, at_least(0))
    """The earlier layers that each layer reads, ascending, as ``prune_routers`` sets them; None:
    those that ``router`` selects."""
    router_shares_kv: bool = True
    """Whether one router is for keys and values; False: each has its own."""
    router_grain: Grain = "pair"
    """For what a router has a number, at each source layer: "pair" each pair of a head and a source
    head; "head" each head, which reads the same head of other layers; "layer" all heads."""

    storage: str | int | list[int] | None = number(None, at_least(0))
    """The layers with keys and values of their own, and entries in the cache: None all; "half" the
    first and every second one after it; a number of lowest ones; or a list that begins with 0."""
    upper: Literal["borrow", "mix"] = "borrow"
    """What the other layers attend to: "borrow" the same as one storage layer, "mix" a routed sum
    of what all below them attend to."""
    borrow_from: list[int] | None = number(None, at_least(0))
    """With upper="borrow": the storage layer of each other layer; None: the nearest below."""
    borrow_heads: Literal["first_values"] | list[list[list[int]]] | None = number(None, at_least(0))
    """With upper="borrow": for each other layer, what each of its key-value heads attends to, as
    [layer of keys, head, layer of values, head]; "first_values": that of its number in the nearest
    storage layer, but values of the first layer for every second head; None: the same heads of one
    layer."""

    def storing(self) -> Sequence[int]:
        """Return the layers with keys and values of their own, ascending."""
        if self.storage is None:
            return range(self.num_hidden_layers)
        if isinstance(self.storage, str):
            # Of another word none, which is refused.
            return range(0, self.num_hidden_layers, 2) if self.storage == "half" else ()
        return range(self.storage) if isinstance(self.storage, int) else self.storage

    def storing_below(self, layer: int) -> tuple[int, ...]:
        """Return the layers below one with keys and values of their own."""
        return tuple(j for j in self.storing() if j < layer)

    def not_storing(self) -> list[int]:
        """Return the layers without keys and values of their own, ascending."""
        storing = self.storing()
        return [i for i in range(self.num_hidden_layers) if i not in storing]

    def heads_of(self, layer: int) -> list[list[int]] | None:
        """Return what each head of one of the other layers borrows, if each has its own."""
        if self.borrow_heads == "first_values":
            nearest = self.storing_below(layer)[-1]
            heads = range(self.num_key_value_heads)
            return [[nearest, r, 0 if r % 2 else nearest, r] for r in heads]
        if self.borrow_heads is None:
            return None
        return self.borrow_heads[self.not_storing().index(layer)]

    def lenders_of(self, layer: int) -> tuple[int, ...]:
        """Return the storage layers that one of the other layers borrows from, ascending."""
        heads = self.heads_of(layer)
        if heads is not None:
            return lenders_of_heads(heads)
        if self.borrow_from is None:
            return self.storing_below(layer)[-1:]
        return (self.borrow_from[self.not_storing().index(layer)],)

    def validate_storage(self) -> None:
        """Raise ``ValueError`` unless the first layer stores, and all borrow from one that does."""
        layers, storing = self.num_hidden_layers, list(self.storing())
        if storing != sorted(set(storing) & set(range(layers))) or storing[:1] != [0]:
            raise ValueError(
                f'storage must be "half", a number of lowest layers from 1 to {layers}, or a list '
                f"of layers up to {layers - 1}, ascending, that begins with 0, got {self.storage!r}"
            )
        if self.storage is None:
            fields = {"borrow_from": self.borrow_from, "borrow_heads": self.borrow_heads}
            given = [f"{name}={value}" for name, value in fields.items() if value is not None]
            given += [f'upper="{self.upper}"'] * (self.upper != "borrow")
            if given:
                raise ValueError(
                    f"{' and '.join(given)} is for layers that store nothing: set storage "
                    '("half"), or leave it out'
                )
            return
        if self.router != "full":
            raise ValueError(
                f'storage={self.storage!r} is for router="full", got router="{self.router}"'
            )
        self._check_borrowed()

    def _borrowing_field(self) -> str:
        """Return the name of the field that says what a layer borrows."""
        given = (n for n in ("borrow_heads", "borrow_from") if getattr(self, n) is not None)
        return next(given, "storage")

    def _check_borrowed(self) -> None:
        for name in ("borrow_from", "borrow_heads"):
            if self.upper == "mix" and getattr(self, name) is not None:
                raise ValueError(f'{name} is for upper="borrow", got upper="mix": leave it None')
        if self.borrow_from is not None and self.borrow_heads is not None:
            raise ValueError(
                "borrow_from and borrow_heads say the same in two ways; leave one of them None"
            )
        if self.borrow_from is not None:
            self._check_lenders(self.borrow_from)
        if self.borrow_heads is not None and self.borrow_heads != "first_values":
            self._check_heads(self.borrow_heads)

    def _check_heads(self, layers: list[list[list[int]]]) -> None:
        others, heads, storing = self.not_storing(), self.num_key_value_heads, self.storing()
        if [len(layer) for layer in layers] != [heads] * len(others):
            raise ValueError(
                f"borrow_heads must have a list for each of the layers {others}, with an entry for "
                f"each of the {heads} key-value heads, got lists of {list(map(len, layers))}"
            )
        for i, layer in zip(others, layers, strict=True):
            for entry in layer:
                if len(entry) != 4 or any(
                    j not in storing or j > i or g >= heads
                    for j, g in zip(entry[::2], entry[1::2], strict=True)
                ):
                    raise ValueError(
                        f"borrow_heads must name, for a head of layer {i}, a layer of keys, a "
                        "head of it, a layer of values and a head of it, of the storage layers "
                        f"{list(self.storing_below(i))} and heads up to {heads - 1}, got {entry}"
                    )

    def _check_lenders(self, lenders: list[int]) -> None:
        others, storing = self.not_storing(), self.storing()
        if len(lenders) != len(others) or any(
            j not in storing or j > i for i, j in zip(others, lenders, strict=False)
        ):
            raise ValueError(
                f"borrow_from must name one of the storage layers {list(storing)} below each of "
                f"the layers {others}, got {lenders}"
            )

    def validate_router(self) -> None:
        """Raise ``ValueError`` unless ``router_window`` fits ``router``."""
        window, needs_window = self.router_window, self.router in ("last", "first")
        if needs_window and window is None:
            raise ValueError(f'router="{self.router}" needs router_window >= 1, got {window}')
        if not needs_window and window is not None:
            raise ValueError(
                f'router="{self.router}" has no window, got router_window={window}; '
                'leave it None or choose router="last" or "first"'
            )
        if self.router == "average" and not self.router_shares_kv:
            raise ValueError(
                'router="average" has constant weights, the same for keys and values, got '
                "router_shares_kv=False; leave it True or choose a learned router"
            )
        if self.router == "average" and self.router_grain != "pair":
            raise ValueError(
                f'router="average" has constant weights, got router_grain="{self.router_grain}"; '
                'leave it "pair" or choose a learned router'
            )

    def validate_router_init(self) -> None:
        """Raise ``ValueError`` unless values have a router that can read the first layer."""
        if self.router_init != "value_residual":
            return
        if self.router_shares_kv:
            raise ValueError(
                'router_init="value_residual" starts keys and values differently, got '
                "router_shares_kv=True; set router_shares_kv=False"
            )
        if self.router == "last":
            raise ValueError(
                'router_init="value_residual" reads the first layer, which router="last" does not '
                'in later layers; choose router="full" or "first"'
            )

    def validate_router_sources(self) -> None:
        """Raise ``ValueError`` unless every layer has a list of earlier layers."""
        if self.router_sources is not None:
            check_sources(self.router_sources, self.num_hidden_layers)
            self.validate_storage()
            storing = self.storing()
            for layer, sources in enumerate(self.router_sources):
                if not set(sources) <= set(storing) or (layer not in storing and not sources):
                    raise ValueError(
                        f"router_sources[{layer}] must list storage layers of {list(storing)}, and "
                        f"one at least where the layer stores nothing, got {sources}"
                    )
                if layer not in storing and self.upper == "borrow":
                    lenders = list(self.lenders_of(layer))
                    if list(sources) != lenders:
                        raise ValueError(
                            f"router_sources[{layer}] must be {lenders}, which it borrows from "
                            f"({self._borrowing_field()}), got {sources}"
                        )


def _not_narrower(fn: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    """Return what a function makes of a weight, in 32 bits at least if it had as many."""
    made = fn(weight)
    if not (weight.is_floating_point() and made.is_floating_point()):
        return made
    was_cast = made.element_size() < 4 <= weight.element_size()
    return weight.to(made.device) if was_cast else made


class _Router(StaticRouter):
    """A router with the initial weights of the table above."""

    def __init__(
        self,
        num_heads: int,
        sources: Sequence[int],
        *,
        layer: int | None = None,
        init: RouterInit = "paper",
        grain: Grain = "pair",
    ) -> None:
        super().__init__(num_heads, tuple(sources), layer, grain)
        self.init = init
        # A cast of the whole model to 16 bits leaves the weights in 32: `attach` sets it.
        self.keeps_32_bits = False
        for name in self.weight_names.values():
            weight = torch.empty(self.rows, len(self.sources) * self.columns)
            if init == "average":
                self.register_buffer(name, weight, persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(weight))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise as in the table above, without changing torch's random state."""
        n_sources = len(self.sources)
        for reads, weight in self.named_weights().items():
            last = self.initial_last(reads)
            initial = last.repeat(1, n_sources)
            if self.init != "average":
                initial.zero_()
                if self.init == "paper":
                    bound = math.sqrt(3 / (n_sources * self.columns))
                    salt = "router of values" if reads == "values" else "router"
                    generator = forked_generator(f"{salt} {self.layer}")
                    initial.uniform_(-bound, bound, generator=generator)
                elif self._halves(reads):
                    initial[:, : self.columns] = last
                initial[:, -self.columns :] = last
            # transformers' copy_ does nothing to weights that a checkpoint has filled in.
            initialization.copy_(weight, initial)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        was = self.weight
        super()._apply(partial(_not_narrower, fn) if self.keeps_32_bits else fn, recurse)
        is_new = was.is_meta or was.dtype != self.weight.dtype
        if self.init == "average" and is_new and not self.weight.is_meta:
            # No checkpoint has constants (`to_empty`), and cast ones are not exact.
            self.reset_parameters()
        return self

    def initial_last(self, reads: str) -> Tensor:
        # On the CPU in float32, so that a seed gives the same routers on every device.
        own = torch.eye(self.rows, self.columns, device="cpu", dtype=torch.float32)
        if self.grain == "head":
            own.fill_(1)
        if self.init == "average":
            return own.double() / len(self.sources)
        return own / 2 if self._halves(reads) else own

    def _halves(self, reads: str) -> bool:
        """Whether this weight begins as half of the own and half of the first layer."""
        of_values = self.init == "value_residual" and reads == "values"
        return of_values and self.sources[0] == 0 and len(self.sources) > 1

    def forward(self, query: Tensor, slots: Sequence[Slot], part: Part | None = None) -> Slot:
        """Route the slots of ``sources``, [B, R, T, E] each; of a ``part``, its halves."""
        weights = tuple(getattr(self, name) for name in self.weight_names.values())
        return self.route_by(slots, *weights_of_part(weights, part))

    def route_by(self, slots: Sequence[Slot], *weights: Tensor) -> Slot:
        if self.grain == "head":
            # Of each source, a diagonal of its own: [R, S] becomes [R, S * R].
            return route(
                slots, *(torch.diag_embed(w.t()).transpose(0, 1).flatten(1) for w in weights)
            )
        return route(slots, *weights)

    def attend(
        self, query: Tensor, slots: Sequence[Slot], mask: Tensor | None, scaling: float
    ) -> Tensor | None:
        of_keys, *of_values = self.named_weights().values()
        if not exchange_pays(query.shape[1], self.num_heads, self.columns, len(self.sources)):
            return None
        weights = of_keys, *(of_values or [of_keys])
        return attend_to_routed(query, slots, weights, self.columns, mask, scaling)

    def as_route(self) -> tuple[tuple[int, ...], tuple[Tensor, ...]] | None:
        # A parametrized router is of a subclass, and computes its weight at each look.
        if type(self) not in (LimeRouter, LimeSeparateRouters) or self.grain == "head":
            return None
        return self.sources, tuple(self.named_weights().values())

    def with_sources(self, sources: tuple[int, ...]) -> Self:
        return type(self)(
            self.num_heads, sources, layer=self.layer, init=self.init, grain=self.grain
        )


@final
class LimeRouter(_Router):
    """The router of one layer: ``weight`` [R, S * R], source layer major, own layer last.

    It can be used without the rest of the library, in any loop that keeps its slots.
    """


@final
class LimeSeparateRouters(_Router):
    """The routers of one layer: ``weight`` for keys and ``value_weight`` for values, [R, S * R]."""

    weight_names = {"keys": "weight", "values": "value_weight"}

    value_weight: Tensor


def make_router(
    config: LimeConfig, heads: int, sources: Sequence[int], layer: int
) -> LimeRouter | LimeSeparateRouters:
    """Return the router of a layer, of as many heads, that reads these layers."""
    router = LimeRouter if config.router_shares_kv else LimeSeparateRouters
    init = "average" if config.router == "average" else config.router_init
    return router(heads, sources, layer=layer, init=init, grain=config.router_grain)


@final
class Lime(Variant[LimeConfig]):
    """Differences from the plain decoder:

    * memory: every layer but the first routes over depth (``LimeRouter``);
    * with ``storage`` the other layers project no keys and values;
    * optimiser: routers have learning rate 1e-2 and no weight decay.
    """

    source = "2502.09245"
    overrides = (ParameterOverride(module=StaticRouter, lr=1e-2, weight_decay=0.0),)
    plain_fields = {"router_init": "identity"}

    @classmethod
    def sources(cls, config: LimeConfig, layer_idx: int) -> tuple[int, ...]:
        if layer_idx not in config.storing():
            return ()
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
                return config.storing_below(layer_idx)

    @classmethod
    def lenders(cls, config: LimeConfig, layer_idx: int) -> tuple[int, ...]:
        if layer_idx in config.storing():
            return ()
        if config.upper == "borrow":
            return config.lenders_of(layer_idx)
        if config.router_sources is not None:
            return tuple(config.router_sources[layer_idx])
        return config.storing_below(layer_idx)

    @classmethod
    def memory(cls, config: LimeConfig, layer_idx: int) -> Memory:
        lenders = cls.lenders(config, layer_idx)
        heads = config.heads_of(layer_idx) if lenders else None
        if heads is not None:
            return LentHeads(heads, config.num_key_value_heads)
        if layer_idx == 0 or (lenders and config.upper == "borrow"):
            return super().memory(config, layer_idx)
        sources = lenders or (*cls.sources(config, layer_idx), layer_idx)
        return make_router(config, config.num_key_value_heads, sources, layer_idx)

    @classmethod
    def extra_parameters(cls, config: LimeConfig) -> int:
        """Return the sum over the layers with a router of R x SR, R x S or S, by the grain.

        Of keys and values apart, twice as many. Minus the projections that do not exist.
        """
        if config.router == "average":
            return 0
        heads, routers = config.num_key_value_heads, 1 if config.router_shares_kv else 2
        of_source = {"pair": heads**2, "head": heads, "layer": 1}[config.router_grain]
        return routers * of_source * cls._count_sources(config) - cls.absent_weights(config)

    @classmethod
    def extra_flops(cls, config: LimeConfig) -> int:
        """Return 4 E for each pair of heads at each source, or, by a number a layer, for each head.

        A number for each head is computed as one for each pair, with zeros. Minus those of absent
        projections. Not counted: zeros that a buffer multiplies for slots that a router does not
        read, and what is routed again of tokens in the cache (upper="mix").
        """
        heads = config.num_key_value_heads
        products = heads if config.router_grain == "layer" else heads**2
        routed = 4 * config.head_dim * products * cls._count_sources(config)
        return routed - 2 * cls.absent_weights(config)

    @classmethod
    def entries_read(cls, config: LimeConfig, layer_idx: int) -> int:
        # Heads of several layers are as many as those of one.
        return 1 if config.upper == "borrow" else super().entries_read(config, layer_idx)

    @classmethod
    def extra_saved(cls, config: LimeConfig) -> int | None:
        """Return what slots take where every layer reads all: a key and a value of each layer,
        without the first layer's value, which attention keeps."""
        routed = config.router, config.router_sources, config.storage
        if routed != ("full", None, None) or config.router_grain == "head":
            return None
        if config.num_hidden_layers == 1:
            # It has nothing to route.
            return 0
        numbers = config.num_key_value_heads * config.head_dim
        return (2 * config.num_hidden_layers - 1) * numbers

    @classmethod
    def metrics(cls, model: nn.Module) -> dict[str, float]:
        return router_metrics(model)

    @classmethod
    def _count_sources(cls, config: LimeConfig) -> int:
        mixing = config.upper == "mix"
        return sum(
            mixing * len(lenders)
            if (lenders := cls.lenders(config, i))
            else 1 + len(cls.sources(config, i))
            for i in range(1, config.num_hidden_layers)
        )


declare("lime", LimeConfig, Lime, base=RouterMethods)

if TYPE_CHECKING:
    # For type checkers: the classes that the declaration makes.
    class LimeModel(RouterMethods, Decoder): ...

    class LimeForCausalLM(RouterMethods, DecoderForCausalLM): ...
