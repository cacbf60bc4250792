"""A peer to measure against: LIMe in the concatenating form of the paper's pseudocode.

Hugging Face's LLaMA whose attention appends its keys and values to one tensor, the buffer
[S * R, 2 * B * T * E], by a concatenation in every layer, and takes one product of the router's
weights with the whole buffer. Routing comes before rope, and the cache holds what was routed, as in
our model: the two compute the same numbers, and ``check_same`` raises if they do not.

Letters: R key-value heads, S layers so far, B batch, T tokens, E head width.
"""

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from layermem.models.inputs import CACHE, takes_older_name


class KVBuffer:
    """The keys and values of all layers so far, as one tensor."""

    def __init__(self):
        self.rows = None

    def append(self, key, value):
        """Add the heads of one layer: key and value [B, T, R, E] become R rows."""
        layer = torch.stack([key, value]).permute(3, 0, 1, 2, 4).flatten(1)
        self.rows = layer if self.rows is None else torch.cat([self.rows, layer])


class ConcatenatingRouter(nn.Module):
    """The product of one layer's weights with the buffer."""

    def __init__(self, num_heads, num_sources):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, num_sources * num_heads))

    def forward(self, buffer):
        return self.weight.mm(buffer.rows)


class ConcatenatingAttention(LlamaAttention):
    """LLaMA's attention on routed keys and values."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        # The name that the router has in our model, so that its weights load.
        self.memory = None
        if layer_idx > 0:
            self.memory = ConcatenatingRouter(config.num_key_value_heads, layer_idx + 1)

    @takes_older_name
    def forward(
        self,
        hidden_states,
        position_embeddings=None,
        attention_mask=None,
        cache=None,
        kv_buffer=None,
        **kwargs,
    ):
        batch, tokens, _ = hidden_states.shape
        query = self.q_proj(hidden_states).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
        key = self.k_proj(hidden_states).view(batch, tokens, -1, self.head_dim)
        value = self.v_proj(hidden_states).view(batch, tokens, -1, self.head_dim)
        kv_buffer.append(key, value)
        if self.memory is None:
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        else:
            routed = self.memory(kv_buffer).view(-1, 2, batch, tokens, self.head_dim)
            key, value = routed.permute(1, 2, 0, 3, 4)

        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        y, weights = attend(
            self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0, **kwargs
        )
        return self.o_proj(y.reshape(batch, tokens, -1)), weights


class ConcatenatingForCausalLM(LlamaForCausalLM):
    """LLaMA's causal language model with a new buffer in every forward."""

    def __init__(self, config):
        super().__init__(config)
        for layer_idx, layer in enumerate(self.model.layers):
            layer.self_attn = ConcatenatingAttention(config, layer_idx)

    def forward(self, *args, **kwargs):
        return super().forward(*args, kv_buffer=KVBuffer(), **kwargs)


def build_concatenating(fields, lime):
    """Return the peer of a LIMe model, with the same weights."""
    peer = ConcatenatingForCausalLM(LlamaConfig(**fields))
    peer.load_state_dict(lime.state_dict())
    peer = peer.to(lime.device)
    check_same(peer, lime)
    return peer


def check_same(peer, lime, tolerance=1e-4):
    """Raise ``ValueError`` unless logits, decoded logits and gradients agree.

    They are compared by the norm of the difference, relative to that of our model's.
    """
    ids = torch.randint(lime.config.vocab_size, (2, 66), device=lime.device)
    ours, theirs = _results(lime, ids), _results(peer, ids)
    for name, expected in ours.items():
        error = ((theirs[name] - expected).norm() / expected.norm()).item()
        if not error <= tolerance:
            raise ValueError(f"the two forms of LIMe differ in {name}: relative error {error:.2g}")


def _results(model, ids):
    """Return the logits, those of tokens decoded one by one, and every gradient."""
    output = model(ids, labels=ids, use_cache=False)
    output.loss.backward()
    results = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        parts = [model(part, **{CACHE: cache}).logits for part in ids.split([64, 1, 1], 1)]
    return {"logits": output.logits.detach(), "decoded logits": torch.cat(parts, 1), **results}
