"""``LimeRouter``, the memory of LIMe: a weighted sum of slots, with weights that are learned.

Initial weights, with b = sqrt(3 / (S R)):

    init              own layer       first layer     other earlier layers
    "paper"           identity        U(-b, b)        U(-b, b)
    "identity"        identity        0               0
    "value_residual"  identity / 2    identity / 2    0               of values; of keys, "identity"
    "average"         identity / S    identity / S    identity / S    and they stay so

Letters: R key-value heads, S source layers, B batch, T tokens, E head width.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Self, final

import torch
from torch import Tensor, nn
from transformers import initialization

from layermem.models.memories import unadapted_memories
from layermem.models.seams import Memory, Part, forked_generator, weights_of_part
from layermem.ops.route import Slot, route

Grain = Literal["pair", "layer"]
"""For what a router has a number, at each source: a pair of heads, or all heads."""
SHARED = {"keys and values": "weight"}
"""The names of a router's weights by what they read, where keys and values share one."""
APART = {"keys": "weight", "values": "value_weight"}
"""The same where keys and values have a weight each."""


@final
class LimeRouter(Memory):
    """The router of one layer, the last of the ``sources`` that it reads, ascending.

    ``weight`` is [R, S * R], source layer major; by the ``grain`` "layer", [1, S]. With
    ``shares_kv=False`` that is of keys, and ``value_weight`` of values. They are parameters, or,
    with the ``init`` "average", buffers. It can be used without the rest of the library, in any
    loop that keeps its slots.
    """

    weight: Tensor

    def __init__(
        self,
        num_heads: int,
        sources: Sequence[int],
        *,
        init: str = "paper",
        grain: Grain = "pair",
        shares_kv: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.sources = num_heads, tuple(sources)
        self.init, self.grain = init, grain
        self.rows = self.columns = num_heads if grain == "pair" else 1
        self.layer = self.sources[-1]
        # A cast of the whole model to 16 bits leaves the weights in 32: `attach` sets it.
        self.keeps_32_bits = False
        self.weight_names = SHARED if shares_kv else APART
        for name in self.weight_names.values():
            weight = torch.empty(self.rows, len(self.sources) * self.columns)
            if init == "average":
                self.register_buffer(name, weight, persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(weight))
        self.reset_parameters()

    def forward(self, query: Tensor, slots: Sequence[Slot], part: Part | None = None) -> Slot:
        """Route the slots of ``sources``, [B, R, T, E] each; of a ``part``, its halves."""
        weights = tuple(getattr(self, name) for name in self.weight_names.values())
        return route(slots, *weights_of_part(weights, part))

    def as_route(self) -> tuple[tuple[int, ...], tuple[Tensor, ...]] | None:
        # Parametrized and sharded routers are of subclasses, whose weights are not those computed.
        is_plain = type(self) is LimeRouter
        return (self.sources, tuple(self.named_weights().values())) if is_plain else None

    def initial(self, reads: str) -> Tensor:
        """Return the initial weight of what it ``reads``; torch's random state is left alone."""
        # On the CPU in float32, so that a seed gives the same routers on every device.
        own, n_sources = torch.eye(self.rows, device="cpu", dtype=torch.float32), len(self.sources)
        if self.init == "average":
            return (own.double() / n_sources).repeat(1, n_sources)
        weight = own.new_zeros(self.rows, n_sources * self.columns)
        if self.init == "paper":
            bound = math.sqrt(3 / weight.shape[1])
            salt = "router of values" if reads == "values" else "router"
            weight.uniform_(-bound, bound, generator=forked_generator(f"{salt} {self.layer}"))
        is_halved = self.init == "value_residual" and reads == "values"
        if is_halved and self.sources[0] == 0 and n_sources > 1:
            own = own / 2
            weight[:, : self.columns] = own
        weight[:, -self.columns :] = own
        return weight

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weights."""
        for reads, weight in self.named_weights().items():
            # transformers' copy_ does nothing to weights that a checkpoint has filled in.
            initialization.copy_(weight, self.initial(reads))

    def named_weights(self) -> dict[str, Tensor]:
        """Return each weight by what it reads."""
        return {reads: getattr(self, name) for reads, name in self.weight_names.items()}

    def own_part(self, weight: Tensor) -> Tensor:
        """Return the columns of a weight for the own layer."""
        return weight[:, -self.columns :]

    def keep_sources(self, kept: Sequence[int]) -> None:
        """Read only these of the sources, by the weights for them, which become new parameters."""
        places = [self.sources.index(layer) for layer in kept]
        for name in self.weight_names.values():
            old = getattr(self, name)
            part = self._by_source(old.detach())[:, places].flatten(1)
            setattr(self, name, nn.Parameter(part, requires_grad=old.requires_grad))
        self.sources = tuple(kept)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(partial(_not_narrower, fn) if self.keeps_32_bits else fn, recurse)
        if not self.is_learned and not self.weight.is_meta:
            # No checkpoint has constants (`to_empty`), and cast ones are not exact.
            self.reset_parameters()
        return self

    @property
    def is_learned(self) -> bool:
        return isinstance(self.weight, nn.Parameter)

    def extra_repr(self) -> str:
        grain = "" if self.grain == "pair" else f", grain={self.grain}"
        return f"heads={self.num_heads}, sources={list(self.sources)}{grain}"

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        parts = [(self.sources, self._by_source(w)) for w in self.named_weights().values()]
        return {"key": parts[0], "value": parts[-1]}

    def _by_source(self, weight: Tensor) -> Tensor:
        # Of a router with a number a layer, one head stands for all.
        return weight.unflatten(1, (len(self.sources), self.columns))


def _not_narrower(fn: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    """Return what a function makes of a weight, in 32 bits at least if it had as many."""
    made = fn(weight)
    if not (weight.is_floating_point() and made.is_floating_point()):
        return made
    was_cast = made.element_size() < 4 <= weight.element_size()
    return weight.to(made.device) if was_cast else made


def check_sources(router_sources: Sequence[Sequence[int]], n_layers: int) -> None:
    """Raise ``ValueError`` unless there is a list of earlier layers for each of ``n_layers``."""
    if len(router_sources) != n_layers or any(
        sources != sorted(set(sources) & set(range(layer)))
        for layer, sources in enumerate(router_sources)
    ):
        raise ValueError(
            f"router_sources must list for each of the {n_layers} layers those below it that it "
            f"reads, ascending, got {router_sources}"
        )


def learned_routers(model: nn.Module) -> list[LimeRouter]:
    """Return the routers with learned weights that a forward calls now."""
    return [m for m in unadapted_memories(model) if isinstance(m, LimeRouter) and m.is_learned]
