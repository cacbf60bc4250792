"""Tiny random models of every architecture that ``attach`` knows."""

import torch
import transformers as hf
from torch import nn

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


def shake_routers(model, seed=2):
    """Make the routers of a model differ from the identity; return the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in router_parameters(model):
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(0.3 * noise.to(weight))
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


class LiteralProjection(nn.Module):
    """A projection that routes by equation (2), written out, on a list that the caller empties."""

    def __init__(self, projection, weights, slots, heads, head_dim, kind):
        super().__init__()
        self.projection, self.weights, self.slots = projection, weights, slots
        self.heads, self.head_dim, self.kind = heads, head_dim, kind

    def forward(self, x):
        out = self.projection(x)
        if x.shape[:2] != self.slots.tokens:
            # Embeddings of relative positions.
            return out
        rows, tokens = out.shape[:2]
        if self.kind == "one":
            parts = [out.reshape(rows, tokens, self.heads, self.head_dim)]
        elif self.kind == "heads":
            parts = list(out.reshape(rows, tokens, self.heads, 3, self.head_dim).unbind(3))
        else:
            width = self.heads * self.head_dim
            query, *parts = out.split([out.shape[-1] - 2 * width, width, width], dim=-1)
            parts = [query, *(p.reshape(rows, tokens, self.heads, self.head_dim) for p in parts)]
        n_routed = min(2, len(parts))
        routed = []
        for i, part in enumerate(parts[-n_routed:]):
            earlier = self.slots.setdefault((id(self.slots), self.slots.name(self), i), [])
            earlier.append(part)
            weight = self.weights[i]
            routed.append(self._route(earlier, weight) if weight is not None else part)
        if self.kind == "heads":
            return torch.stack([parts[0], *routed], 3).reshape(out.shape)
        return torch.cat([*parts[:-n_routed], *(p.reshape(rows, tokens, -1) for p in routed)], -1)

    def _route(self, slots, weight):
        total = torch.zeros_like(slots[0])
        for target in range(self.heads):
            for s, slot in enumerate(slots):
                for source in range(self.heads):
                    w = weight[target, s * self.heads + source]
                    total[:, :, target] = total[:, :, target] + w * slot[:, :, source]
        return total


class LiteralSlots(dict):
    """The slots of one forward, by the projection's name and part."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.names = tokens, {}

    def name(self, projection):
        return self.names[id(projection)]


def run_literally(model, attachment, weights, value_weights=None, **inputs):
    """Run a bare model whose projections route literally by ``weights``, {layer: [R, S R]}.

    ``value_weights``: those of values, if they are others.
    """
    shape, slots = attachment.shape, LiteralSlots(inputs["input_ids"].shape)
    host = attachment.host
    name = type(attachment.owner).__name__
    owner = next(m for m in model.modules() if type(m).__name__ == name)
    for layer, module in enumerate(owner.get_submodule(host.layers)):
        attention = module.get_submodule(host.attention)
        both = [weights.get(layer), (value_weights or weights).get(layer)]
        for name in host.projections:
            literal = LiteralProjection(
                getattr(attention, name),
                both[1:] if name == host.value else both,
                slots,
                shape.heads,
                shape.head_dim,
                host.layout if host.fused else "one",
            )
            slots.names[id(literal)] = name
            setattr(attention, name, literal)
    return model(**inputs)
