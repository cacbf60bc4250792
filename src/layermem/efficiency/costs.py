"""Parameters and FLOPs in closed form, counted honestly and as the paper counts.

    counting    multiply-add of linear layers and routers    of attention    keys of a query
    honest      2                                            2               those it may see
    paper       1                                            2               all

The paper's is fvcore's on a traced graph (its Table 8): it mixes two units, and so understates what
routers cost. The head is counted by both; norms, rope, softmax, embedding look-ups by neither. A
training step is three forwards.

It does not know: time, devices, any particular variant.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from layermem.models.configuration import DecoderConfig
from layermem.models.counting import forward_flops, parameters
from layermem.models.registry import lookup
from layermem.models.seams import Variant
from layermem.results.costs import Cost, Counting

COUNTINGS: tuple[Counting, ...] = get_args(Counting)


def cost(
    config: DecoderConfig, variant: type[Variant[Any]], tokens: int, counting: Counting = "honest"
) -> Cost:
    """Count a model of this config on one sequence of ``tokens``."""
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    # Two a multiply-add, attention to all keys: what models.counting says.
    whole = forward_flops(config, variant, tokens)
    attention = whole - forward_flops(config, variant, 0)
    if counting == "honest":
        per_token = whole - attention + attention * (tokens + 1) / (2 * tokens)
    else:
        per_token = (whole - attention) / 2 + attention
    forward = per_token * tokens
    return Cost(parameters=parameters(config, variant), forward=forward, training=3 * forward)


def costs(
    names: Sequence[str], fields: Mapping[str, object], tokens: int, counting: Counting = "honest"
) -> dict[str, Cost]:
    """Count variants at the same sizes (fields of the config)."""
    found = {}
    for name in names:
        entry = lookup(name)
        found[name] = cost(entry.config(**fields), entry.variant, tokens, counting)
    return found
