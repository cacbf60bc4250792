"""Midpoint keys and values: from layer m on, those of norm_l(x_m), x_m the input of layer m."""

from literal import parts

CASES = {"midpoint-3": {"num_upper_layers": 3}}
PLAIN = [{"num_upper_layers": 1}]


def logits(model, ids, memory=parts.own_slot):
    config = model.config
    layers, upper = config.num_hidden_layers, config.num_upper_layers
    lowest = layers - (layers // 2 if upper is None else upper)
    x, slots = parts.embed(model, ids), []
    source = x
    for index, layer in enumerate(model.model.layers):
        source = x if index <= lowest else source
        normed, of_source = (parts.norm(layer.input_layernorm, state) for state in (x, source))
        query, key, value = parts.project(layer, normed, of_source, of_source)
        slots.append((key, value))
        x = x + parts.attend(model, layer, query, *memory(layer, query, slots))
        x = x + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
    return parts.head(model, x)
