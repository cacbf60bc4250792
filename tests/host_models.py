"""Tiny random models of every architecture that ``attach`` knows."""

import torch
import transformers as hf

from layermem.retrofit import attach, router_parameters

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
WINDOWS = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 8,
}
GEMMA = {**GROUPED, **WINDOWS, "query_pre_attn_scalar": 8}
DEBERTA = {
    **SIZES,
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": ["p2c", "c2p"],
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

DECODERS = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {**GROUPED, "sliding_window": 4}),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, GROUPED),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, {**GROUPED, "head_dim": 8}),
    "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config, GEMMA),
    "gemma3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, GEMMA),
    "olmo2": (hf.Olmo2ForCausalLM, hf.Olmo2Config, GROUPED),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, GROUPED),
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, SIZES),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, {**SIZES, **GPT2}),
    "smollm3": (hf.SmolLM3ForCausalLM, hf.SmolLM3Config, {**GROUPED, "no_rope_layer_interval": 2}),
}
ENCODERS = {
    "bert": (hf.BertForMaskedLM, hf.BertConfig, {**SIZES, **NO_DROPOUT}),
    "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig, {**SIZES, **NO_DROPOUT}),
    "deberta": (hf.DebertaV2ForMaskedLM, hf.DebertaV2Config, DEBERTA),
    "deberta-shared": (
        hf.DebertaV2ForMaskedLM,
        hf.DebertaV2Config,
        {**DEBERTA, "share_att_key": True},
    ),
}
HOSTS = {**DECODERS, **ENCODERS}

# Ways of finetuning one, as options of `layermem train --host.model`.
ARMS = {
    "plain": ["--host.train", "all", "--host.memory", "none"],
    "lora": ["--host.train", "lora", "--host.memory", "none"],
    "routers": [],
    "everything": ["--host.train", "all", "--host.memory", "last", "--host.window", "2"],
}


def make_host(name, seed=0, **fields):
    """Build a tiny model in eval mode, whose weights are large enough for layers to differ."""
    model_class, config_class, values = HOSTS[name]
    torch.manual_seed(seed)
    config = config_class(**{**values, **fields}, attn_implementation="eager")
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model


def make_ids(rows=3, tokens=11, seed=1):
    return torch.randint(3, 61, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def shake_routers(model, seed=2, scale=0.3):
    """Make the routers of a model differ from the identity; return the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in router_parameters(model):
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(scale * noise.to(weight))
    return model


def make_attached(
    name="llama",
    seed=0,
    dtype=torch.float32,
    window=None,
    *,
    shares_kv=True,
    grain="pair",
    **fields,
):
    """Build a tiny model with layer memory whose routers are not the identity."""
    model = make_host(name, seed, **fields).to(dtype)
    router = "last" if window else "full"
    return shake_routers(attach(model, router, window, shares_kv=shares_kv, grain=grain))


def run_literally(model, attachment, weights, value_weights=None, **inputs):
    """Run a bare model whose projections route by equation (2), written out, with ``weights``,
    {layer: [R, S R]}; ``value_weights``: those of values, if they are others."""
    host, shape, tokens = attachment.host, attachment.shape, inputs["input_ids"].shape
    heads, slots = (*tokens, shape.heads, shape.head_dim), {}

    def literal(layer, name, x, out):
        if x.shape[:2] != tokens:
            # Embeddings of relative positions.
            return out
        width = shape.heads * shape.head_dim
        query, parts = out[..., :0], [out]
        if host.fused and host.layout == "heads":
            query, *parts = out.reshape(*heads[:3], 3, -1).unbind(3)
        elif host.fused:
            query, *parts = out.split([out.shape[-1] - 2 * width, width, width], dim=-1)
        routed = []
        for i, part in enumerate(parts):
            is_value = i == 1 if host.fused else name == host.value
            weight = ((value_weights if is_value else None) or weights).get(layer)
            earlier = slots.setdefault((name, i), [])
            earlier.append(part.reshape(heads))
            routed.append(earlier[-1] if weight is None else _mix(earlier, weight))
        if host.fused and host.layout == "heads":
            return torch.stack([query, *routed], 3).reshape(out.shape)
        return torch.cat([query, *(part.flatten(2) for part in routed)], -1)

    kind = type(attachment.owner).__name__
    owner = next(m for m in model.modules() if type(m).__name__ == kind)
    for layer, module in enumerate(owner.get_submodule(host.layers)):
        for name in host.projections:
            projection = module.get_submodule(host.attention).get_submodule(name)
            projection.register_forward_hook(
                lambda _, args, out, where=(layer, name): literal(*where, args[0], out)
            )
    return model(**inputs)


def _mix(slots, weight):
    """Return heads of which each is the sum of all heads of all slots, by a row of the weight."""
    heads = [head for slot in slots for head in slot.unbind(2)]
    rows = (zip(row, heads, strict=True) for row in weight)
    return torch.stack([sum(w * head for w, head in row) for row in rows], 2)
