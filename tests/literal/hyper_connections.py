"""Hyper-Connections: [h; H'] = A^T H, H <- H' + B (x) F(norm(h)), one token at a time."""

import torch

from literal import parts

CASES = {
    "hyper_connections-static": {"coefficients": "static"},
}
PLAIN = [
    {"coefficients": "static", "streams": 3},
    {"streams": 1},
]


def logits(model, ids, memory=parts.own_slot):
    n = model.config.streams
    streams = parts.embed(model, ids)[:, :, None].repeat(1, 1, n, 1)
    slots = []
    for layer in model.model.layers:
        weights = coefficients(model, layer.attn_connection, streams)
        x = parts.norm(layer.input_layernorm, read(streams, weights))
        query, key, value = parts.project(layer, x)
        slots.append((key, value))
        y = parts.attend(model, layer, query, *memory(layer, query, slots))
        streams = write(streams, y, weights)

        weights = coefficients(model, layer.mlp_connection, streams)
        x = parts.norm(layer.post_attention_layernorm, read(streams, weights))
        streams = write(streams, parts.mlp(layer, x), weights)
    return parts.head(model, streams.sum(2) / n)


def coefficients(model, connection, streams):
    """Return {(b, t): (A [n, 1 + n], B [n])}."""
    n, weights, out = model.config.streams, connection.weights, {}
    for b in range(streams.shape[0]):
        for t in range(streams.shape[1]):
            mix, write = weights.static[:-1].T.clone(), weights.static[-1].clone()
            if model.config.coefficients == "dynamic":
                normed = parts.scale_to_unit(streams[b, t], model.config.rms_norm_eps)
                normed = normed * connection.projection.gain
                for i in range(n):
                    z = torch.tanh(connection.projection.weight @ normed[i])
                    mix[i] += weights.scale[0] * z[: n + 1]
                    write[i] += weights.scale[1] * z[n + 1]
            out[b, t] = mix, write
    return out


def read(streams, weights):
    h = torch.zeros_like(streams[:, :, 0])
    for (b, t), (mix, _) in weights.items():
        for i in range(streams.shape[2]):
            h[b, t] += mix[i, 0] * streams[b, t, i]
    return h


def write(streams, y, weights):
    after = torch.zeros_like(streams)
    for (b, t), (mix, write) in weights.items():
        for j in range(streams.shape[2]):
            for i in range(streams.shape[2]):
                after[b, t, j] += mix[i, 1 + j] * streams[b, t, i]
            after[b, t, j] += write[j] * y[b, t]
    return after
