"""LAuReL: the residual is augmented by a product of two narrow learned matrices.

At a sub-layer F that reads x, with L in R^{r x D} and R in R^{D x r} of its own:

    low_rank    x <- x + F(norm(x)) + R L x                        attention and mlp
    gemma3n     h = norm(x)                                        attention alone
                x <- (x + F(h) + h + RMSNorm(R L h)) / sqrt(2)

Initial values, which are ours: L is N(0, 1 / D), and R is 0 in low_rank, which so begins as the
plain decoder, and N(0, 1 / r) in gemma3n, with a gain of the RMSNorm of 1.

Sources: arXiv 2411.07501, its form LR (low_rank), and Gemma 3n in transformers (gemma3n), whose
layers differ in more than this: among others F(h) is normed too.
"""

from typing import Any, Literal, final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization

from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import (
    Connection,
    Norm,
    ParameterOverride,
    State,
    SubLayer,
    Variant,
    draw,
)
from layermem.ops.norm import rms_norm
from layermem_base.number_ranges import at_least, number


@strict
class LaurelConfig(DecoderConfig):
    """The fields of a LLaMA, and the form and rank of the products."""

    laurel_form: Literal["low_rank", "gemma3n"] = "low_rank"
    """Form of the equations: "low_rank" the paper's, "gemma3n" that of Gemma 3n."""
    laurel_rank: int = number(64, at_least(1))
    """Rank r of the products."""


@final
class LowRank(nn.Module):
    """R L x, in Gemma's form normed; see above."""

    def __init__(self, config: LaurelConfig, connection: int) -> None:
        super().__init__()
        rank, width = config.laurel_rank, config.hidden_size
        self.connection, self.eps = connection, config.rms_norm_eps
        self.left = nn.Parameter(torch.empty(rank, width))
        self.right = nn.Parameter(torch.empty(width, rank))
        self.gain = nn.Parameter(torch.empty(width)) if config.laurel_form == "gemma3n" else None

    def forward(self, x: Tensor) -> Tensor:
        product = nn.functional.linear(nn.functional.linear(x, self.left), self.right)
        return product if self.gain is None else rms_norm(product, self.gain, self.eps)

    def reset_parameters(self) -> None:
        for name, matrix in (("left", self.left), ("right", self.right)):
            salt = f"laurel {self.connection} {name}"
            initialization.copy_(matrix, draw(matrix, matrix.shape[1] ** -0.5, salt))
        if self.gain is None:
            initialization.zeros_(self.right)
        else:
            initialization.ones_(self.gain)


@final
class LaurelConnection(Connection):
    """The residual, the sub-layer's output and the product."""

    def __init__(self, config: LaurelConfig, connection: int) -> None:
        super().__init__()
        self.low_rank = LowRank(config, connection)

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Any]:
        h = norm(state[0])
        return h, (state[0], h)

    def write(self, carry: Any, y: Tensor) -> State:
        x, h = carry
        if self.low_rank.gain is None:
            return (x + y + self.low_rank(x),)
        return ((x + y + h + self.low_rank(h)) / 2**0.5,)


@final
class Laurel(Variant[LaurelConfig]):
    """Differences from the plain decoder: what the connections add to the residual."""

    source = "2411.07501"
    released = ("Gemma 3n",)
    overrides = (ParameterOverride(module=LowRank),)
    plain_fields = {"laurel_form": "low_rank"}

    @classmethod
    def connection(cls, config: LaurelConfig, layer_idx: int, sub_layer: SubLayer) -> Connection:
        if sub_layer == "mlp" and config.laurel_form == "gemma3n":
            return Connection()
        return LaurelConnection(config, 2 * layer_idx + (sub_layer == "mlp"))

    @classmethod
    def extra_parameters(cls, config: LaurelConfig) -> int:
        """Return those of the products, and the gains of Gemma's form."""
        gains = config.num_hidden_layers * config.hidden_size * (config.laurel_form == "gemma3n")
        return cls.extra_flops(config) // 2 + gains

    @classmethod
    def extra_flops(cls, config: LaurelConfig) -> int:
        """Return 2 for each weight of the products, 2 r D at a connection."""
        connections = config.num_hidden_layers * (1 + (config.laurel_form == "low_rank"))
        return 2 * connections * 2 * config.laurel_rank * config.hidden_size


declare("laurel", LaurelConfig, Laurel)
