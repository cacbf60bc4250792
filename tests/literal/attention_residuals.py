"""Attention residuals: h = S sum_i softmax_i(w . RMSNorm(v_i)) v_i before every sub-layer."""

import torch

from literal import parts

CASES = {
    "attention_residuals-unscaled": {"scale_by_sources": False},
    "attention_residuals-block": {"residual_form": "block", "block_size": 4},
    "attention_residuals-delta": {"residual_form": "delta"},
}
PLAIN = [{"residual_form": "block", "block_size": 2}, {"residual_form": "delta"}]


def logits(model, ids):
    embedding = parts.embed(model, ids)
    outputs = []
    for layer in model.model.layers:
        h = read(model, layer.attn_connection.place, embedding, outputs)
        query, key, value = parts.project(layer, parts.norm(layer.input_layernorm, h))
        outputs.append(parts.attend(model, layer, query, key, value))
        h = read(model, layer.mlp_connection.place, embedding, outputs)
        outputs.append(parts.mlp(layer, parts.norm(layer.post_attention_layernorm, h)))
    return parts.head(model, read(model, model.model.stream.place, embedding, outputs))


def read(model, place, embedding, outputs):
    config = model.config
    if config.residual_form == "delta":
        x = embedding + sum(outputs)
        return x + place.gate.weight * attend(config, place, outputs) if outputs else x
    size = {"full": 1, "block": config.block_size}[config.residual_form]
    sources, total = [embedding], None
    for i, output in enumerate(outputs):
        total = output if total is None else total + output
        if (i + 1) % size == 0:
            sources.append(total)
            total = None
    if total is not None:
        sources.append(total)
    factor = len(sources) if config.scale_by_sources else 1
    return factor * attend(config, place, sources)


def attend(config, place, sources):
    if len(sources) == 1:
        return sources[0]
    scores = []
    for v in sources:
        normed = parts.scale_to_unit(v, config.rms_norm_eps) * place.weights.gain
        scores.append((place.weights.query * normed).sum(-1))
    total = sum(torch.exp(s) for s in scores)
    return sum((torch.exp(s) / total)[..., None] * v for s, v in zip(scores, sources, strict=True))
