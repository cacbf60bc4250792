"""The modules of a LLaMA layer: norm, rotary embedding, mlp, and the call of attention.

Letters: B batch, T tokens, D width, H query heads, G key-value heads, E head width.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import initialization
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from layermem.models.configuration import DecoderConfig
from layermem.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square norm: scale to unit mean square, times a learned weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class RotaryEmbedding(nn.Module):
    """Cosines and sines of the positions, for every rope type that transformers has.

    Its frequencies stay in float32 where the model is cast (``model.bfloat16()``): rounded to
    half precision they would turn by whole radians more or less at positions beyond some hundred.
    """

    inv_freq: Tensor
    original_inv_freq: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        # `dynamic_rope_update` and transformers' initialisation read attributes of these names.
        self.config = config
        self.rope_type = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        inv_freq, self.attention_scaling = self._frequencies()
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("original_inv_freq", inv_freq.clone(), persistent=False)

    def _frequencies(self) -> tuple[Tensor, float]:
        init = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        return init(self.config, None)

    @staticmethod
    def compute_default_rope_parameters(
        config: DecoderConfig, device: torch.device | None = None, **_: Any
    ) -> tuple[Tensor, float]:
        """Return the unscaled inverse frequencies [E / 2] and a factor of one."""
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float, device=device)
        return 1.0 / config.rope_parameters["rope_theta"] ** (steps / config.head_dim), 1.0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is None or new is None:
                continue
            if old.is_meta and not new.is_meta:
                # Of `to_empty`: no checkpoint has them.
                self._buffers[name] = self._frequencies()[0].to(new.device)
            elif new.dtype != old.dtype and not old.is_meta:
                self._buffers[name] = old.to(new.device)
        return self

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        # Angles in float32: bfloat16 cannot tell positions beyond 256 apart.
        angles = position_ids[..., None].float() * self.inv_freq.to(x.device, torch.float32)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class HeadwiseLinear(nn.Linear):
    """A projection that may have one input for each head, instead of one for all.

    Where there is one for each, head h is ``weight[h E : (h + 1) E]`` times the input h.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, G E] from [B, T, D] or [G, B, T, D]."""
        if x.ndim == 3:
            return super().forward(x)
        if len(self.weight) != self.out_features:
            raise NotImplementedError(
                f"expected the whole weight, of {self.out_features} rows, for inputs of "
                f"{len(x)} heads, got {len(self.weight)} rows: tensor parallelism is not supported "
                "here without gradients; load the model without a tp_plan"
            )
        weights = self.weight.chunk(len(x))
        biases = [None] * len(x) if self.bias is None else self.bias.chunk(len(x))
        return torch.cat(list(map(nn.functional.linear, x, weights, biases)), dim=-1)


class AbsentLinear(nn.Module):
    """Stands where a layer has no projection: returns zeros, which take no memory.

    It draws the random numbers that the projection would, so that all other weights of a seed are
    those of a model that has it.
    """

    held: Tensor

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        # The constructor of a linear layer draws too; transformers may have told it not to.
        nn.Linear(in_features, out_features, bias=bias)
        # transformers does not initialise a module that holds no tensor.
        self.register_buffer("held", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(()).expand(*x.shape[:-1], self.out_features)

    def draw(self, std: float) -> None:
        """Advance torch's random state as initialising the weight would."""
        initialization.zeros_(self.held)
        torch.empty(self.out_features, self.in_features).normal_(std=std)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class MLP(nn.Module):
    """SwiGLU: down(act(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention and return (output [B, T, H, E], attention weights [B, H, T, T'])."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for x in (key, value))
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    # The softmax is computed in float32 at least and rounded once.
    wide = torch.promote_types(query.dtype, torch.float32)
    weights = nn.functional.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights
