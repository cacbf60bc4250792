"""LIMe, layer-integrated memory: attention reads keys and values of every earlier layer.

The mechanism: at layer l, a router W in R^{R x SR} computes a weighted sum of the slots of its S
source layers, the own one last, before rope and with one weight for keys and values:

    [K~; V~]_l = W_l [slot_0; ...; slot_l]                                      (equation (2))

``LimeRouter`` computes it, and has the table of initial weights. The paper's ablations are values
of ``LimeConfig.router``. The rest is not in the paper: with ``router_shares_kv=False`` keys and
values have a W each, and with ``router_grain="layer"`` W has a number for each source layer.

Letters: R key-value heads, S source layers, E head width.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from torch import nn

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.lime_router import Grain, LimeRouter, check_sources
from layermem.models.registry import declare
from layermem.models.routers import RouterMethods, router_metrics
from layermem.models.seams import Memory, OwnLayerMemory, ParameterOverride, Variant
from layermem.models.sharded_routers import ROUTED_HEADS
from layermem_base.number_ranges import at_least, number

RECIPE: Mapping[str, Any] = MappingProxyType(
    {"router_shares_kv": False, "router_init": "value_residual", "router_grain": "layer"}
)
"""The fields that docs/recipe.md advises; the defaults are the paper's."""


@strict
class LimeConfig(DecoderConfig):
    """The fields of a LLaMA, and those of the routers."""

    local_heads_tp_plan = ROUTED_HEADS

    router: Literal["full", "average", "last", "first"] = "full"
    """Source layers: "full" all; "average" all, with constant weights; "last" the last few, own
    included; "first" the first few, the preceding and the own."""
    router_window: int | None = number(None, at_least(1))
    """How many these are."""
    router_init: Literal["paper", "identity", "value_residual"] = "paper"
    """Initial weights: "paper" random on earlier layers; "identity" zero, as the plain decoder;
    "value_residual" values half of the own and half of the first layer."""
    router_sources: list[list[int]] | None = number(None, at_least(0))
    """The earlier layers that each layer reads, set by ``prune_routers``; None: by ``router``."""
    router_shares_kv: bool = True
    """Whether keys and values have one router, or each its own."""
    router_grain: Grain = "pair"
    """For what a router has a number: each "pair" of heads, or each source "layer" as a whole."""

    def validate_router(self) -> None:
        """Raise ``ValueError`` unless the fields of the routers fit each other."""
        windowed, average = self.router in ("last", "first"), self.router == "average"
        by_hand = self.router_init == "value_residual"
        for name, fits, rule in (
            ("router_window", windowed == (self.router_window is not None), '"last" and "first"'),
            ("router_grain", not average or self.router_grain == "pair", "learned weights"),
            ("router_shares_kv", not average or self.router_shares_kv, "learned weights"),
            ("router_init", not by_hand or self.router != "last", '"full" and "first"'),
            ("router_init", not (by_hand and self.router_shares_kv), "(router_)shares_kv=False"),
        ):
            if not fits:
                value = getattr(self, name)
                raise ValueError(f'{name} is for {rule}, got {value!r} and router="{self.router}"')
        if self.router_sources is not None:
            check_sources(self.router_sources, self.num_hidden_layers)


ConfigT = TypeVar("ConfigT", bound=LimeConfig)


class Lime(Variant[ConfigT]):
    """Differences from the plain decoder:

    * memory: every layer but the first routes over depth (``LimeRouter``);
    * optimiser: routers have learning rate 1e-2 and no weight decay.
    """

    source = "2502.09245"
    overrides = (ParameterOverride(module=LimeRouter, lr=1e-2, weight_decay=0.0),)
    plain_fields: ClassVar[Mapping[str, Any] | None] = {"router_init": "identity"}

    @classmethod
    def sources(cls, config: ConfigT, layer_idx: int) -> tuple[int, ...]:
        if config.router_sources is not None:
            return tuple(config.router_sources[layer_idx])
        earlier, window = range(layer_idx), config.router_window or 0
        if config.router == "last":
            return tuple(earlier[max(0, layer_idx + 1 - window) :])
        if config.router == "first":
            return tuple(sorted({*earlier[:window], *earlier[-1:]}))
        return tuple(earlier)

    @classmethod
    def memory(cls, config: ConfigT, layer_idx: int) -> Memory:
        if layer_idx == 0:
            return OwnLayerMemory()
        sources = (*cls.sources(config, layer_idx), layer_idx)
        return cls.router(config, config.num_key_value_heads, sources)

    @classmethod
    def router(cls, config: ConfigT, heads: int, sources: Sequence[int]) -> LimeRouter:
        """Return the router of a layer, the last of ``sources``, of as many heads."""
        init = "average" if config.router == "average" else config.router_init
        shares_kv, grain = config.router_shares_kv, config.router_grain
        return LimeRouter(heads, sources, init=init, grain=grain, shares_kv=shares_kv)

    @classmethod
    def extra_parameters(cls, config: ConfigT) -> int:
        """Return R x SR, or S by a number a layer, of all routers; twice that of two for each."""
        if config.router == "average":
            return 0
        of_source = config.num_key_value_heads**2 if config.router_grain == "pair" else 1
        return (1 if config.router_shares_kv else 2) * of_source * cls.count_sources(config)

    @classmethod
    def extra_flops(cls, config: ConfigT) -> int:
        """Return 4 E for each pair of heads at each source, or, by a number a layer, each head."""
        heads = config.num_key_value_heads
        products = heads if config.router_grain == "layer" else heads**2
        return 4 * config.head_dim * products * cls.count_sources(config)

    @classmethod
    def extra_saved(cls, config: ConfigT) -> int | None:
        """Return a key and a value of each layer but the first value, which attention keeps."""
        if (config.router, config.router_sources) != ("full", None):
            return None
        layers = config.num_hidden_layers
        # One layer alone has nothing to route.
        return (2 * layers - 1) * config.num_key_value_heads * config.head_dim * (layers > 1)

    @classmethod
    def metrics(cls, model: nn.Module) -> dict[str, float]:
        return router_metrics(model)

    @classmethod
    def count_sources(cls, config: ConfigT) -> int:
        """Return how many sources all routers have together."""
        return sum(1 + len(cls.sources(config, i)) for i in range(1, config.num_hidden_layers))


declare("lime", LimeConfig, Lime, base=RouterMethods)

if TYPE_CHECKING:
    # For type checkers: the classes that the declaration makes.
    class LimeModel(RouterMethods, Decoder): ...

    class LimeForCausalLM(RouterMethods, DecoderForCausalLM): ...
