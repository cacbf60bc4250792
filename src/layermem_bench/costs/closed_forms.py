"""Parameters and FLOPs in closed form, of one sequence in two ways of counting, and of whole runs.

    FLOPs of             a multiply-add of linear    a multiply-add of    keys counted for
                         layers and routers          attention            a query
    counting="honest"    2                           2                    those it can attend to
    counting="paper"     1                           2                    all

"paper" is what fvcore counts on a traced graph (the paper's Table 8). It mixes two units, and so
understates the share of the routers. Both count the output head, and neither counts norms, rope,
the softmax and embedding look-ups. A training step counts as three forwards.

Neither torch nor transformers is imported, so that presets are listed at once.
"""

from dataclasses import dataclass
from typing import get_args

from layermem_bench.config.counting import (
    Additions,
    Sizes,
    count_forward_flops,
    count_parameters,
    plain_sizes,
)
from layermem_bench.config.run import Run
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.costs.result import Cost, Counting

COUNTINGS: tuple[Counting, ...] = get_args(Counting)


def cost(
    config: Sizes, variant: Additions | None, tokens: int, counting: Counting = "honest"
) -> Cost:
    """Count parameters and FLOPs of a model of this config on one sequence of ``tokens``.

    ``variant`` None: the plain decoder.
    """
    # layermem_bench.config.counting counts two FLOPs a multiply-add and attention to all keys.
    total = count_forward_flops(config, variant, tokens)
    attention = total - count_forward_flops(config, variant, 0)
    if counting == "honest":
        per_token = total - attention + attention * (tokens + 1) / (2 * tokens)
    else:
        per_token = (total - attention) / 2 + attention
    forward = per_token * tokens
    return Cost(parameters=count_parameters(config, variant), forward=forward, training=3 * forward)


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """What a whole run costs."""

    parameters: int
    """Trainable parameters."""
    tokens: float
    """Tokens that it trains on."""
    flops: float
    """FLOPs of all training steps."""


def run_cost(run: Run, config: Sizes | None = None, variant: Additions | None = None) -> RunCost:
    """Return what a run costs, by default as the plain decoder; ``config`` has a variant's sizes.

    A sequence has as many tokens as the mean.
    """
    fields, length = model_sizes(run)
    tokens = max(1, round(length))
    step = cost(config or plain_sizes(fields), variant, tokens)
    trained_on = run.max_steps * run.optim.batch_size * length
    return RunCost(
        parameters=step.parameters, tokens=trained_on, flops=trained_on * step.training / tokens
    )
