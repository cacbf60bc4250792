"""Peers to measure against: the equations of each variant as an eager loop in plain PyTorch.

A loop has what somebody would write who has the paper and the modules of a LLaMA: it calls the
projections, norms and mlps of a model of ours, keeps what it reads over depth in a list, each part
computed once, and writes the mixture as one sum, or one ``einsum`` where several are made of the
same list. Autograd differentiates it. It computes what the model does, from the same weights, and
``check_same`` raises if it does not.

Letters: B batch, T tokens, D width, G key-value heads, E head width, S sources, n streams.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from layermem.models.configuration import PREFIX


class EagerLoop(nn.Module):
    """A causal language model of ours, whose forward is the loop of its variant's equations."""

    def __init__(self, model):
        super().__init__()
        name = model.config.model_type.removeprefix(PREFIX)
        memory, _, stream = name.rpartition("+")
        if stream in MEMORIES and not memory:
            memory, stream = stream, "plain"
        if stream not in STREAMS or (memory and memory not in MEMORIES):
            raise ValueError(
                f"{name} has no eager loop; those that have one: {', '.join((*STREAMS, *MEMORIES))}"
            )
        self.model, self.stream = model, STREAMS[stream]
        self.memory = MEMORIES[memory] if memory else None

    def forward(self, ids, labels=None, use_cache=False):
        model = self.model
        x = model.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        rope = model.model.rotary_emb(x, positions)
        memory = self.memory(model) if self.memory else own_slot
        logits = model.lm_head(model.model.norm(self.stream(model, x, rope, memory)))
        loss = None
        if labels is not None:
            loss = model.loss_function(logits, labels, vocab_size=model.config.vocab_size)
        return CausalLMOutput(loss=loss, logits=logits)


def check_same(model, loop, ids, tolerance=1e-3):
    """Raise ``ValueError`` unless the logits and every gradient of a model and its loop agree; each
    is compared by the norm of the difference, relative to that of the model's."""
    ours, theirs = _results(model, model, ids), _results(loop, loop.model, ids)
    if only := sorted(ours.keys() ^ theirs.keys()):
        raise ValueError(f"a loop differs from its model in what it reads: {', '.join(only)}")
    for name, expected in ours.items():
        error = ((theirs[name] - expected).norm() / expected.norm().clamp(min=1e-6)).item()
        if not error <= tolerance:
            raise ValueError(f"a loop differs from its model in {name}: relative error {error:.2g}")


def _results(forward, model, ids):
    """Return the logits, and the gradient of every parameter of the model that is read."""
    output = forward(ids, labels=ids, use_cache=False)
    output.loss.backward()
    read = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"logits": output.logits.detach(), **read}


# Parts of a LLaMA


def project(layer, query_input, key_input=None, value_input=None):
    """Return q [B, H, T, E], k and v [B, G, T, E] before rope; None: it is not projected."""
    attention = layer.self_attn
    key_input = query_input if key_input is None else key_input
    value_input = query_input if value_input is None else value_input

    def heads(name, x):
        linear = getattr(attention, name, None)
        if linear is None:
            return None
        return linear(x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    return heads("q_proj", query_input), heads("k_proj", key_input), heads("v_proj", value_input)


def attend(layer, rope, query, key, value):
    """Return causal attention of queries and keys before rope, [B, T, D]."""
    return attend_rotated(layer, *apply_rotary_pos_emb(query, key, *rope), value)


def attend_rotated(layer, query, key, value):
    is_grouped = query.shape[1] != key.shape[1]
    y = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=is_grouped
    )
    return layer.self_attn.o_proj(y.transpose(1, 2).flatten(2))


def transform(layer, x):
    """Return the mlp of the normed state."""
    return layer.mlp(layer.post_attention_layernorm(x))


def unit(x, eps):
    """Return x / sqrt(mean(x^2) + eps)."""
    return functional.rms_norm(x, x.shape[-1:], eps=eps)


def total(weights, sources):
    """Return the sum of sources, each times its weight."""
    first, *others = (weight * source for weight, source in zip(weights, sources, strict=True))
    return sum(others, start=first)


# Memories: what attention reads, from the slots (key, value) of all layers so far


def own_slot(layer, slots):
    return slots[-1]


def lime(model):
    config, lent = model.config, {}

    def read(layer, slots):
        if layer.lenders:
            return lent[layer.lenders[0]]
        router = layer.self_attn.memory
        routed = slots[-1]
        if layer.layer_idx:
            weights = (
                router.weight,
                router.weight if config.router_shares_kv else router.value_weight,
            )
            read_slots = [slots[source] for source in router.sources]
            routed = [
                mixed_heads(config.router_grain, weight, heads)
                for weight, heads in zip(weights, zip(*read_slots, strict=True), strict=True)
            ]
        lent[layer.layer_idx] = routed
        return routed

    return read


def mixed_heads(grain, weight, sources):
    """Return the product of a router's weights with the heads [B, G, T, E] of its sources."""
    if grain == "pair":
        return torch.einsum("rs,bste->brte", weight, torch.cat(sources, 1))
    # One number for each source, or for each head of each.
    return total(weight.T[..., None, None], sources)


def value_residual(model):
    config = model.config
    if config.form not in ("identity", "constant"):
        raise ValueError(f"value_residual of form={config.form} has no eager loop")

    def read(layer, slots):
        key, value = slots[-1]
        if not layer.layer_idx:
            return key, value
        return key, config.first_weight * slots[0][1] + config.own_weight * value

    return read


def cla(model):
    sharing, chosen = model.config.sharing, model.config.kv_source_layers

    def read(layer, slots):
        i = layer.layer_idx
        return slots[i // sharing * sharing if chosen is None else chosen[i]]

    return read


def yoco(model):
    last = _last_own(model.config)
    return lambda layer, slots: slots[min(layer.layer_idx, last)]


def fused_kv(model):
    last, is_lite = _last_own(model.config), model.config.fusion == "lite"

    def read(layer, slots):
        if layer.layer_idx <= last:
            return slots[-1]
        (low_key, low_value), (key, value) = slots[0], slots[last]
        if is_lite:
            return key, low_value
        memory = layer.self_attn.memory
        # Both channels that rope rotates have one weight.
        of_keys = torch.cat((memory.key_weight, memory.key_weight), -1)
        return total(of_keys, (low_key, key)), total(memory.value_weight, (low_value, value))

    return read


def _last_own(config):
    """Return the last layer with keys and values of its own."""
    layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
    return layers - (layers // 2 if shared is None else shared) - 1


# Streams: from the embedding to what the final norm reads


def plain(model, x, rope, memory):
    slots = []
    for layer in model.model.layers:
        query, *own = project(layer, layer.input_layernorm(x))
        slots.append(own)
        x = x + attend(layer, rope, query, *memory(layer, slots))
        x = x + transform(layer, x)
    return x


def depth_attention(model, x, rope, memory):
    config = model.config
    if (config.stride, config.window, config.gate, config.values) != (1, None, "none", "mixed"):
        raise ValueError("depth_attention has an eager loop of its default form alone")
    keys, values = [], []
    for layer in model.model.layers:
        query, key, value = project(layer, layer.input_layernorm(x))
        query, key = apply_rotary_pos_emb(query, key, *rope)
        keys.append(key)
        values.append(value)
        if layer.layer_idx:
            pooled = query.unflatten(1, (key.shape[1], -1)).mean(2)
            scores = torch.stack([(pooled * each).sum(-1) for each in keys]) / key.shape[-1] ** 0.5
            # What is handed on to the layers above is mixed.
            values[-1] = total(scores.softmax(0)[..., None], values)
        x = x + attend_rotated(layer, query, key, values[-1])
        x = x + transform(layer, x)
    return x


def lime_hidden(model, x, rope, memory):
    states = []
    for layer in model.model.layers:
        attention = layer.self_attn
        states.append(layer.input_layernorm(x))
        query = project(layer, states[-1])[0]
        if layer.layer_idx:
            sources = torch.stack(states)
            shares = _shares(model.config, layer.attn_connection.weights, states)
            equation = "hs,sbtd->hbtd" if shares.dim() == 2 else "bths,sbtd->hbtd"
            mixtures = torch.einsum(equation, shares, sources)
        else:
            mixtures = states[-1].expand(attention.config.num_key_value_heads, -1, -1, -1)
        key, value = (
            torch.einsum(
                "hbtd,hed->bhte", mixtures, linear.weight.unflatten(0, (len(mixtures), -1))
            )
            for linear in (attention.k_proj, attention.v_proj)
        )
        x = x + attend(layer, rope, query, key, value)
        x = x + transform(layer, x)
    return x


def _shares(config, own, states):
    """Return the weight of each state for each head: [G, S], or of each token [B, T, G, S]."""
    if config.gate:
        raise ValueError("lime_hidden with a gate has no eager loop")
    if config.form == "static":
        return own.logits.softmax(-1)
    return (states[-1] @ own.projection.T).unflatten(-1, (-1, len(states))).softmax(-1)


def denseformer(model, x, rope, memory):
    outputs, slots = [x], []
    for layer in model.model.layers:
        query, *own = project(layer, layer.input_layernorm(x))
        slots.append(own)
        x = x + attend(layer, rope, query, *memory(layer, slots))
        outputs.append(x + transform(layer, x))
        x = total(layer.mlp_connection.weights.weight[0], outputs)
    return x


def attention_residuals(model, x, rope, memory):
    config, slots = model.config, []
    # What is attended to; in the delta form beside a residual.
    sources, state = ([], x) if config.residual_form == "delta" else ([x], None)
    size, written = config.sub_layers_per_block(), 0

    def read(place):
        if state is None:
            scale = len(sources) if config.scale_by_sources else 1
            return scale * _attend_over_depth(config, place, sources)
        if not sources:
            return state
        return state + place.gate.weight * _attend_over_depth(config, place, sources)

    def write(y):
        nonlocal state, written
        if written % size:
            sources[-1] = sources[-1] + y
        else:
            sources.append(y)
        written += 1
        state = None if state is None else state + y

    for layer in model.model.layers:
        h = read(layer.attn_connection.place)
        query, *own = project(layer, layer.input_layernorm(h))
        slots.append(own)
        write(attend(layer, rope, query, *memory(layer, slots)))
        write(transform(layer, read(layer.mlp_connection.place)))
    return read(model.model.stream.place)


def _attend_over_depth(config, place, sources):
    if len(sources) == 1:
        return sources[0]
    query = place.weights.query * place.weights.gain
    scores = torch.stack([unit(source, config.rms_norm_eps) @ query for source in sources])
    return total(scores.softmax(0)[..., None], sources)


def mudd(model, x, rope, memory):
    sources, slots = [], []
    for layer in model.model.layers:
        connection = layer.attn_connection
        sources.append(_mudd_source(connection.place, x))
        mixtures = _mudd_mixtures(model.config, connection.place, x, sources)
        inputs = [layer.input_layernorm(mixture) for mixture in mixtures[:-1]]
        gains = () if connection.gains is None else connection.gains.parameters()
        own = [gain * each for gain, each in zip(gains, inputs[1:], strict=True)]
        if layer.layer_idx and len(own) < 2:
            raise ValueError("MUDD of layers without keys or values has no eager loop")
        query, *own = project(layer, inputs[0], *own)
        slots.append(own)
        u = mixtures[-1] + attend(layer, rope, query, *memory(layer, slots))
        x = u + transform(layer, u)
    place = model.model.stream.place
    sources.append(_mudd_source(place, x))
    return _mudd_mixtures(model.config, place, x, sources)[0]


def _mudd_source(place, x):
    return x if place.source_norm is None else place.source_norm(x)


def _mudd_mixtures(config, place, x, sources):
    """Return what each way reads of the sources so far, the residual last."""
    if place.weights is None:
        return [x, x]
    weights = place.weights
    hidden = functional.gelu(unit(x, config.rms_norm_eps) @ weights.inner.T)
    shares = (hidden @ weights.outer.T).unflatten(-1, weights.static.shape) + weights.static
    mixtures = torch.einsum("btcs,sbtd->cbtd", shares, torch.stack(sources))
    if not config.pre_post_norm:
        return list(mixtures)
    return [x + norm(m) for norm, m in zip(place.mixture_norms, mixtures, strict=True)]


def dca(model, x, rope, memory):
    recent, outputs, middle = model.config.recent, [x], None
    for layer in model.model.layers:
        sources = outputs
        if recent is not None and len(outputs) > recent + 1:
            # The sum of those between the embedding and the recent ones.
            newest = outputs[-recent - 1]
            middle = newest if middle is None else middle + newest
            sources = [x, middle, *outputs[-recent:]]
        sources = torch.stack(sources)
        weights, channels = layer.attn_connection.weights, layer.attn_connection.channels.weight
        by_token = torch.einsum("sbtd,cd->csbt", sources, weights.vectors).relu()
        if weights.gate is not None:
            by_token = weights.gate[:, None, None, None] * by_token
        query_input, *inputs = (
            ((channels[c][:, None, None] + by_token[c][..., None]) * sources).sum(0)
            for c in range(3)
        )
        normed = map(layer.input_layernorm, (query_input, *inputs))
        y = attend(layer, rope, *project(layer, *normed))
        outputs.append(y + transform(layer, query_input + y))
    return sum(outputs)


def hyper_connections(model, x, rope, memory):
    return _over_streams(model, x, rope, memory, _hyper_weights)


def mhc(model, x, rope, memory):
    return _over_streams(model, x, rope, memory, _mhc_weights)


def _over_streams(model, x, rope, memory, weights_of):
    """Return the mean of n residual streams [B, T, n, D], which each sub-layer reads, mixes and
    writes by weights of its own: read [B, T, n], mix [B, T, n, n] and write [B, T, n]."""
    streams, slots = x[:, :, None].repeat(1, 1, model.config.streams, 1), []
    for layer in model.model.layers:
        read, mix, write = weights_of(
            model.config, layer.attn_connection, streams, 2 * layer.layer_idx
        )
        h = torch.einsum("btn,btnd->btd", read, streams)
        query, *own = project(layer, layer.input_layernorm(h))
        slots.append(own)
        y = attend(layer, rope, query, *memory(layer, slots))
        streams = mix @ streams + write[..., None] * y[:, :, None]

        read, mix, write = weights_of(
            model.config, layer.mlp_connection, streams, 2 * layer.layer_idx + 1
        )
        y = transform(layer, torch.einsum("btn,btnd->btd", read, streams))
        streams = mix @ streams + write[..., None] * y[:, :, None]
    return streams.mean(2)


def _hyper_weights(config, connection, streams, place):
    own = connection.weights
    mix, write = own.static[:-1].T, own.static[-1]
    if config.coefficients == "dynamic":
        projection = connection.projection
        z = (unit(streams, config.rms_norm_eps) * projection.gain) @ projection.weight.T
        z = z.tanh()
        mix = mix + own.scale[0] * z[..., :-1]
        write = write + own.scale[1] * z[..., -1]
    else:
        mix, write = (w.expand(*streams.shape[:2], *w.shape) for w in (mix, write))
    # [n, 1 + n] of each token: what is read, and what each new stream takes of each old one.
    return mix[..., 0], mix[..., 1:].mT, write


def _mhc_weights(config, connection, streams, place):
    n, own = config.streams, connection.weights
    x = unit(streams.flatten(2), config.rms_norm_eps)
    pre, post, res = (x @ connection.projection.weight.T).tensor_split((n, 2 * n), -1)
    bias = own.bias.tensor_split((n, 2 * n))
    # A share of three for stream k mod n, and one for each other.
    shares = torch.ones_like(bias[0])
    shares[place % n] = 3
    shares = shares / shares.sum()
    pre = torch.sigmoid(own.scale[0] * pre + bias[0] + torch.log(shares / (1 - shares)))
    post = 2 * torch.sigmoid(own.scale[1] * post + bias[1])
    if config.res == "identity" or place in (0, 2 * config.num_hidden_layers - 1):
        return pre, torch.diag(torch.ones_like(bias[0])), post
    mix = torch.exp(own.scale[2] * res + bias[2]).unflatten(-1, (n, n))
    for _ in range(config.rounds):
        mix = mix / mix.sum(-2, keepdim=True)
        mix = mix / mix.sum(-1, keepdim=True)
    return pre, mix, post


MEMORIES: dict[str, Callable] = {
    "lime": lime,
    "lime_half": lime,
    "value_residual": value_residual,
    "cla": cla,
    "yoco": yoco,
    "fused_kv": fused_kv,
}
STREAMS: dict[str, Callable] = {
    "plain": plain,
    "depth_attention": depth_attention,
    "lime_hidden": lime_hidden,
    "denseformer": denseformer,
    "attention_residuals": attention_residuals,
    "mudd": mudd,
    "dca": dca,
    "hyper_connections": hyper_connections,
    "mhc": mhc,
}
