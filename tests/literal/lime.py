"""LIMe, equation (2): [K~; V~]_l = W_l [slot_0; ...; slot_l], one head at a time."""

import torch

from literal import parts

CASES = {
    "lime-mha": {"num_key_value_heads": 4},
    "lime-average": {"router": "average"},
    "lime-last-2": {"router": "last", "router_window": 2},
    "lime-first-1": {"router": "first", "router_window": 1},
    "lime-separate": {"router_shares_kv": False},
    "lime-of-layers-separate": {"router_shares_kv": False, "router_grain": "layer"},
    "lime-chosen": {"router_sources": [[], [0], [], [0, 2]]},
}

PLAIN = [
    {"router_init": "identity", "router_shares_kv": False},
    {"router_init": "identity", "router_shares_kv": False, "router_grain": "layer"},
]


def logits(model, ids):
    return parts.residual_logits(model, ids, read)


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
                    case "layer":
                        out[:, h] += weight[0, s] * slots[source][part][:, h]
        routed.append(out)
    return tuple(routed)
