"""The rows of metrics.jsonl: what a training step and a validation record."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from layermem.models.lime_router import LimeRouter
from layermem.models.routers import router_metrics
from layermem_bench.config.counting import count_forward_flops
from layermem_bench.config.devices import peak_flops_of
from layermem_bench.run.optimizer import DECAYED, PLAIN, is_ours

# How the groups of LIMe's routers are named, beside which a pair has others.
_ROUTER = LimeRouter.__name__


def peak_flops(device: torch.device) -> float | None:
    """Return the peak FLOPs per second of a device, or None where no data sheet is listed."""
    if device.type != "cuda":
        return None
    return peak_flops_of(torch.cuda.get_device_name(device))


def variant_metrics(model: Any) -> dict[str, float]:
    """Return what a variant computes from its own parameters, or what attached routers are like."""
    compute = model.variant.metrics if is_ours(model) else router_metrics
    return dict(compute(model))


def training_row(loss: float, grad_norm: float, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of training; ``rates``: the learning rate of each parameter group."""
    overridden = [rate for name, rate in rates.items() if name not in (DECAYED, PLAIN)]
    # Where nothing else is trained, the rate is that of what the variant has added.
    rate = rates[DECAYED] if DECAYED in rates else overridden[0]
    of_routers = (rate for name, rate in rates.items() if name.startswith(_ROUTER))
    router_lr = next(of_routers, overridden[0] if overridden else rate)
    return {"loss": loss, "lr": rate, "grad_norm": grad_norm, "router_lr": router_lr}


def validation_row(loss: float) -> dict[str, float]:
    """Return the metrics of a validation; an overflowing perplexity is cut at e to the 700."""
    return {"val_loss": loss, "val_perplexity": math.exp(min(loss, 700.0))}


class Speed:
    """Measures the speed of training steps since a given step; other work pauses it."""

    def __init__(self, model: Any, batch: int, length: float, peak: float | None) -> None:
        """``length``: the mean tokens of a sequence; ``peak``: the FLOPs that all devices of the
        run can compute in a second."""
        self.tokens, self._peak = batch * length, peak
        # A backward has the FLOPs of two forwards. Of models of transformers none are counted.
        self._flops = 0
        if is_ours(model):
            self._flops = 3 * count_forward_flops(model.config, model.variant, round(length))
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

    def row(self, step: int) -> dict[str, float]:
        """Return the FLOPs of all steps up to ``step``, which is done now, and the mean speed."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        tokens_per_second = (step - self._first_step) / seconds * self.tokens
        row = {"tokens_per_second": tokens_per_second}
        if self._flops:
            row["flops"] = round(step * self.tokens * self._flops)
        if self._flops and self._peak:
            row["model_flops_use"] = tokens_per_second * self._flops / self._peak
        return row
