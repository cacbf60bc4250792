"""LIMe on hidden states: mixtures over depth of normed states, one head and layer at a time."""

import torch

from literal import parts

CASES = {
    "lime_hidden-dynamic": {"form": "dynamic"},
    "lime_hidden-gate": {"gate": True, "num_key_value_heads": 1},
}
PLAIN = [{"form": "dynamic", "gate": True}]


def logits(model, ids):
    x, states = parts.embed(model, ids), []
    for layer in model.model.layers:
        attention = layer.self_attn
        states.append(parts.norm(layer.input_layernorm, x))
        query = (states[-1] @ attention.q_proj.weight.T).unflatten(-1, (-1, attention.head_dim))
        key = project(model, layer, states, attention.k_proj.weight)
        value = project(model, layer, states, attention.v_proj.weight)
        x = x + parts.attend(model, layer, query.transpose(1, 2), key, value)
        x = x + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
    return parts.head(model, x)


def project(model, layer, states, weight):
    """Return keys or values [B, G, T, E], each head from its own mixture."""
    width = layer.self_attn.head_dim
    heads = []
    for h in range(len(weight) // width):
        mixture = torch.zeros_like(states[-1])
        for a, state in zip(weights(model, layer, h, states), states, strict=True):
            mixture += a * state
        heads.append(mixture @ weight[h * width : (h + 1) * width].T)
    return torch.stack(heads, dim=1)


def weights(model, layer, h, states):
    """Return a weight for every layer so far, a number or one for each token."""
    count, config = len(states), model.config
    if count == 1:
        return [1.0]
    own = layer.attn_connection.weights
    if config.form == "static":
        scores = [own.logits[h, j] for j in range(count)]
    else:
        scores = [(states[-1] * own.projection[h * count + j]).sum(-1, True) for j in range(count)]
    exponents = [score.exp() for score in scores]
    shares = [exponent / sum(exponents) for exponent in exponents]
    if config.gate:
        gate = own.gate[h]
        shares = [gate * share for share in shares]
        shares[-1] = shares[-1] + 1 - gate
    return shares
