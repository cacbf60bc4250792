"""The rows of metrics.jsonl: what a training step and a validation record.

It does not know: the trainer, files, which metrics a variant adds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from layermem.train.optimizer import DECAYED, PLAIN


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """What one training step of a run processes and computes, which is the same for every step."""

    tokens: float
    """Tokens in a step, over all processes; a mean where sequences differ in length."""
    flops_per_token: float
    """FLOPs of the forward and the backward for a token."""
    peak_flops: float | None
    """FLOPs per second that all processes' devices can compute; None where it is not listed."""


def base_row(step: int, cost: StepCost) -> dict[str, float]:
    """Return what every row begins with: the step and the tokens so far."""
    return {"step": step, "tokens": round(step * cost.tokens)}


def training_row(
    logs: Mapping[str, float],
    learning_rates: Mapping[str, float],
    steps_per_second: float,
    step: int,
    cost: StepCost,
) -> dict[str, float]:
    """Return the metrics of training; ``learning_rates`` are those of the parameter groups."""
    tokens_per_second = steps_per_second * cost.tokens
    overridden = [rate for name, rate in learning_rates.items() if name not in (DECAYED, PLAIN)]
    row = {
        "loss": logs["loss"],
        # Where nothing else is trained, the rate is that of what the variant has added.
        "lr": learning_rates[DECAYED] if DECAYED in learning_rates else overridden[0],
        "grad_norm": logs.get("grad_norm", math.nan),
        "flops": round(step * cost.tokens * cost.flops_per_token),
        "tokens_per_second": tokens_per_second,
    }
    row["router_lr"] = overridden[0] if overridden else row["lr"]
    if cost.peak_flops:
        row["model_flops_use"] = tokens_per_second * cost.flops_per_token / cost.peak_flops
    return row


def validation_row(loss: float) -> dict[str, float]:
    """Return the metrics of a validation; an overflowing perplexity is cut at e to the 700."""
    return {"val_loss": loss, "val_perplexity": math.exp(min(loss, 700.0))}
