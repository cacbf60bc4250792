"""YOCO: layers of the upper half attend to the keys and values of the layer before them."""

from literal import parts

CASES = {"yoco-3": {"num_kv_shared_layers": 3}}


def logits(model, ids):
    return parts.residual_logits(model, ids, read)


def read(layer, query, slots):
    layers, shared = len(slots), layer.self_attn.config.num_kv_shared_layers
    shared = layer.self_attn.config.num_hidden_layers // 2 if shared is None else shared
    last = layer.self_attn.config.num_hidden_layers - shared - 1
    return slots[min(layers - 1, last)]
