"""The router over depth with constant weights: the memory of LIMe and of what is like it.

Letters: R key-value heads, S source layers.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from layermem.models.memories import unadapted_memories
from layermem.models.seams import Memory, Part, WeightsUnknown
from layermem.ops.route import Slot

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

    # The name of each weight, by what it reads. Dynamo traces a dict, and no MappingProxyType.
    weight_names: ClassVar[Mapping[str, str]] = {"keys and values": "weight"}
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

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Other sources may be as many. Files of safetensors do not keep it, configs beside them do.
        if metadata := getattr(destination, "_metadata", None):
            metadata[prefix[:-1]]["sources"] = self.sources

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        lists = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)
        saved = local_metadata.get("sources")
        if saved not in (None, self.sources) and f"{prefix}weight" in state_dict:
            error_msgs.append(
                f"{prefix}weight is of a router that reads the layers {list(saved)}, and this one "
                f"reads {list(self.sources)}: build or attach the model as it was."
            )

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
