"""Value residual: V~_l = l1 V_0 + l2 V_l and its forms, one layer and token at a time."""

import torch

from literal import parts

CASES = {
    "value_residual-last_layers": {"last_layers": 2, "first_weight": 0.7, "own_weight": 0.2},
    "value_residual-learnable": {"form": "learnable"},
    "value_residual-dense": {"form": "dense", "first_weight": 0.3},
    "value_residual-gated": {"form": "gated", "first_weight": 0.3},
    "value_residual-svformer": {"form": "svformer"},
}
PLAIN = [
    {"form": form, "first_weight": 0.0, "own_weight": 1.0}
    for form in ("constant", "dense", "gated")
]


def read(layer, query, slots):
    """Key and value of a layer of a pair, in every form but svformer."""
    key, value = slots[-1]
    mixed = torch.zeros_like(value)
    for t in range(value.shape[2]):
        for weight, (_, source) in zip(weights(layer, query[:, :, t]), slots, strict=True):
            mixed[:, :, t] += weight * source[:, :, t]
    return key, mixed


def logits(model, ids):
    config = model.config
    x, values = parts.embed(model, ids), []
    for layer in model.model.layers:
        normed = parts.norm(layer.input_layernorm, x)
        attention = layer.self_attn
        query = split(normed @ attention.q_proj.weight.T, attention)
        key = split(normed @ attention.k_proj.weight.T, attention)
        if layer.layer_idx and config.form == "svformer":
            mixed = values[0]
        else:
            values.append(split(normed @ attention.v_proj.weight.T, attention))
            mixed = torch.zeros_like(values[-1])
            for t in range(ids.shape[1]):
                for weight, value in zip(weights(layer, query[:, :, t]), values, strict=True):
                    mixed[:, :, t] += weight * value[:, :, t]
        x = x + parts.attend(model, layer, query, key, mixed)
        x = x + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
    return parts.head(model, x)


def split(x, attention):
    return x.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)


def weights(layer, query):
    """Return a weight for the values of every layer so far, the own ones last, at one token.

    ``query`` [B, H, E] is that of the token.
    """
    config, n = layer.self_attn.config, layer.layer_idx
    if n == 0 or n < config.num_hidden_layers - (config.last_layers or config.num_hidden_layers):
        return [*[0.0] * n, 1.0]
    if config.form == "dense":
        return list(layer.self_attn.memory.weight)
    if config.form == "learnable":
        first, own = layer.self_attn.memory.weight
    elif config.form == "gated":
        gate = layer.self_attn.memory.gate
        # One number a head, [B, G, 1].
        moved = (query.flatten(1) @ gate.weight.T + gate.bias).sigmoid()[..., None] - 0.5
        first, own = config.first_weight + moved, config.own_weight - moved
    else:
        first, own = config.first_weight, config.own_weight
    return [first, *[0.0] * (n - 1), own]
