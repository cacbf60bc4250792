"""MUDD: X^c = sum over j of A[c, j] X_j, A = GELU(RMSNorm(X_i) W1) W2 + a, one source at a time."""

import torch

from literal import parts

INPUTS = ("query", "key", "value")
FEW = {"mixing_layers": 2, "mixing_ways": ["value", "residual"], "mixing_sources": [0, 2]}
CASES = {"mudd-pre-post": {"pre_post_norm": True}, "mudd-few": FEW}
PLAIN = [{"pre_post_norm": True}, FEW, {**FEW, "pre_post_norm": True}]


def logits(model, ids, memory=parts.own_slot):
    xs, slots = [parts.embed(model, ids)], []
    places = [layer.attn_connection.place for layer in model.model.layers]
    for i, layer in enumerate(model.model.layers):
        x = mixtures(model, places, i, xs)
        inputs = {way: parts.norm(layer.input_layernorm, x.get(way, xs[i])) for way in INPUTS}
        for part in {"key", "value"} & x.keys():
            inputs[part] = inputs[part] * getattr(layer.attn_connection.gains, part)
        query, key, value = parts.project(layer, *inputs.values())
        slots.append((key, value))
        u = x.get("residual", xs[i]) + parts.attend(
            model, layer, query, *memory(layer, query, slots)
        )
        xs.append(u + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, u)))
    places.append(model.model.stream.place)
    return parts.head(model, mixtures(model, places, len(xs) - 1, xs).get("residual", xs[-1]))


def mixtures(model, places, i, xs):
    """Return what each way that mixes reads after i layers."""
    config, place = model.config, places[i]
    layers, given = config.num_hidden_layers, config.mixing_sources
    if i <= layers - (config.mixing_layers or layers):
        return {}
    ways = ["residual"]
    if i < layers:
        # Of a layer without keys or values there are no ways for them.
        attention = model.model.layers[i].self_attn
        has = [part for part in ("key", "value") if hasattr(attention, f"{part[0]}_proj")]
        ways = ["query", *has, "residual"]
    ways = [way for way in ways if way in (config.mixing_ways or ways)]
    if not ways:
        return {}
    sources = [j for j in range(i + 1) if given is None or j in given or j == i]
    h = parts.scale_to_unit(xs[i], config.rms_norm_eps) @ place.weights.inner.T
    h = h * 0.5 * (1 + torch.erf(h / 2**0.5))
    out = {}
    for c, way in enumerate(ways):
        total = 0
        for s, j in enumerate(sources):
            a = h @ place.weights.outer[c * len(sources) + s] + place.weights.static[c, s]
            source = xs[j]
            if config.pre_post_norm:
                source = parts.norm(places[j].source_norm, xs[j])
            total = total + a[..., None] * source
        if config.pre_post_norm:
            total = xs[i] + parts.norm(place.mixture_norms[c], total)
        out[way] = total
    return out
