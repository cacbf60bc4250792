"""The kit of the contract: deliberate faults are named, and a newcomer's plugin passes."""

import pytest
import torch
from forked import run_code
from tiny import TINY
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import StaticCache

import layermem
from layermem import testing
from layermem.models.inputs import CACHE


class Layer(nn.Module):
    """Attention of one head, with the fault of a toy model in it."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.qkv, self.last = fault, nn.Linear(16, 48), 0
        self.register_buffer("scale", torch.rand(16), persistent=fault != "buffer")
        if fault in ("dead", "zero"):
            self.gate, self.up = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16))

    def forward(self, x, history):
        q, k, v = self.qkv(x * self.scale).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.fault != "mask")
        if self.fault == "norm":
            y = y / y.norm(dim=1, keepdim=True)
        if self.fault == "state":
            y, self.last = y + self.last, y.detach().mean()
        if self.fault == "zero":
            y = y + self.gate * self.up * x
        if self.fault == "list":
            history.append(y)
            return torch.tanh(x + sum(history))
        return x + y


class Toy(nn.Module):
    """Token ids to logits, without transformers."""

    def __init__(self, fault=""):
        super().__init__()
        self.embed, self.head, self.again = nn.Embedding(31, 16), nn.Linear(16, 31), False
        self.layers = nn.ModuleList(Layer(fault) for _ in range(2))

    def forward(self, ids):
        x, history = self.embed(ids), []
        for layer in self.layers:
            again = self.again and self.training
            x = checkpoint(layer, x, history, use_reentrant=False) if again else layer(x, history)
        return self.head(x)


def turn_on(model):
    model.again = True


def faulty_decoder(fault):
    """Return a plain decoder of ours with a fault."""
    model = layermem.build("plain", **TINY)

    def change(module, args, kwargs):
        if fault == "padding":
            kwargs["attention_mask"] = kwargs["position_ids"] = None
        if fault == "static" and isinstance(kwargs.get(CACHE), StaticCache):
            kwargs["position_ids"] = kwargs["position_ids"] * 0
        return args, kwargs

    model.model.register_forward_pre_hook(change, with_kwargs=True)
    if fault == "dynamic":
        values = model.model.layers[1].self_attn.v_proj
        values.register_forward_hook(lambda _, __, v: v / 2 if v.shape[1] == 1 else v)
    if fault == "count":
        model.extra = nn.Linear(3, 3)
    return model


FAULTS = [
    ("causal", "mask", "layers.0"),
    ("causal", "norm", "layers.0"),
    ("causal", "state", "layers.0"),
    ("gradients", "dead", "layers.0.gate"),
    ("gradients", "zero", "layers.0.gate"),
    ("checkpointing", "list", "layers.1.qkv"),
    ("saved", "buffer", "layers.0.scale"),
    ("cached", "dynamic", "a dynamic cache"),
    ("cached", "padding", "left padding"),
    ("cached", "static", "a static cache"),
    ("counts", "count", "extra.weight [3, 3]"),
]


@pytest.mark.parametrize(("check", "fault", "named"), FAULTS, ids=[row[1] for row in FAULTS])
def test_a_fault_is_named_in_one_sentence(check, fault, named):
    of_ours, given = check in ("cached", "counts"), {}
    if check == "checkpointing":
        given["enable"] = turn_on
    with pytest.raises(testing.ContractError) as raised:
        getattr(testing, f"check_{check}")(
            lambda: faulty_decoder(fault) if of_ours else Toy(fault), **given
        )
    assert named in str(raised.value) and "\n" not in str(raised.value)


def test_a_module_without_transformers_passes():
    for check in (testing.check_causal, testing.check_gradients, testing.check_saved):
        check(Toy)
    testing.check_checkpointing(Toy, enable=turn_on)


NEWCOMER = '''
"""Values of the first layer by a gate of the query, one for each head."""
import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import initialization
from layermem.models.configuration import DecoderConfig
from layermem.models.registry import declare
from layermem.models.seams import Memory, OwnLayerMemory, ParameterOverride, Variant

@strict
class GatedValuesConfig(DecoderConfig):
    """The fields of a LLaMA."""

class GatedValues(Memory):
    def __init__(self, config):
        super().__init__()
        heads = config.num_key_value_heads
        self.gate = nn.Parameter(torch.empty(heads, config.head_dim))
        self.share = nn.Parameter(torch.empty(heads))

    def reset_parameters(self):
        initialization.constant_(self.gate, 0.1)
        initialization.zeros_(self.share)

    def forward(self, query, slots):
        (_, first), (key, value) = slots
        mean = query.unflatten(1, (len(self.gate), -1)).mean(2)
        gate = (mean * self.gate[:, None]).sum(-1, keepdim=True).sigmoid()
        return key, value + self.share[:, None, None] * gate * first

class GatedValuesVariant(Variant[GatedValuesConfig]):
    overrides = (ParameterOverride(module=GatedValues),)

    @classmethod
    def sources(cls, config, layer_idx):
        return (0,) if layer_idx else ()

    @classmethod
    def memory(cls, config, layer_idx):
        return GatedValues(config) if layer_idx else OwnLayerMemory()

    @classmethod
    def extra_parameters(cls, config):
        heads = config.num_key_value_heads
        return heads * (config.head_dim + 1) * (config.num_hidden_layers - 1)

declare("gated_values", GatedValuesConfig, GatedValuesVariant)
'''


def test_a_variant_of_a_plugin_passes(tmp_path):
    (tmp_path / "mine.py").write_text(NEWCOMER, encoding="utf-8")
    code = f"""
import layermem
from layermem import testing
from layermem_base.plugins import add_plugins
add_plugins(["mine.py"])
build = lambda: layermem.build("gated_values", **{TINY})
for name in ("causal", "start", "gradients", "cached", "checkpointing", "saved", "counts"):
    getattr(testing, "check_" + name)(build)
"""
    status, _, errors = run_code(code, folder=tmp_path)
    assert status == 0, errors
