"""mHC: H <- res H + post (x) F(norm(pre H)), one token at a time."""

import torch

from literal import parts

CASES = {
    "mhc-3-of-5-rounds": {"streams": 3, "rounds": 5},
    "mhc-identity": {"res": "identity"},
}
PLAIN = [{"streams": 2, "rounds": 1}, {"res": "identity", "streams": 3}]


def logits(model, ids, memory=parts.own_slot):
    n, last = model.config.streams, 2 * model.config.num_hidden_layers - 1
    streams = parts.embed(model, ids)[:, :, None].repeat(1, 1, n, 1)
    slots = []
    for i, layer in enumerate(model.model.layers):
        mixes = model.config.res == "sinkhorn" and i > 0
        coefficients = compute(model, layer.attn_connection, streams, 2 * i, mixes=mixes)
        x = parts.norm(layer.input_layernorm, read(streams, coefficients))
        query, key, value = parts.project(layer, x)
        slots.append((key, value))
        y = parts.attend(model, layer, query, *memory(layer, query, slots))
        streams = write(streams, y, coefficients)

        mixes = model.config.res == "sinkhorn" and 2 * i + 1 < last
        coefficients = compute(model, layer.mlp_connection, streams, 2 * i + 1, mixes=mixes)
        x = parts.norm(layer.post_attention_layernorm, read(streams, coefficients))
        streams = write(streams, parts.mlp(layer, x), coefficients)
    return parts.head(model, streams.sum(2) / n)


def compute(model, connection, streams, k, *, mixes):
    """Return {(b, t): (pre [n], post [n], res [n, n])}."""
    n, out = model.config.streams, {}
    phi, b, alpha = connection.projection.weight, connection.weights.bias, connection.weights.scale
    # The constant beside b of pre: a share of three for stream k mod n, one for each other.
    shares = torch.ones(n, dtype=b.dtype)
    shares[k % n] = 3
    shares = shares / shares.sum()
    constant = torch.log(shares / (1 - shares))
    for row in range(streams.shape[0]):
        for t in range(streams.shape[1]):
            x = parts.scale_to_unit(streams[row, t].reshape(-1), model.config.rms_norm_eps)
            pre = torch.sigmoid(alpha[0] * (phi[:n] @ x) + b[:n] + constant)
            post = 2 * torch.sigmoid(alpha[1] * (phi[n : 2 * n] @ x) + b[n : 2 * n])
            res = torch.eye(n, dtype=x.dtype)
            if mixes:
                res = torch.exp(alpha[2] * (phi[2 * n :] @ x) + b[2 * n :]).view(n, n)
                for _ in range(model.config.rounds):
                    for j in range(n):
                        res[:, j] = res[:, j] / res[:, j].sum()
                    for i in range(n):
                        res[i] = res[i] / res[i].sum()
            out[row, t] = pre, post, res
    return out


def read(streams, coefficients):
    h = torch.zeros_like(streams[:, :, 0])
    for (b, t), (pre, _, _) in coefficients.items():
        for j in range(streams.shape[2]):
            h[b, t] += pre[j] * streams[b, t, j]
    return h


def write(streams, y, coefficients):
    after = torch.zeros_like(streams)
    for (b, t), (_, post, res) in coefficients.items():
        for i in range(streams.shape[2]):
            for j in range(streams.shape[2]):
                after[b, t, i] += res[i, j] * streams[b, t, j]
            after[b, t, i] += post[i] * y[b, t]
    return after
