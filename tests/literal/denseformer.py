"""DenseFormer: Y_i = sum over j <= i of a_ij X_j."""

from literal import parts

CASES = {"denseformer": {}}
PLAIN = [{}]


def logits(model, ids, memory=parts.own_slot):
    y = parts.embed(model, ids)
    xs, slots = [y], []
    for i, layer in enumerate(model.model.layers, start=1):
        query, key, value = parts.project(layer, parts.norm(layer.input_layernorm, y))
        slots.append((key, value))
        u = y + parts.attend(model, layer, query, *memory(layer, query, slots))
        xs.append(u + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, u)))
        a = layer.mlp_connection.weights.weight[0]
        y = sum(a[j] * xs[j] for j in range(i + 1))
    return parts.head(model, y)
