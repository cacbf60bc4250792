"""Parameters and FLOPs of models in closed form, in two ways of counting.

    FLOPs of             a multiply-add of linear    a multiply-add of    keys counted for
                         layers and routers          attention            a query
    counting="honest"    2                           2                    those it can attend to
    counting="paper"     1                           2                    all

"paper" is what fvcore counts on a traced graph (the paper's Table 8). It mixes two units, and so
understates the share of the routers. Both count the output head, and neither counts norms, rope,
the softmax and embedding look-ups. A training step counts as three forwards.
"""

from typing import get_args

from layermem_bench.config.counting import Additions, Sizes, count_forward_flops, count_parameters
from layermem_bench.results.costs import Cost, Counting

COUNTINGS: tuple[Counting, ...] = get_args(Counting)


def cost(
    config: Sizes, variant: Additions | None, tokens: int, counting: Counting = "honest"
) -> Cost:
    """Count parameters and FLOPs of a model of this config on one sequence of ``tokens``.

    ``variant`` None: the plain decoder.
    """
    if counting not in COUNTINGS:
        raise ValueError(f"counting must be one of {', '.join(COUNTINGS)}, got {counting!r}")
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    # layermem_bench.config.counting counts two FLOPs a multiply-add and attention to all keys.
    total = count_forward_flops(config, variant, tokens)
    attention = total - count_forward_flops(config, variant, 0)
    if counting == "honest":
        per_token = total - attention + attention * (tokens + 1) / (2 * tokens)
    else:
        per_token = (total - attention) / 2 + attention
    forward = per_token * tokens
    return Cost(parameters=count_parameters(config, variant), forward=forward, training=3 * forward)
