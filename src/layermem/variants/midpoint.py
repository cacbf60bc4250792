"""Midpoint keys and values: upper layers project theirs from the state at mid depth.

With x_l the input of layer l, n the number of upper layers, by default half of all L, and m = L - n
the lowest of them:

    q_l = W_q norm_l(x_l)
    k_l, v_l = W_k norm_l(x_m), W_v norm_l(x_m)       for l >= m, else of norm_l(x_l)

norm_l and the projections are those of the layer, each of which has its own entry in the cache. No
parameters are added, and none are absent. Nothing of a prompt but the keys and values of the upper
layers is read of them later, so they run on its last token alone (``models/prompt_cut.py``): half
of a prompt's work is not done.

Source: marin-community/marin, issue 8196 (``moe_yoco_kv_reuse``), whose layers these are; the idea
is that of DeepSeek-V4.1-Flash, of which we had others' accounts. Deviations from it: its upper
layers also attend to a window of their own states, and share compressed keys and values.
"""

from collections.abc import Mapping
from typing import Any, final

from huggingface_hub.dataclasses import strict

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import Connection, Inputs, Norm, State, SubLayer, Variant
from layermem_base.number_ranges import at_least, number


@strict
class MidpointConfig(DecoderConfig):
    """The fields of a LLaMA, and how many layers read the state at mid depth."""

    num_upper_layers: int | None = number(None, at_least(0))
    """Number of last layers whose keys and values are of the input of the lowest of them; None:
    half of all; 0: none, and 1 computes the same."""

    @property
    def midpoint(self) -> int:
        """The lowest layer whose keys and values are of the state at mid depth, its own input."""
        upper = self.num_upper_layers
        return self.num_hidden_layers - (self.num_hidden_layers // 2 if upper is None else upper)

    def validate_upper_layers(self) -> None:
        """Raise ``ValueError`` unless a layer is left below."""
        if self.midpoint < 1:
            raise ValueError(
                f"num_upper_layers must be at most {self.num_hidden_layers - 1} of "
                f"{self.num_hidden_layers} layers, got {self.num_upper_layers}"
            )


@final
class KeepMidpoint(Connection):
    """The connection of the mlp below the upper layers: the state is kept beside the residual."""

    def write(self, carry: Any, y: Any) -> State:
        x = carry[0] + y
        return x, x


@final
class MidpointConnection(Connection):
    """The connection of attention in the upper layers: queries of the residual, the rest of what
    was kept."""

    kv_aside = True

    def read(self, state: State, norm: Norm) -> tuple[Inputs, State]:
        kept = norm(state[1])
        return (norm(state[0]), kept, kept), state


@final
class Midpoint(Variant[MidpointConfig]):
    """Differences from the plain decoder:

    * connection of the mlp below the upper layers: the state at mid depth is kept;
    * connection of attention in the upper layers: keys and values are of that state.
    """

    released = ("DeepSeek-V4.1-Flash",)
    plain_fields = {"num_upper_layers": 0}

    @classmethod
    def plain_fields_beside(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        # With no upper layers a model would stay the plain decoder.
        if "num_upper_layers" not in given:
            raise ValueError(
                "midpoint cannot begin as a LLaMA: train a new model, or give num_upper_layers, of "
                "layers whose keys and values are other than the LLaMA's at once"
            )
        return {}

    @classmethod
    def connection(cls, config: MidpointConfig, layer_idx: int, sub_layer: SubLayer) -> Connection:
        if sub_layer == "attention" and layer_idx >= config.midpoint:
            return MidpointConnection()
        if sub_layer == "mlp" and layer_idx + 1 == config.midpoint < config.num_hidden_layers:
            return KeepMidpoint()
        return Connection()


declare("midpoint", MidpointConfig, Midpoint)
