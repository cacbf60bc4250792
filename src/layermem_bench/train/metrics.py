"""The rows of metrics.jsonl: what a training step and a validation record.

Letters: H query heads, E head width, T tokens, L layers.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from layermem.models.lime_router import LimeRouter
from layermem.models.routers import router_metrics
from layermem_bench.config.counting import count_forward_flops
from layermem_bench.config.devices import peak_flops_of
from layermem_bench.train.optimizer import DECAYED, PLAIN, is_ours

# How the groups of LIMe's routers are named, beside which a pair has others.
_ROUTER = LimeRouter.__name__


def peak_flops(device: torch.device) -> float | None:
    """Return the peak FLOPs per second of a device, or None where no data sheet is listed."""
    if device.type != "cuda":
        return None
    return peak_flops_of(torch.cuda.get_device_name(device))


def forward_flops(model: Any, tokens: int) -> int:
    """Count the forward FLOPs of one token in a sequence of ``tokens``.

    Of a model of transformers: two for each weight of a linear layer and of the experts that a
    token is sent to, two for each product of a router with a number of a key or a value, and
    4 H E T L for attention to all keys. Norms, rope, activations and the choice of experts do not
    count.
    """
    if is_ours(model):
        return count_forward_flops(model.config, model.variant, tokens)
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    products = sum(count for _, count in _products(model))
    return 2 * products + 4 * heads * _head_width(config) * tokens * int(config.num_hidden_layers)


def training_flops(model: Any, tokens: int) -> int:
    """Count the FLOPs of a training step for one token in a sequence of ``tokens``.

    A backward has those of two forwards, less the gradients of weights that do not learn. The
    gradients of what enters them are counted down to the lowest layer, which a step does not
    compute below the lowest weight that learns.
    """
    frozen = sum(count for weight, count in _products(model) if not weight.requires_grad)
    return 3 * forward_flops(model, tokens) - 2 * frozen


def _products(model: Any) -> Iterator[tuple[Tensor, int]]:
    """Yield the weight of each module, and how many products a token has with it."""
    config = model.config.get_text_config()
    chosen = getattr(config, "num_experts_per_tok", None)
    for module in _of_text(model, config):
        if isinstance(module, (nn.Linear, Conv1D)):
            yield module.weight, module.weight.numel()
        elif isinstance(module, LimeRouter):
            # A number for each head is computed as one for each pair, with zeros.
            heads = module.num_heads ** (1 if module.grain == "layer" else 2)
            yield next(module.parameters()), 2 * len(module.sources) * heads * _head_width(config)
        elif chosen:
            # Weights of all experts of a layer are one parameter, [experts, out, in].
            stacked = (p for p in module.parameters(recurse=False) if p.dim() == 3)
            yield from ((weight, weight[0].numel() * chosen) for weight in stacked)


def _of_text(module: nn.Module, config: Any) -> Iterator[nn.Module]:
    """Yield the modules of a model, without towers of images and sounds, which no text enters."""
    yield module
    for child in module.children():
        of_child = child.config if isinstance(child, PreTrainedModel) else config
        # Encoders and decoders have a copy of it each.
        if type(of_child) is type(config) or of_child.get_text_config() is config:
            yield from _of_text(child, config)


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads)


def variant_metrics(model: Any) -> dict[str, float]:
    """Return what a variant computes from its own parameters, or what attached routers are like."""
    compute = model.variant.metrics if is_ours(model) else router_metrics
    return dict(compute(model))


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What every training step of a run processes and computes."""

    tokens: float
    """Tokens in a step, over all processes; a mean where sequences differ in length."""
    flops_per_token: float
    """FLOPs of the forward and the backward for a token."""
    peak_flops: float | None
    """FLOPs per second that all processes' devices can compute; None where it is not listed."""


def training_row(
    *,
    loss: float,
    grad_norm: float,
    learning_rates: Mapping[str, float],
    steps_per_second: float,
    step: int,
    cost: StepCost,
) -> dict[str, float]:
    """Return the metrics of training; ``learning_rates`` are those of the parameter groups."""
    tokens_per_second = steps_per_second * cost.tokens
    overridden = [rate for name, rate in learning_rates.items() if name not in (DECAYED, PLAIN)]
    row = {
        "loss": loss,
        # Where nothing else is trained, the rate is that of what the variant has added.
        "lr": learning_rates[DECAYED] if DECAYED in learning_rates else overridden[0],
        "grad_norm": grad_norm,
        "flops": round(step * cost.tokens * cost.flops_per_token),
        "tokens_per_second": tokens_per_second,
    }
    of_routers = (rate for name, rate in learning_rates.items() if name.startswith(_ROUTER))
    row["router_lr"] = next(of_routers, overridden[0] if overridden else row["lr"])
    if cost.peak_flops:
        row["model_flops_use"] = tokens_per_second * cost.flops_per_token / cost.peak_flops
    return row


def validation_row(loss: float) -> dict[str, float]:
    """Return the metrics of a validation; an overflowing perplexity is cut at e to the 700."""
    return {"val_loss": loss, "val_perplexity": math.exp(min(loss, 700.0))}


class StepTimer:
    """Measure the time of training steps since a given step; other work pauses the timer."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, step: int) -> None:
        """Measure from now on, ``step`` being the number of steps done so far."""
        self._first_step, self._started = step, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block, before which the device must have been waited for."""
        paused_at = time.perf_counter()
        yield
        self._started += time.perf_counter() - paused_at

    def steps_per_second(self, step: int) -> float:
        """Return the mean speed up to ``step``, the number of steps done now."""
        return (step - self._first_step) / max(time.perf_counter() - self._started, 1e-9)
