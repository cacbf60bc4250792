"""LIMe as its released code computes it, from the weights under that code's names.

One joint projection of keys and values, [2 E G, D], whose row f G + g is feature f of head g: the
first E features are the key's, the others the value's. A buffer has a row for each head of each
layer so far, and the router mixes rows.
"""

from types import SimpleNamespace

import torch

from literal import parts


def logits(config, weights, ids):
    """Return the logits [B, T, vocabulary] of a LLaMA's config and the code's weights by name."""
    heads, width, eps = config.num_key_value_heads, config.head_dim, config.rms_norm_eps
    x, buffer = weights["model.embed_tokens.weight"][ids], []

    def norm(name, x):
        return parts.scale_to_unit(x, eps) * weights[name]

    def linear(name):
        return SimpleNamespace(weight=weights[name])

    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."
        normed = norm(at + "input_layernorm.weight", x)
        query = normed @ weights[at + "self_attn.q_proj.weight"].T
        query = query.unflatten(-1, (-1, width)).transpose(1, 2)
        joint = normed @ weights[at + "self_attn.kv_proj_weight"].T
        for g in range(heads):
            features = [joint[..., f * heads + g] for f in range(2 * width)]
            buffer.append(torch.stack(features, dim=-1))
        rows = buffer[:heads]
        if i:
            router = weights[at + "self_attn.lime_router.static_weights"]
            rows = [sum(router[h, j] * row for j, row in enumerate(buffer)) for h in range(heads)]
        key = torch.stack([row[..., :width] for row in rows], dim=1)
        value = torch.stack([row[..., width:] for row in rows], dim=1)
        names = ("gate_proj", "up_proj", "down_proj")
        layer = SimpleNamespace(
            self_attn=SimpleNamespace(o_proj=linear(at + "self_attn.o_proj.weight")),
            mlp=SimpleNamespace(**{name: linear(f"{at}mlp.{name}.weight") for name in names}),
        )
        x = x + parts.attend(SimpleNamespace(config=config), layer, query, key, value)
        x = x + parts.mlp(layer, norm(at + "post_attention_layernorm.weight", x))
    return norm("model.norm.weight", x) @ weights["lm_head.weight"].T
