"""Seams: weights of modules of one's own, layers that hand on what they read, forked draws.

Every registered variant fills some seams, and the contract compares each with its equations.
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
from layermem.models.seams import Memory, ParameterOverride, Variant, forked_generator
from layermem.ops.shared_buffer import using_naive


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
