"""Cross-layer attention (CLA): adjacent layers share the keys and values of the lowest.

With s(l) the source of layer l, the lowest layer of its group:

    K~_l, V~_l = K_{s(l)}, V_{s(l)}

after rope, as the cache holds them. Layers that are not their own source have no key and value
projections and no entry in the cache. ``kv_source_layers`` gives s by hand, under the name that
published configs have for it: 0, 0, 2, 2 are pairs.

Source: arXiv 2405.12981, whose CLA2 is ``sharing=2``; groups over more layers are the MLKV of
arXiv 2406.09297. Deviation: CLA begins with the group of the first layer, the paper also tries
patterns that keep the first layer apart (``kv_source_layers=[0, 1, 1, 3, 3, ...]``).
"""

from typing import final

from huggingface_hub.dataclasses import strict

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import Variant
from layermem_base.number_ranges import at_least, number


@strict
class ClaConfig(DecoderConfig):
    """The fields of a LLaMA, and which layers share keys and values."""

    sharing: int = number(2, at_least(1))
    """Number of adjacent layers that share keys and values; 1: none do. The last group may be
    smaller."""
    kv_source_layers: list[int] | None = number(None, at_least(0))
    """For each layer, the layer whose keys and values it attends to, in place of ``sharing``: its
    own number, or that of an earlier layer with its own number."""

    def source_of(self, layer: int) -> int:
        """Return the layer whose keys and values a layer attends to."""
        if self.kv_source_layers is not None:
            return self.kv_source_layers[layer]
        return layer - layer % self.sharing

    def validate_kv_source_layers(self) -> None:
        """Raise ``ValueError`` unless every layer has a source with keys and values of its own."""
        layers, given = self.num_hidden_layers, self.kv_source_layers
        if given is None:
            return
        if self.sharing != 2:
            raise ValueError(
                f"kv_source_layers={given} says which layers share, and so does "
                f"sharing={self.sharing}; give one of them"
            )
        if len(given) != layers:
            raise ValueError(
                f"kv_source_layers must name a source for each of {layers} layers, got {given}"
            )
        for layer, source in enumerate(given):
            if source > layer or given[source] != source:
                raise ValueError(
                    f"kv_source_layers[{layer}] must be {layer} or an earlier layer that is its "
                    f"own source, got {source} in {given}"
                )


@final
class Cla(Variant[ClaConfig]):
    """Differences from the plain decoder:

    * memory: a layer that is not its own source attends to what its source attends to, and has no
      key and value projections.
    """

    source = "2405.12981"
    released = ("Mistral Large 4", "Hunyuan-Large")
    plain_fields = {"sharing": 1}

    @classmethod
    def lenders(cls, config: ClaConfig, layer_idx: int) -> tuple[int, ...]:
        source = config.source_of(layer_idx)
        return () if source == layer_idx else (source,)


declare("cla", ClaConfig, Cla)
