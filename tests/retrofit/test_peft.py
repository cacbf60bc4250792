"""PEFT beside layer memory: LoRA above and below, and routers as part of an adapter."""

import copy

import pytest
import torch
from host_models import make_attached, make_host, make_ids, shake_routers

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


def test_routers_are_part_of_an_adapter(tmp_path):
    adapted, ids = adapt(make_attached("llama"), modules_to_save=["memory"]), make_ids()
    routers = list(router_parameters(adapted))
    assert len(routers) == 3 and all(weight.requires_grad for weight in routers)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad.abs().max() > 0 for weight in routers)
    optimizer.step()
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(attach(make_host("llama")), tmp_path)
    torch.testing.assert_close(logits_of(again), logits_of(adapted), **CLOSE)
    # PEFT would leave the routers out without a word.
    with pytest.raises(ValueError, match="attach it before"):
        peft.PeftModel.from_pretrained(make_host("llama"), tmp_path)


def test_transformers_saves_an_adapter_alone(tmp_path):
    model = make_attached("llama")
    options = {"target_modules": ["q_proj"], "modules_to_save": ["memory"], "r": 2}
    try:
        model.add_adapter(peft.LoraConfig(**options, init_lora_weights=False))
    except ValueError as error:
        if "version" not in str(error):
            raise
        pytest.skip(str(error))
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    loaded = peft.PeftModel.from_pretrained(make_attached("llama"), tmp_path)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), **CLOSE)
