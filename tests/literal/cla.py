"""CLA: K~_l, V~_l = K_s, V_s of the lowest layer of a group, or of the one that a list names."""

from literal import parts

CASES = {
    "cla-of-3": {"sharing": 3},
    "cla-listed": {"kv_source_layers": [0, 1, 1, 0]},
}

PLAIN = [{"kv_source_layers": [0, 1, 2, 3]}]


def logits(model, ids):
    return parts.residual_logits(model, ids, read)


def read(layer, query, slots):
    config = layer.self_attn.config
    if config.kv_source_layers is None:
        return slots[layer.layer_idx // config.sharing * config.sharing]
    return slots[config.kv_source_layers[layer.layer_idx]]
