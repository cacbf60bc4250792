"""Depth attention: softmax over depth of queries with keys after rope, one token at a time."""

import torch

from literal import parts

CASES = {
    "depth_attention-stride-2": {"stride": 2, "gate": "layer"},
    "depth_attention-window-2": {"window": 2, "num_key_value_heads": 1},
    "depth_attention-raw": {"values": "raw", "gate": "head"},
}
PLAIN = [{"gate": "layer", "values": "raw"}]


def logits(model, ids):
    config = model.config
    x, keys, handed_on = parts.embed(model, ids), [], []
    for layer in model.model.layers:
        query, key, value = parts.project(layer, parts.norm(layer.input_layernorm, x))
        rotated_query, rotated_key = parts.rope(model, query), parts.rope(model, key)
        mixed = read(config, layer, rotated_query, [*keys, rotated_key], [*handed_on, value])
        keys.append(rotated_key)
        handed_on.append(mixed if config.values == "mixed" else value)
        x = x + parts.attend_rotated(layer, rotated_query, rotated_key, mixed)
        x = x + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
    return parts.head(model, x)


def read(config, layer, query, keys, values):
    """Return V~ of a layer from keys after rope and values of all layers so far."""
    n, own = layer.layer_idx, values[-1]
    read_layers = [
        j
        for j in range(n)
        if j % config.stride == 0 and (config.window is None or n - j < config.window)
    ]
    if not read_layers:
        return own
    read_layers.append(n)
    mixed = torch.zeros_like(own)
    batch, groups, tokens, width = own.shape
    share = query.shape[1] // groups
    for b in range(batch):
        for g in range(groups):
            for t in range(tokens):
                pooled = sum(query[b, g * share + i, t] for i in range(share)) / share
                scores = torch.stack([pooled @ keys[j][b, g, t] for j in read_layers])
                exponents = (scores / width**0.5).exp()
                for a, j in zip(exponents / exponents.sum(), read_layers, strict=True):
                    mixed[b, g, t] += a * values[j][b, g, t]
    if config.gate == "none":
        return mixed
    gated = own.clone()
    for g in range(groups):
        gate = layer.self_attn.memory.gate[g if config.gate == "head" else 0]
        gated[:, g] += gate * (mixed[:, g] - own[:, g])
    return gated
