"""LIMe, equation (2): [K~; V~]_l = W_l [slot_0; ...; slot_l], one head at a time."""

import torch

from literal import parts

CASES = {
    "lime-mha": {"num_key_value_heads": 4},
    "lime-average": {"router": "average"},
    "lime-last-2": {"router": "last", "router_window": 2},
    "lime-first-1": {"router": "first", "router_window": 1},
    "lime-separate": {"router_shares_kv": False},
    "lime-value-residual": {"router_shares_kv": False, "router_init": "value_residual"},
    "lime-of-heads": {"router_shares_kv": False, "router_grain": "head"},
    "lime-of-layers": {"router_grain": "layer"},
    "lime-of-layers-separate": {"router_shares_kv": False, "router_grain": "layer"},
    "lime-chosen": {"router_sources": [[], [0], [], [0, 2]]},
    "lime-half": {"storage": "half", "router_shares_kv": False, "router_init": "value_residual"},
    "lime-half-mixed": {"storage": "half", "upper": "mix"},
    "lime-lowest-mixed": {
        "storage": 2,
        "upper": "mix",
        "router_shares_kv": False,
        "router_grain": "layer",
    },
    "lime-lent": {"storage": [0, 1], "borrow_from": [1, 0]},
    "lime-lent-heads": {
        "storage": [0, 2],
        "borrow_heads": [[[0, 1, 0, 1], [0, 0, 0, 1]], [[2, 0, 0, 1], [0, 1, 2, 0]]],
    },
}

PLAIN = [
    {"router_init": "identity", "router_shares_kv": False},
    {"router_init": "identity", "router_grain": "head"},
    {"router_init": "identity", "router_shares_kv": False, "router_grain": "layer"},
]


def logits(model, ids):
    # What each storage layer attends to, before rope, for layers that borrow.
    lent = {}

    def of_layer(layer, query, slots):
        if not layer.lenders:
            routed = read(layer, query, slots)
            lent[layer.layer_idx] = routed
        elif model.config.borrow_heads is not None:
            # Layers 1 and 3 are those that store nothing.
            heads = model.config.borrow_heads[(layer.layer_idx - 1) // 2]
            routed = tuple(
                torch.stack(
                    [lent[head[2 * part]][part][:, head[2 * part + 1]] for head in heads], 1
                )
                for part in (0, 1)
            )
        elif model.config.upper == "borrow":
            (lender,) = layer.lenders
            routed = lent[lender]
        else:
            routed = read(layer, query, lent)
        return routed

    return parts.residual_logits(model, ids, of_layer)


def read(layer, query, slots):
    if layer.layer_idx == 0:
        return slots[0]
    router = layer.self_attn.memory
    heads, config = slots[0][0].shape[1], layer.self_attn.config
    routed = []
    for part in (0, 1):
        # One weight for keys and values, or one for each.
        weight = router.weight
        if part == 1 and not config.router_shares_kv:
            weight = router.value_weight
        out = torch.zeros_like(slots[0][part])
        for h in range(heads):
            for s, source in enumerate(router.sources):
                match config.router_grain:
                    case "pair":
                        for g in range(heads):
                            out[:, h] += weight[h, s * heads + g] * slots[source][part][:, g]
                    case "head":
                        out[:, h] += weight[h, s] * slots[source][part][:, h]
                    case "layer":
                        out[:, h] += weight[0, s] * slots[source][part][:, h]
        routed.append(out)
    return tuple(routed)
