"""The parts of a LLaMA as equations, for all transcriptions; no padding, no cache.

Letters: B batch, T tokens, D width, H query heads, G key-value heads, E head width.
"""

import torch


def embed(model, ids):
    """Return the embeddings [B, T, D]."""
    return model.model.embed_tokens.weight[ids]


def scale_to_unit(x, eps):
    """Return x / sqrt(mean(x^2) + eps)."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def norm(module, x):
    """RMSNorm with the weight and eps of a module."""
    return scale_to_unit(x, module.eps) * module.weight


def project(layer, query_input, key_input=None, value_input=None):
    """Return q [B, H, T, E], k and v [B, G, T, E] of a layer's inputs, before rope.

    A layer without projections of its own has None in their place.
    """
    attention = layer.self_attn
    key_input = query_input if key_input is None else key_input
    value_input = query_input if value_input is None else value_input

    def heads(x, linear):
        if linear is None:
            return None
        y = x @ linear.weight.T
        return y.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    return (
        heads(query_input, attention.q_proj),
        heads(key_input, getattr(attention, "k_proj", None)),
        heads(value_input, getattr(attention, "v_proj", None)),
    )


def rope(model, x):
    """Rotate pairs (i, i + E / 2) of x [B, heads, T, E] by position * theta^(-2i / E)."""
    width = x.shape[-1]
    theta = model.config.rope_parameters["rope_theta"]
    out = torch.empty_like(x)
    for i in range(width // 2):
        # Frequencies and angles in float32, as every LLaMA has them.
        frequency = 1 / theta ** torch.tensor(2 * i / width, dtype=torch.float32)
        angles = torch.arange(x.shape[2], dtype=torch.float32) * frequency
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x[..., i], x[..., i + width // 2]
        out[..., i] = left * cos - right * sin
        out[..., i + width // 2] = right * cos + left * sin
    return out


def attend(model, layer, query, key, value):
    """Causal attention with keys and values before rope, and the output projection: [B, T, D]."""
    return attend_rotated(layer, rope(model, query), rope(model, key), value)


def attend_rotated(layer, query, key, value):
    """Causal attention with queries and keys after rope, and the output projection: [B, T, D]."""
    n_queries, n_keys, tokens = query.shape[1], key.shape[1], query.shape[2]
    outputs = []
    for head in range(n_queries):
        g = head // (n_queries // n_keys)
        scores = query[:, head] @ key[:, g].transpose(1, 2) / query.shape[-1] ** 0.5
        future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[:, g])
    return torch.cat(outputs, dim=-1) @ layer.self_attn.o_proj.weight.T


def mlp(layer, x):
    """SwiGLU of an input that is normed already."""
    gate, up, down = (
        linear.weight for linear in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    )
    gated = x @ gate.T
    return (gated * gated.sigmoid() * (x @ up.T)) @ down.T


def head(model, x):
    """The final norm and the projection to the vocabulary."""
    return norm(model.model.norm, x) @ model.lm_head.weight.T


def own_slot(layer, query, slots):
    """The plain decoder's memory: key and value of the own layer."""
    return slots[-1]


def residual_logits(model, ids, memory=own_slot):
    """Logits of a decoder with the plain residual stream.

    ``memory(layer, query, slots)`` returns the key and value to attend to, before rope, from those
    of all layers so far, the own ones last.
    """
    x, slots = embed(model, ids), []
    for layer in model.model.layers:
        query, key, value = project(layer, norm(layer.input_layernorm, x))
        slots.append((key, value))
        x = x + attend(model, layer, query, *memory(layer, query, slots))
        x = x + mlp(layer, norm(layer.post_attention_layernorm, x))
    return head(model, x)
