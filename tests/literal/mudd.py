"""MUDD: X^c = sum over j of A[c, j] X_j, A = GELU(RMSNorm(X_i) W1) W2 + a, one source at a time."""

import torch

from literal import parts

CASES = {"mudd-pre-post": {"pre_post_norm": True}}
PLAIN = [{"pre_post_norm": True}]


def logits(model, ids, memory=parts.own_slot):
    xs, slots = [parts.embed(model, ids)], []
    places = [layer.attn_connection.place for layer in model.model.layers]
    for i, layer in enumerate(model.model.layers):
        weight = layer.input_layernorm.weight
        if i == 0:
            q = k = v = parts.norm(layer.input_layernorm, xs[0])
            r = xs[0]
        else:
            # Of a layer without keys or values there are no ways for them.
            projected = [n for n in ("key", "value") if hasattr(layer.self_attn, f"{n[0]}_proj")]
            ways = ["query", *projected, "residual"]
            x = {way: mixture(model, places, i, c, xs) for c, way in enumerate(ways)}
            eps, r = model.config.rms_norm_eps, x["residual"]
            q = parts.scale_to_unit(x["query"], eps) * weight
            k, v = (
                parts.scale_to_unit(x[part], eps)
                * weight
                * getattr(layer.attn_connection.gains, part)
                if part in projected
                else None
                for part in ("key", "value")
            )
        query, key, value = parts.project(layer, q, k, v)
        slots.append((key, value))
        u = r + parts.attend(model, layer, query, *memory(layer, query, slots))
        xs.append(u + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, u)))
    places.append(model.model.stream.place)
    return parts.head(model, mixture(model, places, len(xs) - 1, 0, xs))


def mixture(model, places, i, c, xs):
    place, eps = places[i], model.config.rms_norm_eps
    weights = place.weights
    h = parts.scale_to_unit(xs[i], eps) @ weights.inner.T
    h = h * 0.5 * (1 + torch.erf(h / 2**0.5))
    total = 0
    for j in range(i + 1):
        a = h @ weights.outer[c * (i + 1) + j] + weights.static[c, j]
        source = xs[j]
        if model.config.pre_post_norm:
            source = parts.norm(places[j].source_norm, xs[j])
        total = total + a[..., None] * source
    if model.config.pre_post_norm:
        return xs[i] + parts.norm(place.mixture_norms[c], total)
    return total
