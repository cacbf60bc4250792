"""Saved attached models and their adapters where nothing of ours is called by name."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from forked import run_code
from host_models import GEMMA, HOSTS, make_attached, make_host, make_ids, shake_routers
from packaging.version import Version
from safetensors.torch import load_file, save_file

from layermem.retrofit import (
    Host,
    attach,
    detach,
    load_attached,
    router_parameters,
    save_routers,
)
from layermem.retrofit.attaching import attachment_of
from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer

AUTO = {
    "bert": hf.AutoModelForMaskedLM,
    "roberta": hf.AutoModelForMaskedLM,
    "deberta": hf.AutoModelForMaskedLM,
    "deberta-shared": hf.AutoModelForMaskedLM,
}
GREEDY = {"max_new_tokens": 8, "do_sample": False}


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def save(model, folder):
    model.save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An attached model that knows bytes, and its folder."""
    model = make_attached("llama", vocab_size=300, pad_token_id=256, window=2)
    return model, save(model, tmp_path_factory.mktemp("whole"))


# Whole checkpoints


@pytest.mark.parametrize("name", HOSTS)
def test_an_auto_class_opens_what_was_saved_and_the_hosts_own_refuses(name, tmp_path):
    model, ids = make_attached(name), make_ids()
    model.save_pretrained(tmp_path)
    auto = AUTO.get(name, hf.AutoModelForCausalLM)
    again, info = auto.from_pretrained(
        tmp_path, attn_implementation="eager", output_loading_info=True
    )
    assert type(again) is type(model) and type(again.config) is type(model.config)
    assert not any(info.values())
    assert torch.equal(logits_of(again, ids), logits_of(model, ids))
    assert len(list(router_parameters(again))) == 3
    # The host's own class would leave the routers out, and transformers only report them.
    for cls in (type(model), type(model.base_model)):
        with pytest.raises(Exception, match="layer memory is attached: pip install layermem"):
            cls.from_pretrained(tmp_path)
        config = hf.AutoConfig.from_pretrained(tmp_path)
        with pytest.raises(AttributeError):
            cls.from_pretrained(tmp_path, config=config)
        with pytest.raises(AttributeError):
            cls(config)


def test_a_pipeline_opens_what_was_saved(whole):
    model, folder = whole
    tokenizer = load_tokenizer("bytes")
    ids = tokenizer("w1 w2", return_tensors="pt").input_ids
    expected = tokenizer.decode(model.generate(ids, **GREEDY)[0])
    pipe = hf.pipeline("text-generation", model=folder)
    assert pipe("w1 w2", **GREEDY)[0]["generated_text"] == expected
    assert attachment_of(pipe.model).settings == attachment_of(model).settings


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_any_precision_and_shards(whole, dtype, tmp_path):
    model, _ = whole
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    dtypes = {True: {torch.float32}, False: {dtype}}
    routers = {id(p) for p in router_parameters(again)}
    for of_router, expected in dtypes.items():
        assert {p.dtype for p in again.parameters() if (id(p) in routers) == of_router} == expected
    expected = logits_of(load_attached(tmp_path, dtype=torch.float32), make_ids())
    got = logits_of(again, make_ids()).float()
    assert (got - expected).abs().max() < 0.05 * expected.abs().max()


def test_weights_are_placed_by_a_device_map(whole, tmp_path):
    pytest.importorskip("accelerate")
    model, folder = whole
    where = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    where |= {f"model.layers.{i}": ("cpu", "disk")[i % 2] for i in range(4)} | {"lm_head": "cpu"}
    placed = hf.AutoModelForCausalLM.from_pretrained(
        folder, device_map=where, offload_folder=tmp_path
    )
    torch.testing.assert_close(
        logits_of(placed, make_ids()), logits_of(model, make_ids()), rtol=1e-4, atol=1e-4
    )


def test_other_heads_and_the_base_alone(whole):
    model, folder = whole
    ids = make_ids()
    base = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    classifier = hf.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    assert isinstance(base, hf.LlamaModel) and classifier.config.num_labels == 3
    with torch.no_grad():
        expected = model.model(ids).last_hidden_state
        assert torch.equal(base(ids).last_hidden_state, expected)
    assert len(list(router_parameters(classifier))) == 3
    config = hf.AutoConfig.from_pretrained(folder, num_hidden_layers=4)
    built = hf.AutoModelForCausalLM.from_config(config)
    assert len(list(router_parameters(built))) == 3


def test_saved_again_it_is_the_same_and_detached_it_is_the_host(whole, tmp_path):
    model, folder = whole
    again = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    again.save_pretrained(tmp_path / "again")
    hf.AutoConfig.from_pretrained(folder).save_pretrained(tmp_path / "config")
    texts = [(tmp_path / name / "config.json").read_text() for name in ("again", "config")]
    assert texts == [Path(folder, "config.json").read_text(encoding="utf-8")] * 2
    detach(again).save_pretrained(tmp_path / "bare")
    bare = hf.LlamaForCausalLM.from_pretrained(tmp_path / "bare", attn_implementation="eager")
    assert json.loads((tmp_path / "bare" / "config.json").read_text())["model_type"] == "llama"
    expected = detach(make_attached("llama", vocab_size=300, pad_token_id=256, window=2))
    assert torch.equal(logits_of(bare, make_ids()), logits_of(expected, make_ids()))


def test_a_config_reaches_another_process(whole, tmp_path):
    config = hf.AutoConfig.from_pretrained(whole[1])
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(config))
    code = f"""
import layermem, pickle, pathlib
config = pickle.loads(pathlib.Path({str(tmp_path / "config.pickle")!r}).read_bytes())
print(config.to_json_string())
"""
    status, shown, errors = run_code(code, folder=tmp_path)
    assert status == 0, errors
    assert json.loads(shown) == json.loads(config.to_json_string())
    assert copy.deepcopy(config).to_json_string() == config.to_json_string()


def test_a_model_of_images_is_opened_and_its_class_refused(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 20, "image_size": 16, "patch_size": 8}
    vision = {**sizes, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = hf.Gemma3Config(text_config=GEMMA, vision_config=vision, image_token_index=60)
    torch.manual_seed(0)
    model = shake_routers(attach(hf.Gemma3ForConditionalGeneration(config).eval()))
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert torch.equal(logits_of(again, make_ids() % 50), logits_of(model, make_ids() % 50))
    for cls in (hf.Gemma3ForConditionalGeneration, hf.Gemma3ForCausalLM):
        with pytest.raises(Exception):  # noqa: B017
            cls.from_pretrained(tmp_path)


def test_lost_routers_are_refused(whole, tmp_path):
    model, _ = whole
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.2.self_attn.memory.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks 1 of the model's weights, such as model.layers.2"):
        hf.AutoModelForCausalLM.from_pretrained(tmp_path)


class FalconHost:
    """An architecture that is not in the table, and its ``Host``."""

    mapping = Host(
        layers="transformer.h", attention="self_attention", fused="query_key_value", layout="heads"
    )

    @staticmethod
    def make():
        torch.manual_seed(0)
        sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3}
        heads = {"num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True}
        config = hf.FalconConfig(
            **sizes, **heads, bos_token_id=1, eos_token_id=256, attn_implementation="eager"
        )
        return hf.FalconForCausalLM(config).eval()


def test_a_hosts_mapping_is_kept(tmp_path, capsys):
    FalconHost.make().save_pretrained(tmp_path / "base")
    base = hf.FalconForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager")
    model = shake_routers(attach(base, host=FalconHost.mapping)).eval()
    save(model, tmp_path / "whole")
    load_tokenizer("bytes").save_pretrained(tmp_path / "base")
    save_routers(model, tmp_path / "routers")
    tokenizer = load_tokenizer("bytes")
    ids = tokenizer("w1 w2", return_tensors="pt").input_ids
    for folder in (tmp_path / "whole", tmp_path / "routers"):
        again = load_attached(folder, attn_implementation="eager")
        assert torch.equal(logits_of(again, ids), logits_of(model, ids))
    generated = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=256)
    expected = tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)
    for name in ("whole", "routers"):
        cli.main(["models", "generate", str(tmp_path / name), "w1 w2", "--max-new-tokens", "6"])
        assert capsys.readouterr().out == expected + "\n"


# Adapters of PEFT


def adapt(model, **options):
    peft = pytest.importorskip("peft")
    options = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False} | options
    torch.manual_seed(3)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    return save(make_host("llama", vocab_size=300), folder)


def load_base(folder):
    return hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def ways_of_loading(base, adapter):
    import peft

    yield peft.AutoPeftModelForCausalLM.from_pretrained(adapter, attn_implementation="eager")
    yield peft.PeftModel.from_pretrained(load_base(base), adapter)
    # transformers 5.16 loads no modules_to_save.
    if Version(hf.__version__) >= Version("5.23"):
        yield hf.AutoModelForCausalLM.from_pretrained(adapter, attn_implementation="eager")
        bare = load_base(base)
        bare.load_adapter(str(adapter))
        yield bare


def test_an_adapter_brings_its_routers(base, tmp_path):
    ids = make_ids()
    adapted = adapt(shake_routers(attach(load_base(base))), modules_to_save=["memory"])
    with torch.no_grad():
        for weight in router_parameters(adapted):
            weight.mul_(1.1)
    expected = logits_of(adapted, ids)
    adapted.save_pretrained(tmp_path)
    for model in ways_of_loading(base, tmp_path):
        torch.testing.assert_close(logits_of(model, ids), expected, rtol=1e-5, atol=1e-5)
    import peft

    onto_attached = peft.PeftModel.from_pretrained(attach(load_base(base)), tmp_path)
    torch.testing.assert_close(logits_of(onto_attached, ids), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="with router='full', this"):
        other = attach(load_base(base), router="last", window=2)
        peft.PeftModel.from_pretrained(other, tmp_path)


@pytest.mark.parametrize("first", ["attach", "adapt"])
def test_an_adapter_without_its_routers_is_refused_on_a_bare_base(first, base, tmp_path):
    import peft

    if first == "attach":
        adapted = adapt(shake_routers(attach(load_base(base))))
    else:
        adapted = shake_routers(attach(adapt(load_base(base))))
    adapted.save_pretrained(tmp_path / "attached")
    with pytest.raises(ValueError, match="load_routers"):
        peft.PeftModel.from_pretrained(load_base(base), tmp_path / "attached")
    again = peft.PeftModel.from_pretrained(
        shake_routers(attach(load_base(base))), tmp_path / "attached"
    )
    assert torch.equal(logits_of(again, make_ids()), logits_of(adapted, make_ids()))
    detach(adapted).save_pretrained(tmp_path / "detached")
    peft.PeftModel.from_pretrained(load_base(base), tmp_path / "detached")


def test_a_config_of_an_adapter_is_copied_and_pickled(base, tmp_path):
    import peft

    adapt(attach(load_base(base)), modules_to_save=["memory"]).save_pretrained(tmp_path)
    config = peft.PeftConfig.from_pretrained(str(tmp_path))
    assert isinstance(config, peft.LoraConfig) and config.peft_type == "LORA"
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin.to_dict() == config.to_dict()


def test_an_adapter_that_transformers_saves(base, tmp_path):
    import peft

    ids, model = make_ids(), shake_routers(attach(load_base(base)))
    options = {"target_modules": ["q_proj"], "modules_to_save": ["memory"], "r": 2}
    try:
        model.add_adapter(peft.LoraConfig(**options, init_lora_weights=False))
    except ValueError as error:
        if "version" not in str(error):
            raise
        pytest.skip(str(error))
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(load_base(base), tmp_path)
    torch.testing.assert_close(logits_of(loaded, ids), logits_of(model, ids), rtol=1e-5, atol=1e-5)


def test_an_adapter_of_a_bare_model_stays_pefts(base, tmp_path):
    adapt(load_base(base)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and "layer_memory" not in config


# Without layermem

WITHOUT = """
import json, sys
sys.modules["layermem"] = None
import peft, transformers
from transformers import AutoModelForCausalLM as auto
whole, base, adapter = sys.argv[1:]
outcomes = {}
for name, load in {
    "auto": lambda: auto.from_pretrained(whole),
    "trusted": lambda: auto.from_pretrained(whole, trust_remote_code=True),
    "class": lambda: transformers.LlamaForCausalLM.from_pretrained(whole),
    "pipeline": lambda: transformers.pipeline("text-generation", model=whole),
    "auto adapter": lambda: peft.AutoPeftModelForCausalLM.from_pretrained(adapter),
    "adapter": lambda: peft.PeftModel.from_pretrained(auto.from_pretrained(base), adapter),
    "adapter by transformers": lambda: auto.from_pretrained(adapter),
    "base": lambda: auto.from_pretrained(base),
}.items():
    try:
        load()
        outcomes[name] = None
    except Exception as error:
        outcomes[name] = str(error)
print("\\n" + json.dumps(outcomes))
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_without_layermem_all_is_refused(whole, base, tmp_path):
    adapt(attach(load_base(base)), modules_to_save=["memory"]).save_pretrained(tmp_path)
    outcomes = run(WITHOUT, whole[1], base, str(tmp_path))
    assert len(outcomes) == 8
    # The base itself is anyone's.
    assert outcomes.pop("base") is None
    # transformers asks to trust the module first that says what is missing.
    assert "trust_remote_code" in outcomes.pop("auto") + outcomes.pop("pipeline")
    assert all("layermem" in message.lower() for message in outcomes.values()), outcomes


STUB = """
import sys, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
from layermem.retrofit import router_parameters
print(len(list(router_parameters(model))))
"""


@pytest.mark.slow
def test_the_stub_imports_layermem(whole):
    assert run(STUB, whole[1]) == 3
