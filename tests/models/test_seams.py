"""The seams carry what they promise: variants made here, of every kind the seams allow.

Each is one class beside its config, as a file under ``variants/`` would be; nothing else is edited.
"""

from typing import ClassVar

import pytest
import torch
from huggingface_hub.dataclasses import strict
from tiny import TINY
from torch import nn

from layermem.models import registry
from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.configuration import DecoderConfig
from layermem.models.decoder import Decoder
from layermem.models.lime_router import LimeRouter
from layermem.models.seams import (
    Connection,
    Memory,
    ParameterOverride,
    Stream,
    Variant,
    forked_generator,
)
from layermem.ops.rope import rotate
from layermem.ops.shared_buffer import using_naive

STREAMS = 3


class Streams(Stream):
    """Several residuals whose sum is the visible one; a layer's state replaces the last."""

    def begin(self, embeds):
        return embeds * STREAMS, embeds[:, :, None].repeat(1, 1, STREAMS, 1)

    def end(self, state):
        return state[1].sum(2)


class ReadOne(Connection):
    """Read the streams' mean, write to one of them."""

    def __init__(self, index):
        super().__init__()
        self.index = index

    def read(self, state, norm):
        return norm(state[1].mean(2)), state[1]

    def write(self, carry, y):
        here = nn.functional.one_hot(torch.tensor(self.index), STREAMS)[:, None]
        streams = carry + here * y[:, :, None]
        return streams.sum(2), streams


class Several(Variant):
    @classmethod
    def stream(cls, config):
        return Streams()

    @classmethod
    def connection(cls, config, layer_idx, sub_layer):
        return ReadOne((2 * layer_idx + (sub_layer == "mlp")) % STREAMS)


class Everything(Stream):
    """One residual, and every earlier layer's output beside it: a state that grows."""

    def begin(self, embeds):
        return embeds, embeds

    def end(self, state):
        return state[0]


class Mixtures(nn.Module):
    """Three mixtures of the states so far, for queries, keys and values."""

    def __init__(self, n_states):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, n_states))

    def forward(self, states):
        return tuple(sum(w * s for w, s in zip(row, states, strict=True)) for row in self.weight)


class ReadMixtures(Connection):
    def __init__(self, n_states):
        super().__init__()
        self.mixtures = Mixtures(n_states)

    def read(self, state, norm):
        # The norm inside the mixture, as only a connection that is handed it can.
        return self.mixtures([norm(part) for part in state[1:]]), state

    def write(self, carry, y):
        return carry[0] + y, *carry[1:]


class WriteOutput(Connection):
    def read(self, state, norm):
        return norm(state[0]), state

    def write(self, carry, y):
        x = carry[0] + y
        return x, *carry[1:], x


class Growing(Variant):
    @classmethod
    def stream(cls, config):
        return Everything()

    @classmethod
    def connection(cls, config, layer_idx, sub_layer):
        return ReadMixtures(layer_idx + 1) if sub_layer == "attention" else WriteOutput()

    @classmethod
    def init_weights(cls, module):
        if not isinstance(module, Mixtures):
            return False
        salt = f"mixtures {module.weight.shape[1]}"
        module.weight.data.normal_(generator=forked_generator(salt))
        return True


def sign(query):
    return query.mean((1, 3), keepdim=True).sign()


class FirstValue(Memory):
    """Half the first layer's value, and the sign of the token's query: one slot, every argument."""

    def forward(self, query, slots):
        assert len(slots) == 2
        key, value = slots[1]
        return key * sign(query), (value + slots[0][1]) / 2


class Values(Variant):
    @classmethod
    def sources(cls, config, layer_idx):
        return (0,) if layer_idx else ()

    @classmethod
    def memory(cls, config, layer_idx):
        return FirstValue() if layer_idx else super().memory(config, layer_idx)


def declare(name, of):
    """The classes a variant's file would spell out."""

    @strict
    class Config(DecoderConfig):
        model_type: ClassVar[str] = f"test_{name}"

    class Model(Decoder):
        config: Config
        variant = of

    class ForCausalLM(DecoderForCausalLM):
        config: Config
        variant = of
        decoder_class = Model

    return ForCausalLM, Config


class RoutedAgain(Variant):
    """Routers that read what routers before them have read, as depth attention's layers do."""

    overrides = (ParameterOverride(module=LimeRouter),)

    @classmethod
    def sources(cls, config, layer_idx):
        return tuple(range(layer_idx))

    @classmethod
    def memory(cls, config, layer_idx):
        if not layer_idx:
            return super().memory(config, layer_idx)
        return LimeRouter(config.num_key_value_heads, range(layer_idx + 1))

    @classmethod
    def hands_on(cls, config):
        return "read"


VARIANTS = {"several": Several, "growing": Growing, "values": Values}
DECLARED = {name: declare(name, of) for name, of in VARIANTS.items()}


@pytest.fixture(params=VARIANTS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    cls, config = DECLARED[name]
    torch.manual_seed(0)
    return cls(config(**TINY)).eval()


class Scale(Memory):
    """A number that is drawn by ``reset_parameters`` alone."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(1))

    def reset_parameters(self):
        nn.init.ones_(self.gain)

    def forward(self, query, slots, part=None):
        key, value = slots[-1]
        return key, value * self.gain


class Scaled(Variant):
    @classmethod
    def memory(cls, config, layer_idx):
        return Scale()


class Named(Scaled):
    overrides = (ParameterOverride(module=Scale),)


@pytest.mark.parametrize("of", [Named, Scaled], ids=["named", "not named"])
def test_a_module_draws_its_weights_whether_overrides_name_it_or_not(of):
    model, config = declare("scaled", of)
    torch.manual_seed(0)
    built = model(config(**TINY))
    gains = [p for name, p in built.named_parameters() if "gain" in name]
    assert len(gains) == 4 and all(gain == 1 for gain in gains)
    torch.manual_seed(0)
    plain = registry.lookup("plain")
    expected = plain.causal_lm(plain.config(**TINY)).state_dict()
    assert all(torch.equal(expected[n], p) for n, p in built.named_parameters() if "gain" not in n)


def by_hand(name, model, ids):
    """The whole forward of each variant as one plain loop."""
    x = model.model.embed_tokens(ids)
    positions = torch.arange(ids.shape[1])[None]
    rope = model.model.rotary_emb(x, positions)
    streams, states, slots = [x] * STREAMS, [x], []
    for i, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        if name == "growing":
            rows = layer.attn_connection.mixtures.weight
            normed = [layer.input_layernorm(state) for state in states]
            inputs = [sum(w * s for w, s in zip(row, normed, strict=True)) for row in rows]
        else:
            inputs = [layer.input_layernorm(sum(streams) / STREAMS if name == "several" else x)] * 3
        q, k, v = (
            getattr(attention, name)(part).unflatten(-1, (-1, 8)).transpose(1, 2)
            for name, part in zip(("q_proj", "k_proj", "v_proj"), inputs, strict=True)
        )
        slots.append((k, v))
        if name == "values" and i:
            k, v = k * sign(q), (v + slots[0][1]) / 2
        y = attend_by_hand(q, k, v, rope)
        y = attention.o_proj(y)
        x = x + y
        streams[(2 * i) % STREAMS] = streams[(2 * i) % STREAMS] + y
        z = sum(streams) / STREAMS if name == "several" else x
        y = layer.mlp(layer.post_attention_layernorm(z))
        x = x + y
        streams[(2 * i + 1) % STREAMS] = streams[(2 * i + 1) % STREAMS] + y
        states.append(x)
    x = sum(streams) if name == "several" else x
    return model.lm_head(model.model.norm(x))


def attend_by_hand(q, k, v, rope):
    q, k = rotate(q, *rope), rotate(k, *rope)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2)


def test_the_forward_is_the_loop_by_hand(name, model, ids):
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, by_hand(name, model, ids))


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_gradients_by_hand_and_under_checkpointing(name, model, ids, reentrant):
    by_hand(name, model, ids).square().mean().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.zero_grad()
    model(ids, use_cache=False).logits.square().mean().backward()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(model.get_parameter(parameter).grad, gradient, msg=parameter)


def test_layers_that_hand_on_what_they_read_share_no_buffer(ids):
    """A buffer has the own slot of each layer, and these read others."""
    cls, config = declare("routed_again", RoutedAgain)
    torch.manual_seed(0)
    model = cls(config(**TINY)).eval()
    for layer in model.model.layers:
        for parameter in layer.self_attn.memory.parameters():
            parameter.data.normal_()
    with torch.no_grad():
        got = model(ids).logits
        with using_naive():
            torch.testing.assert_close(got, model(ids).logits)


def test_the_first_tensor_of_a_state_is_what_hidden_states_show(name, model, ids):
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    assert [tuple(state.shape) for state in states] == [(3, 11, 32)] * 5


def test_cached_decoding(name, model, ids):
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, **options, use_cache=False))


@pytest.mark.slow
def test_a_full_graph(name, model, ids):
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits)


def test_forked_draws_differ_by_salt_and_by_state_and_leave_it_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one = torch.rand(4, generator=forked_generator("a"))
    two = torch.rand(4, generator=forked_generator("b"))
    assert torch.equal(torch.get_rng_state(), state)
    shared = torch.rand(4)
    after = torch.rand(4, generator=forked_generator("a"))
    draws = [one, two, shared, after]
    assert not any(torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])
    torch.set_rng_state(state)
    assert torch.equal(torch.rand(4, generator=forked_generator("a")), one)
