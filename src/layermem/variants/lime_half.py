"""LIMe with half of its cache: every second layer borrows the keys and values of the one below.

The storage layers, the first among them, have keys and values of their own, and route those of each
other as in LIMe. With s(l) the nearest storage layer below, each other layer attends to the same:

    K~_l, V~_l = K~_{s(l)}, V~_{s(l)}

after rope, as the cache holds them. It has no key and value projections and no entry in the cache.

Source: LIMe, arXiv 2502.09245, with the layers of CLA, arXiv 2405.12981; the pair is ours.
"""

from collections.abc import Sequence
from typing import Literal, final

from huggingface_hub.dataclasses import strict

from layermem.models.registry import declare
from layermem.models.routers import RouterMethods
from layermem.models.seams import LentMemory, Memory
from layermem.variants.lime import Lime, LimeConfig


@strict
class LimeHalfConfig(LimeConfig):
    """The fields of LIMe, and which layers have keys and values of their own."""

    storage: Literal["half"] | int | list[int] = "half"
    """The layers with keys and values of their own, and entries in the cache: "half" the first and
    every second one after it; a number of lowest ones; or a list that begins with 0."""

    def storing(self) -> Sequence[int]:
        """Return the layers with keys and values of their own, ascending."""
        if isinstance(self.storage, str):
            return range(0, self.num_hidden_layers, 2)
        return range(self.storage) if isinstance(self.storage, int) else self.storage

    def validate_storage(self) -> None:
        """Raise ``ValueError`` unless the first layer stores, and routers read storage layers."""
        layers, storing = self.num_hidden_layers, list(self.storing())
        if storing != sorted(set(storing) & set(range(layers))) or storing[:1] != [0]:
            raise ValueError(
                f'storage must be "half", a number of lowest layers from 1 to {layers}, or a list '
                f"of layers up to {layers - 1}, ascending, that begins with 0, got {self.storage!r}"
            )
        for layer, sources in enumerate(self.router_sources or ()):
            if not set(sources) <= (set(storing) if layer in storing else set()):
                raise ValueError(
                    f"router_sources[{layer}] must list storage layers of {storing}, and none "
                    f"where the layer borrows, got {sources}"
                )


@final
class LimeHalf(Lime[LimeHalfConfig]):
    """Differences from LIMe:

    * memory: a layer that stores nothing attends to what the nearest storage layer below attends
      to, and has no key and value projections; routers read storage layers alone.
    """

    plain_fields = None

    @classmethod
    def lenders(cls, config: LimeHalfConfig, layer_idx: int) -> tuple[int, ...]:
        storing = config.storing()
        return () if layer_idx in storing else (max(j for j in storing if j < layer_idx),)

    @classmethod
    def sources(cls, config: LimeHalfConfig, layer_idx: int) -> tuple[int, ...]:
        if cls.lenders(config, layer_idx):
            return ()
        return tuple(j for j in super().sources(config, layer_idx) if j in config.storing())

    @classmethod
    def memory(cls, config: LimeHalfConfig, layer_idx: int) -> Memory:
        lenders = cls.lenders(config, layer_idx)
        return LentMemory(*lenders) if lenders else super().memory(config, layer_idx)

    @classmethod
    def extra_parameters(cls, config: LimeHalfConfig) -> int:
        return super().extra_parameters(config) - cls.absent_weights(config)

    @classmethod
    def extra_flops(cls, config: LimeHalfConfig) -> int:
        return super().extra_flops(config) - 2 * cls.absent_weights(config)

    @classmethod
    def extra_saved(cls, config: LimeHalfConfig) -> int | None:
        return None

    @classmethod
    def count_sources(cls, config: LimeHalfConfig) -> int:
        return sum(1 + len(cls.sources(config, i)) for i in config.storing() if i)


declare("lime_half", LimeHalfConfig, LimeHalf, base=RouterMethods)
