"""DCA: X^c = sum over j of (b_c[j] + ReLU(w_c . v_j)) * v_j, for queries, keys and values."""

from literal import parts

CASES = {
    "dca-gated": {"gated": True},
    "dca-recent-1": {"recent": 1},
    "dca-recent-2-gated": {"recent": 2, "gated": True},
}
PLAIN = [{"gated": True, "recent": 1}]


def logits(model, ids):
    recent = model.config.recent
    stack = [parts.embed(model, ids)]
    for layer in model.model.layers:
        sources = stack
        if recent is not None and len(stack) > recent + 1:
            middle = sum(stack[1:-recent])
            sources = [stack[0], middle, *stack[-recent:]]
        xq, xk, xv = (sum_up(layer.attn_connection, c, sources) for c in range(3))
        normed = [parts.norm(layer.input_layernorm, x) for x in (xq, xk, xv)]
        query, key, value = parts.project(layer, *normed)
        y = parts.attend(model, layer, query, key, value)
        out = parts.mlp(layer, parts.norm(layer.post_attention_layernorm, xq + y))
        stack.append(y + out)
    return parts.head(model, sum(stack))


def sum_up(connection, c, sources):
    weights, total = connection.weights, 0
    for j, v in enumerate(sources):
        dynamic = (v @ weights.vectors[c]).clamp(min=0)
        if weights.gate is not None:
            dynamic = weights.gate[c] * dynamic
        total = total + (connection.channels.weight[c, j] + dynamic[..., None]) * v
    return total
