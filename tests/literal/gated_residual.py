"""Gated residual: H <- H + B (x) F(mean of G * S), S = c * norm(H), one stream at a time."""

from literal import parts

CASES = {"gated_residual-3-streams": {"streams": 3, "gate_rank": 2}}
PLAIN = [{"streams": 2}]


def logits(model, ids, memory=parts.own_slot):
    n = model.config.streams
    streams, slots = [parts.embed(model, ids)] * n, []
    for layer in model.model.layers:
        x, weights = read(layer.attn_connection.gates, layer.input_layernorm, streams)
        query, key, value = parts.project(layer, x)
        slots.append((key, value))
        y = parts.attend(model, layer, query, *memory(layer, query, slots))
        streams = [h + b * y for h, b in zip(streams, weights, strict=True)]
        x, weights = read(layer.mlp_connection.gates, layer.post_attention_layernorm, streams)
        y = parts.mlp(layer, x)
        streams = [h + b * y for h, b in zip(streams, weights, strict=True)]
    return parts.head(model, sum(streams) / n)


def read(gates, norm, streams):
    """Return what a sub-layer reads, and the weight with which it writes to each stream."""
    n, width = len(streams), streams[0].shape[-1]
    of_stream = [slice(j * width, (j + 1) * width) for j in range(n)]
    s = [parts.norm(norm, h) * gates.gain[own] for h, own in zip(streams, of_stream, strict=True)]
    z = sum(s[j] @ gates.down[:, of_stream[j]].T for j in range(n)) / n
    u = z * z.sigmoid()
    x = sum((u @ gates.up[of_stream[j]].T).sigmoid() * s[j] for j in range(n)) / n
    b = [sum(s[j] @ gates.write[i, of_stream[j]] for j in range(n)) / n for i in range(n)]
    return x, [2 * each.sigmoid()[..., None] for each in b]
