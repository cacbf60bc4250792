"""YOCO, "you only cache once": the upper layers share the keys and values of one lower layer.

With n the number of upper layers, by default half of all L:

    K~_l, V~_l = K_{L-n-1}, V_{L-n-1}       for l >= L - n

after rope, as the cache holds them. The upper layers have no key and value projections and no entry
in the cache. ``num_kv_shared_layers`` is the name that published configs have for n.

Source: arXiv 2405.05254. Deviations: there the shared keys and values are projections of the lower
half's output, here they are those of its last layer; there the lower half attends to a window or
decays, here all layers have full attention, so that its cache is half and not one layer.
"""

from typing import ClassVar, final

from huggingface_hub.dataclasses import strict

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import Variant
from layermem_base.number_ranges import at_least, number


@strict
class YocoConfig(DecoderConfig):
    """The fields of a LLaMA, and how many layers share keys and values."""

    # How many layers must have keys and values of their own.
    fewest_storing: ClassVar[int] = 1

    num_kv_shared_layers: int | None = number(None, at_least(0))
    """Number of last layers that attend to the keys and values of the layer before them; None: half
    of all; 0: none do."""

    @property
    def num_storing(self) -> int:
        """The number of layers with keys and values of their own, which are the lowest."""
        layers, shared = self.num_hidden_layers, self.num_kv_shared_layers
        if shared is None:
            return max(layers - layers // 2, min(self.fewest_storing, layers))
        return layers - shared

    def validate_kv_shared_layers(self) -> None:
        """Raise ``ValueError`` unless enough layers have keys and values of their own."""
        layers, fewest = self.num_hidden_layers, min(self.fewest_storing, self.num_hidden_layers)
        if self.num_storing < fewest:
            raise ValueError(
                f"num_kv_shared_layers must be at most {layers - fewest} of {layers} layers, so "
                f"that {fewest} have keys and values of their own, got {self.num_kv_shared_layers}"
            )


@final
class Yoco(Variant[YocoConfig]):
    """Differences from the plain decoder:

    * memory: the last ``num_kv_shared_layers`` layers attend to what the layer before them attends
      to, and have no key and value projections.
    """

    source = "2405.05254"
    released = ("Gemma 3n", "Gemma 4")
    plain_fields = {"num_kv_shared_layers": 0}

    @classmethod
    def lenders(cls, config: YocoConfig, layer_idx: int) -> tuple[int, ...]:
        storing = config.num_storing
        return () if layer_idx < storing else (storing - 1,)


declare("yoco", YocoConfig, Yoco)
