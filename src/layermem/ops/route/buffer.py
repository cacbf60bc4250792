"""``SlotBuffer``: the slots of one forward, which its layers share; an interface.

``GroupedBuffer`` computes and differentiates routes in groups of layers (``MatrixBuffer`` on a CPU,
``KernelBuffer`` by kernels for a GPU), ``SmallBuffer`` is for the few tokens of a decoding step,
and ``TracedBuffer`` for code that torch.compile traces.

Letters: B batch, T tokens, R heads, E head width.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from torch import Tensor

from layermem.ops.route import naive
from layermem.ops.route.naive import Slot
from layermem.ops.route.widening import Sources


class SlotBuffer(Sequence[Slot]):
    """The slots of one forward and their routes; as a sequence, the slots so far.

    ``weights[l]`` [R, (l + 1) * R] is the router of layer l, None if it has none. Layer after layer
    calls ``append`` with its slot and then, if it has a router, ``route``.
    """

    def __init__(self, weights: Sequence[Tensor | None]) -> None:
        self._weights = weights
        self._slots: list[Slot] = []
        self.announce(weights, [range(layer + 1) for layer in range(len(weights))])

    def announce(self, weights: Sequence[Tensor | None], sources: Sources) -> None:
        """Say by which weights layers will call ``route``, and which slots each reads.

        They are those that the buffer has, or narrower ones, without the columns of other slots.
        """
        self._announced, self._sources = weights, sources

    def __len__(self) -> int:
        return len(self._slots)

    @overload
    def __getitem__(self, index: int) -> Slot: ...
    @overload
    def __getitem__(self, index: slice) -> list[Slot]: ...
    def __getitem__(self, index: int | slice) -> Slot | list[Slot]:
        return self._slots[index]

    def append(self, key: Tensor, value: Tensor) -> Slot:
        """Keep the slot of the next layer, [B, R, T, E] each, and return it as it is kept."""
        layer = len(self._slots)
        if not layer:
            self._shape = key.shape
            self._begin(key)
        if key.shape != self._shape or value.shape != self._shape:
            raise ValueError(
                f"the keys and values of all layers must have the shape {list(self._shape)} of the "
                f"first key, got {list(key.shape)} and {list(value.shape)} at layer {layer}"
            )
        slot = self._keep(layer, key, value)
        self._slots.append(slot)
        return slot

    def route(self, weight: Tensor) -> Slot:
        """Compute ``naive.route`` of the sources of the last slot's layer, with its router."""
        layer = len(self._slots) - 1
        wide = self._weights[layer]
        if wide is None or weight is not self._announced[layer]:
            # Another weight than was announced when the forward began.
            return naive.route([self._slots[j] for j in self._sources[layer]], weight)
        return self._route(layer, wide)

    @abstractmethod
    def _begin(self, key: Tensor) -> None:
        """Prepare for slots like the first key."""

    @abstractmethod
    def _keep(self, layer: int, key: Tensor, value: Tensor) -> Slot:
        """Keep the slot of a layer and return it as it is kept."""

    @abstractmethod
    def _route(self, layer: int, weight: Tensor) -> Slot:
        """Compute the route of a layer, whose slot is the last that was kept."""
