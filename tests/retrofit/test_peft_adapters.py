"""PEFT beside layer memory: LoRA, routers as part of an adapter, and where adapters belong."""

import copy
import json
import pickle

import pytest
import torch
import transformers as hf
from host_models import make_attached, make_host, make_ids, shake_routers
from packaging.version import Version

from layermem.retrofit import attach, detach, router_parameters

peft = pytest.importorskip("peft")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def adapt(model, **options):
    names = ["q_proj", "k_proj", "v_proj"]
    options = {"r": 2, "target_modules": names, "init_lora_weights": False} | options
    torch.manual_seed(3)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()


@torch.no_grad()
def logits_of(model):
    return model.eval()(input_ids=make_ids()).logits


@pytest.fixture(scope="module")
def load_base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    make_host("llama", vocab_size=300).save_pretrained(folder)
    auto = hf.AutoModelForCausalLM
    return lambda: auto.from_pretrained(folder, attn_implementation="eager").eval()


def test_lora_above_is_routed_too():
    adapted = adapt(make_attached("llama"))
    got = logits_of(adapted)
    merged = copy.deepcopy(adapted).merge_and_unload()
    torch.testing.assert_close(logits_of(merged), got, **CLOSE)
    # The same as layer memory on the merged model.
    other = shake_routers(attach(detach(copy.deepcopy(merged))))
    torch.testing.assert_close(logits_of(other), got, **CLOSE)
    with adapted.disable_adapter():
        off = logits_of(adapted)
    assert torch.equal(logits_of(make_attached("llama")), off)
    assert not torch.allclose(off, got)


def test_lora_below():
    adapted = adapt(make_host("llama"))
    before = logits_of(adapted)
    assert torch.equal(logits_of(attach(adapted)), before)
    got = logits_of(shake_routers(adapted))
    merged = shake_routers(attach(detach(adapted).merge_and_unload()))
    torch.testing.assert_close(logits_of(merged), got, **CLOSE)


def test_routers_are_trained_as_modules_of_an_adapter(tmp_path):
    adapted, ids = adapt(make_attached("llama"), modules_to_save=["memory"]), make_ids()
    routers = list(router_parameters(adapted))
    assert len(routers) == 3 and all(weight.requires_grad for weight in routers)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad.abs().max() > 0 for weight in routers)
    optimizer.step()
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(make_attached("llama"), tmp_path)
    torch.testing.assert_close(logits_of(again), logits_of(adapted), **CLOSE)


# Adapters say that they belong to an attached model


def ways_of_loading(load_base, adapter):
    yield peft.AutoPeftModelForCausalLM.from_pretrained(adapter, attn_implementation="eager")
    yield peft.PeftModel.from_pretrained(load_base(), adapter)
    yield peft.PeftModel.from_pretrained(attach(load_base()), adapter)
    # transformers 5.16 loads no modules_to_save.
    if Version(hf.__version__) >= Version("5.23"):
        yield hf.AutoModelForCausalLM.from_pretrained(adapter, attn_implementation="eager")
        bare = load_base()
        bare.load_adapter(str(adapter))
        yield bare


def test_an_adapter_brings_its_routers(load_base, tmp_path):
    adapted = adapt(shake_routers(attach(load_base())), modules_to_save=["memory"])
    with torch.no_grad():
        for weight in router_parameters(adapted):
            weight.mul_(1.1)
    adapted.save_pretrained(tmp_path)
    for model in ways_of_loading(load_base, tmp_path):
        torch.testing.assert_close(logits_of(model), logits_of(adapted), **CLOSE)
    with pytest.raises(ValueError, match="router='full'"):
        other = attach(load_base(), router="last", window=2)
        peft.PeftModel.from_pretrained(other, tmp_path)
    config = peft.PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(config, peft.LoraConfig) and config.peft_type == "LORA"
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin.to_dict() == config.to_dict()


@pytest.mark.parametrize("first", ["attach", "adapt"])
def test_an_adapter_without_its_routers_is_refused_on_a_bare_base(first, load_base, tmp_path):
    model = load_base()
    adapted = adapt(attach(model)) if first == "attach" else attach(adapt(model))
    shake_routers(adapted).save_pretrained(tmp_path / "attached")
    with pytest.raises(ValueError, match="load_routers"):
        peft.PeftModel.from_pretrained(load_base(), tmp_path / "attached")
    base = shake_routers(attach(load_base()))
    again = peft.PeftModel.from_pretrained(base, tmp_path / "attached")
    assert torch.equal(logits_of(again), logits_of(adapted))
    detach(adapted).save_pretrained(tmp_path / "detached")
    config = json.loads((tmp_path / "detached" / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and "layer_memory" not in config


def test_an_adapter_that_transformers_saves(load_base, tmp_path):
    model = shake_routers(attach(load_base()))
    options = {"target_modules": ["q_proj"], "modules_to_save": ["memory"], "r": 2}
    try:
        model.add_adapter(peft.LoraConfig(**options, init_lora_weights=False))
    except ValueError as error:
        if "version" not in str(error):
            raise
        pytest.skip(str(error))
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(load_base(), tmp_path)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), **CLOSE)
