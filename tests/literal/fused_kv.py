"""FusedKV: upper layers attend to mixtures by channel of keys and values of two lower layers."""

import torch

from literal import parts

CASES = {
    "fused_kv-lite": {"fusion": "lite"},
    "fused_kv-1": {"num_kv_shared_layers": 1},
}


def logits(model, ids):
    return parts.residual_logits(model, ids, read)


def read(layer, query, slots):
    config = layer.self_attn.config
    shared = config.num_kv_shared_layers
    last = config.num_hidden_layers - (2 if shared is None else shared) - 1
    if layer.layer_idx <= last:
        return slots[-1]
    (low_key, low_value), (key, value) = slots[0], slots[last]
    if config.fusion == "lite":
        return key, low_value
    memory, width = layer.self_attn.memory, config.head_dim
    mixed_key, mixed_value = torch.zeros_like(key), torch.zeros_like(value)
    for head in range(config.num_key_value_heads):
        for e in range(width):
            # Both channels that rope rotates have one weight, so that it may follow the mixture.
            a, b = memory.key_weight[:, head, 0, e % (width // 2)]
            mixed_key[:, head, :, e] = a * low_key[:, head, :, e] + b * key[:, head, :, e]
            a, b = memory.value_weight[:, head, 0, e]
            mixed_value[:, head, :, e] = a * low_value[:, head, :, e] + b * value[:, head, :, e]
    return mixed_key, mixed_value
