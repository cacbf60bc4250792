"""LAuReL: x + F(norm(x)) + R L x, or Gemma's (x + F(h) + h + RMSNorm(R L h)) / sqrt(2)."""

from literal import parts

CASES = {"laurel-gemma3n": {"laurel_form": "gemma3n", "laurel_rank": 3}}
PLAIN = [{"laurel_rank": 5}]


def logits(model, ids, memory=parts.own_slot):
    x, slots = parts.embed(model, ids), []
    for layer in model.model.layers:
        h = parts.norm(layer.input_layernorm, x)
        query, key, value = parts.project(layer, h)
        slots.append((key, value))
        y = parts.attend(model, layer, query, *memory(layer, query, slots))
        if model.config.laurel_form == "gemma3n":
            block = layer.attn_connection.low_rank
            product = parts.scale_to_unit(augment(block, h), block.eps) * block.gain
            x = (x + y + h + product) / 2**0.5
            x = x + parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
        else:
            x = x + y + augment(layer.attn_connection.low_rank, x)
            y = parts.mlp(layer, parts.norm(layer.post_attention_layernorm, x))
            x = x + y + augment(layer.mlp_connection.low_rank, x)
    return parts.head(model, x)


def augment(block, x):
    return x @ block.left.T @ block.right.T
