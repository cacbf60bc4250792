"""The plugin of vLLM, with vLLM's registry in its place where it is not installed."""

import inspect
import sys
import tomllib
import types
from pathlib import Path

import pytest
import torch
from tiny import TINY
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layermem.generation import vllm as plugin
from layermem.models.attention import Attention
from layermem.models.registry import lookup

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registered(monkeypatch):
    """What is registered with a registry that has a model of its own."""
    models = {"LlamaForCausalLM": "vllm.model_executor.models.llama:LlamaForCausalLM"}

    class Registry:
        @staticmethod
        def get_supported_archs():
            return models.keys()

        @staticmethod
        def register_model(architecture, model):
            # vLLM warns where one is registered twice.
            assert architecture not in models
            models[architecture] = model

    fake = types.ModuleType("vllm")
    fake.ModelRegistry = Registry
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return models


def test_architectures_that_checkpoints_name_are_registered_once(registered, tmp_path):
    for _ in range(2):
        plugin.register()
    names = ("Plain", "Lime", "LimeHalf", "Cla", "Yoco")
    ours = {f"{name}ForCausalLM" for name in names}
    assert set(registered) == {"LlamaForCausalLM", *ours}
    for name in plugin.SERVED:
        entry = lookup(name)
        config = entry.config(**TINY)
        entry.causal_lm(config).save_pretrained(tmp_path / name)
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert registered[saved.config.architectures[0]] == plugin._BACKEND
        assert saved.is_backend_compatible()


def test_the_entry_point_is_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["layermem"].partition(":")
    assert getattr(sys.modules[module], function) is plugin.register


def test_attention_is_called_as_vllm_reads_it(monkeypatch, ids):
    """vLLM finds the call in the source of the forward, and returns [tokens, heads * width]."""
    source = inspect.getsource(Attention.forward)
    assert source.count("ALL_ATTENTION_FUNCTIONS.get_interface(") == 1
    assert source.count("backend(") == 1 and "scaling=self.scaling" in source
    entry = lookup("lime")
    model = entry.causal_lm(entry.config(**TINY)).eval()
    expected = model(ids[:1]).logits

    def flat(module, query, key, value, attention_mask, **kwargs):
        y, _ = sdpa_attention_forward(module, query, key, value, None, **kwargs)
        return y.reshape(ids.shape[1], -1), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flat", flat)
    model.config._attn_implementation = "flat"
    torch.testing.assert_close(model(ids[:1]).logits, expected)
