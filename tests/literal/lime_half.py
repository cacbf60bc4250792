"""LIMe with half of its cache: layers between storage layers attend to what the lower one does."""

from functools import partial

from literal import lime, parts

CASES = {
    "lime_half-recipe": {
        "router_shares_kv": False,
        "router_init": "value_residual",
        "router_grain": "layer",
    },
    "lime_half-lowest": {"storage": 2, "router_shares_kv": False},
    "lime_half-chosen": {"storage": [0, 1, 3], "router_sources": [[], [0], [], [1]]},
}


def logits(model, ids):
    return parts.residual_logits(model, ids, partial(read, {}))


def read(lent, layer, query, slots):
    """Return what a layer attends to, which ``lent`` keeps for the layers that borrow it."""
    lender, *_ = *layer.lenders, layer.layer_idx
    if not layer.lenders:
        lent[lender] = lime.read(layer, query, slots)
    return lent[lender]
