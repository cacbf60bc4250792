"""PEFT adapters by their folder: the model they name is checked as any other."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TINY, make
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from layermem import LimeConfig, LimeForCausalLM

peft = pytest.importorskip("peft")


@pytest.fixture
def folders(tmp_path):
    """The folders of a model and of an adapter of it."""
    torch.manual_seed(0)
    model = make(LimeForCausalLM, LimeConfig(**TINY))
    model.save_pretrained(tmp_path / "base")
    _adapt(LimeForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    return tmp_path / "base", tmp_path / "adapter"


def _adapt(model, folder):
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "down_proj"])
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder)


def change(folder, name, edit):
    weights = load_file(folder / name)
    edit(weights)
    save_file(weights, folder / name, metadata={"format": "pt"})


LOADERS = pytest.mark.parametrize(
    "load", [LimeForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained]
)


@LOADERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_adapter_loads_with_its_model(folders, load, dtype, ids):
    base, adapter = folders
    model = LimeForCausalLM.from_pretrained(base, dtype=dtype)
    expected = peft.PeftModel.from_pretrained(copy.deepcopy(model), adapter).eval()
    got = load(adapter, dtype=dtype)
    assert type(got) is LimeForCausalLM and got.dtype == dtype and not got.training
    tolerance = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 0.05}
    with torch.no_grad():
        logits = expected(input_ids=ids).logits
        torch.testing.assert_close(got(ids).logits, logits, **tolerance)
        assert (model(ids).logits - logits).abs().max() > 0.1
    got, info = load(adapter, dtype=dtype, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_an_adapter_in_a_subfolder(folders, ids, tmp_path):
    (tmp_path / "outer").mkdir()
    folders[1].rename(tmp_path / "outer" / "inner")
    got = LimeForCausalLM.from_pretrained(tmp_path / "outer", subfolder="inner")
    expected = LimeForCausalLM.from_pretrained(tmp_path / "outer" / "inner")
    assert got.peft_config and torch.equal(got(ids).logits, expected(ids).logits)


STRAY = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"


@LOADERS
@pytest.mark.parametrize(
    ("folder", "name", "edit", "named"),
    [
        (0, "model", lambda w: w.pop("model.layers.2.self_attn.memory.weight"), r"memory\.weight"),
        (1, "adapter_model", lambda w: w.pop(min(w)), "lora_"),
        (1, "adapter_model", lambda w: w.update({STRAY: torch.ones(2, 32)}), r"v_proj\.lora_A"),
    ],
    ids=["base", "half", "stray"],
)
def test_the_model_and_the_adapter_are_checked(folders, load, folder, name, edit, named):
    change(folders[folder], f"{name}.safetensors", edit)
    with pytest.raises(ValueError, match=named):
        load(folders[1])


def test_an_adapter_of_a_llama_is_not_one_of_lime(tmp_path):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**TINY)).save_pretrained(tmp_path / "base")
    _adapt(LlamaForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    with pytest.raises(ValueError, match="LimeForCausalLM.from_llama"):
        LimeForCausalLM.from_pretrained(tmp_path / "adapter")
    with pytest.raises(OSError, match="adapter"):
        LimeForCausalLM.from_llama(tmp_path / "adapter")
