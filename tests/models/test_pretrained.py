"""Loading: LLaMA checkpoints, the saved stub, and what is refused rather than left at random."""

import json
import re
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from safetensors.torch import load_file, save_file
from tiny import TINY, make
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    logging,
)

import layermem
from layermem import (
    LimeConfig,
    LimeForCausalLM,
    LimeModel,
    PlainConfig,
    PlainForCausalLM,
)
from layermem.models.registry import lookup
from layermem.variants.lime import LimeForSequenceClassification


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TINY)).eval()


@pytest.fixture
def saved(tmp_path):
    """A LIMe checkpoint's folder."""
    make(LimeForCausalLM, LimeConfig(**TINY)).save_pretrained(tmp_path)
    return tmp_path


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def edit_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("fields", [{}, {"router": "last", "router_window": 2}], ids=str)
@pytest.mark.parametrize("by", ["path", "model"])
@pytest.mark.parametrize(
    "llama_fields",
    [
        {},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True, "head_dim": 12},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4}},
    ],
    ids=["gqa", "bias", "tied-wide", "rope"],
)
def test_from_llama_computes_what_the_llama_computes(llama_fields, by, fields, ids, tmp_path):
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**TINY, **llama_fields)).eval()
    if by == "path":
        llama.save_pretrained(tmp_path)
    model = LimeForCausalLM.from_llama(tmp_path if by == "path" else llama, **fields)
    assert model.config.router_init == "identity"
    assert model.config.router == fields.get("router", "full")
    assert not model.training
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=0, atol=1e-6)


def test_from_llama_with_the_papers_routers_differs_and_keeps_the_rest(llama, ids):
    model = LimeForCausalLM.from_llama(llama, router_init="paper")
    with torch.no_grad():
        assert (model(ids).logits - llama(ids).logits).abs().max() > 1e-3
    weights = model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in llama.state_dict().items())


@pytest.mark.parametrize("name", ["value_residual", "depth_attention"])
def test_a_variant_without_parameters_of_its_own_is_no_llama(name, llama, ids, tmp_path):
    llama.save_pretrained(tmp_path)
    cls = lookup(name).causal_lm
    with pytest.raises(ValueError, match=f"is a LLaMA, and a {cls.__name__} computes something el"):
        cls.from_pretrained(tmp_path)
    cls.from_llama(tmp_path)
    loaded = PlainForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(ids).logits, llama(ids).logits)


def test_from_llama_leaves_the_source_alone(llama, ids):
    before = llama(ids).logits
    model = LimeForCausalLM.from_llama(llama)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(llama(ids).logits, before)


def test_from_llama_keeps_and_takes_a_dtype(llama, tmp_path):
    llama.bfloat16().save_pretrained(tmp_path)
    assert LimeForCausalLM.from_llama(tmp_path).dtype == torch.bfloat16
    assert LimeForCausalLM.from_llama(llama).dtype == torch.bfloat16
    assert LimeForCausalLM.from_llama(llama, dtype="float32").dtype == torch.float32
    assert LimeForCausalLM.from_llama(tmp_path, dtype=torch.float32).dtype == torch.float32
    with pytest.raises(ValueError, match="'flot'"):
        LimeForCausalLM.from_llama(tmp_path, dtype="flot")


def test_from_llama_is_quiet_about_routers_it_means_to_add(llama, tmp_path, caplog):
    llama.save_pretrained(tmp_path)
    logging.enable_propagation()
    try:
        LimeForCausalLM.from_llama(tmp_path)
    finally:
        logging.disable_propagation()
    assert "MISSING" not in caplog.text


def test_from_llama_saves_and_loads_as_lime(llama, ids, tmp_path):
    model = LimeForCausalLM.from_llama(llama)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LimeForCausalLM
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_from_llama_takes_the_generation_settings(llama, tmp_path):
    llama.generation_config.max_new_tokens = 7
    llama.save_pretrained(tmp_path)
    assert LimeForCausalLM.from_llama(llama).generation_config.max_new_tokens == 7
    assert LimeForCausalLM.from_llama(tmp_path).generation_config.max_new_tokens == 7


def test_from_llama_gives_every_class(llama, ids, tmp_path):
    llama.save_pretrained(tmp_path)
    hidden = llama.model(ids).last_hidden_state
    for source in (llama, tmp_path):
        base = LimeModel.from_llama(source)
        torch.testing.assert_close(base(ids).last_hidden_state, hidden, rtol=0, atol=1e-6)
        classifier = LimeForSequenceClassification.from_llama(source, num_labels=5)
        assert classifier.score.weight.shape == (5, 32)
        got = classifier.model(ids).last_hidden_state
        torch.testing.assert_close(got, hidden, rtol=0, atol=1e-6)


def test_memory_is_added_to_our_own_plain_models_too(ids, tmp_path):
    plain = make(PlainForCausalLM, PlainConfig(**TINY))
    plain.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = plain(ids).logits
        assert torch.equal(LimeForCausalLM.from_llama(tmp_path)(ids).logits, expected)
        assert torch.equal(LimeForCausalLM.from_llama(plain)(ids).logits, expected)


def test_plain_loads_a_llama_folder(llama, ids, tmp_path):
    llama.save_pretrained(tmp_path)
    for loaded in (
        PlainForCausalLM.from_pretrained(tmp_path),
        PlainForCausalLM.from_llama(tmp_path),
    ):
        assert torch.equal(loaded(ids).logits, llama(ids).logits)


def test_another_family_is_refused(tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11))
    gpt2.save_pretrained(tmp_path)
    for source in (gpt2, tmp_path):
        with pytest.raises(ValueError, match="'gpt2'"):
            LimeForCausalLM.from_llama(source)


@pytest.mark.parametrize("cls", [LimeForCausalLM, LimeModel, LimeForSequenceClassification])
def test_a_checkpoint_without_routers_is_refused(cls, llama, tmp_path):
    llama.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"memory.weight.*{cls.__name__}.from_llama"):
        cls.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "Qwen3", "GPT2", "Granite"])
def test_the_error_says_whose_model_a_folder_holds(family, tmp_path):
    fields = {**TINY, "n_layer": 1, "n_head": 2, "n_embd": 8} if family == "GPT2" else TINY
    config = getattr(transformers, f"{family}Config")(**fields)
    getattr(transformers, f"{family}ForCausalLM", GPT2LMHeadModel)(config).save_pretrained(tmp_path)
    named = rf"model_type '{family.lower()}' \({family}\w+\)"
    for cls in (LimeForCausalLM, LimeModel, PlainForCausalLM):
        with pytest.raises(ValueError, match=f"{named}.*{cls.__name__} loads 'layermem_") as error:
            cls.from_pretrained(tmp_path)
        assert "a LLaMA, no other family" in str(error.value)
        with pytest.raises(ValueError, match=f"takes a LLaMA checkpoint, got one of {named}"):
            cls.from_llama(tmp_path)


@pytest.mark.parametrize("cls", [LimeForCausalLM, LimeModel])
def test_weights_under_other_names_are_shown(cls, saved, ids):
    def rename(weights):
        for name in list(weights):
            weights[f"wrapped.{name.replace('layers', 'blocks')}"] = weights.pop(name)

    edit_weights(saved, rename)
    ours = "(model.)?embed_tokens.weight"
    with pytest.raises(ValueError, match=f"such as {ours}.*such as wrapped.*key_mapping"):
        cls.from_pretrained(saved)


def test_names_may_be_mapped(saved, ids):
    expected = LimeForCausalLM.from_pretrained(saved)(ids).logits

    def rename(weights):
        for name in list(weights):
            weights[f"wrapped.{name}"] = weights.pop(name)

    edit_weights(saved, rename)
    model = LimeForCausalLM.from_pretrained(saved, key_mapping={r"^wrapped\.": ""})
    assert torch.equal(model(ids).logits, expected)


@pytest.mark.parametrize("name", ["model.norm.bias", "lm_head.bias", "model.stream.mix.weight"])
def test_what_the_decoder_has_no_place_for_is_refused(name, saved):
    """It would have changed what the model computes, though no layer holds it."""
    edit_weights(saved, lambda w: w.update({name: torch.ones(32)}))
    with pytest.raises(ValueError, match=f"1 weights .* not have, such as {name}"):
        LimeForCausalLM.from_pretrained(saved)


def test_from_llama_never_guesses_at_a_head(llama, tmp_path):
    llama.model.save_pretrained(tmp_path)
    for source in (tmp_path, llama.model):
        with pytest.raises(ValueError, match="no lm_head.weight"):
            LimeForCausalLM.from_llama(source)
        LimeModel.from_llama(source)


def test_a_gguf_file_is_left_to_llama(saved):
    for load in (LimeForCausalLM.from_pretrained, LimeForCausalLM.from_llama):
        with pytest.raises(
            ValueError, match="does not load GGUF files; load it with transformers' Llama"
        ):
            load(saved, gguf_file="model.gguf")


def test_one_missing_router_is_refused(saved):
    edit_weights(saved, lambda w: w.pop("model.layers.2.self_attn.memory.weight"))
    with pytest.raises(ValueError, match=r"layers.2.self_attn.memory.weight; .*'layermem_lime'"):
        AutoModelForCausalLM.from_pretrained(saved)


def test_a_missing_weight_is_refused(saved):
    edit_weights(saved, lambda w: w.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match="lacks 1 weights, such as model.layers.2.mlp.up_proj"):
        LimeForCausalLM.from_pretrained(saved)


def test_a_lime_checkpoint_is_no_plain_one(saved):
    with pytest.raises(ValueError, match="of the variant 'lime', and PlainForCausalLM would"):
        PlainForCausalLM.from_pretrained(saved)


@pytest.mark.parametrize(
    ("of", "loaded_by"),
    [("value_residual", "plain"), ("plain", "depth_attention"), ("lime+mudd", "mudd")],
)
def test_variants_whose_weights_have_the_same_names_are_not_exchanged(of, loaded_by, tmp_path):
    fields = {"router": "average"} if "lime" in of else {}
    layermem.build(of, **TINY, **fields).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"of the variant '{re.escape(of)}'"):
        lookup(loaded_by).causal_lm.from_pretrained(tmp_path)


def test_an_offloaded_llama_is_refused():
    with torch.device("meta"):
        llama = LlamaForCausalLM(LlamaConfig(**TINY))
    with pytest.raises(ValueError, match="are offloaded: pass the folder"):
        PlainForCausalLM.from_llama(llama)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 3),
        ("num_hidden_layers", 6),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 1),
        ("head_dim", 16),
        ("router", "average"),
        ("hidden_act", "gelu"),
        ("rms_norm_eps", 0.01),
    ],
)
@pytest.mark.parametrize("given", ["config", "field"])
def test_other_sizes_than_the_checkpoints_are_refused(given, name, value, saved):
    fields = {**TINY, name: value}
    asked = {"config": LimeConfig(**fields)} if given == "config" else {name: value}
    with pytest.raises(ValueError, match=f"{name}=.*, got {name}={value}"):
        LimeForCausalLM.from_pretrained(saved, **asked)


def test_another_rope_than_the_checkpoints_is_asked_for_by_name(tmp_path):
    """A config that was made by hand leaves its base out; rope for longer texts is asked for."""
    rope = {"rope_type": "default", "rope_theta": 5e5}
    model = LimeForCausalLM(LimeConfig(**TINY, rope_parameters=rope))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"rope_theta=500000.0, got a config with 10000.0"):
        LimeForCausalLM.from_pretrained(tmp_path, config=LimeConfig(**TINY))
    longer = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    of_longer = tmp_path / "longer"
    LimeForCausalLM(LimeConfig(**TINY, rope_parameters=longer)).save_pretrained(of_longer)
    same_base = {"rope_type": "default", "rope_theta": 5e5}
    with pytest.raises(ValueError, match=r"rope_type=linear, got a config with default"):
        LimeForCausalLM.from_pretrained(
            of_longer, config=LimeConfig(**TINY, rope_parameters=same_base)
        )
    LimeForCausalLM.from_pretrained(tmp_path, config=LimeConfig(**TINY, rope_parameters=rope))
    LimeForCausalLM.from_pretrained(tmp_path, config=LimeConfig(**TINY, rope_parameters=longer))
    other = {"rope_type": "default", "rope_theta": 1e4}
    LimeForCausalLM.from_pretrained(tmp_path, rope_parameters=other)


@pytest.mark.parametrize("lost", [[0, 1, 2, 3], [1], [0]], ids=str)
def test_lost_layers_in_the_middle_are_no_shorter_model(lost, saved):
    def lose(weights):
        for name in list(weights):
            if any(f"layers.{i}." in name for i in lost) and ".memory." not in name:
                del weights[name]

    edit_weights(saved, lose)
    with pytest.raises(ValueError, match=f"lacks {9 * len(lost)} weights, such as model.layers"):
        LimeForCausalLM.from_pretrained(saved)


@pytest.mark.parametrize(("claimed", "layer"), [(3, 3), (6, 4)])
def test_a_config_that_lies_about_its_layers_is_refused(claimed, layer, saved):
    edit_config(saved, num_hidden_layers=claimed)
    with pytest.raises(
        ValueError, match=rf"(layers.{layer}.*|)num_hidden_layers={claimed}.*(layers.{layer}|)"
    ):
        LimeForCausalLM.from_pretrained(saved)


def test_a_config_that_lies_about_its_heads_is_refused(saved):
    edit_config(saved, num_key_value_heads=4)
    with pytest.raises(RuntimeError, match="mismatch"):
        LimeForCausalLM.from_pretrained(saved)


def test_a_wrong_dtype_is_named(saved):
    with pytest.raises(ValueError, match="'bfloat17'"):
        LimeForCausalLM.from_pretrained(saved, dtype="bfloat17")


@pytest.mark.parametrize("load", [LimeForCausalLM.from_pretrained, LimeForCausalLM.from_llama])
def test_a_path_that_is_no_checkpoint_is_named(load, tmp_path):
    with pytest.raises(OSError, match=r"absent does not exist"):
        load(tmp_path / "absent")
    with pytest.raises(OSError, match=r"has no config.json"):
        load(tmp_path)
    (tmp_path / "file.bin").write_bytes(b"?")
    with pytest.raises(OSError, match=r"file.bin is a file"):
        load(tmp_path / "file.bin")


def test_a_corrupt_checkpoint_is_refused(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(Exception, match=r"(?i)safetensor|incomplete|header|size"):
        LimeForCausalLM.from_pretrained(saved)


def test_mismatches_may_be_waved_through(saved):
    model = LimeForCausalLM.from_pretrained(saved, ignore_mismatched_sizes=True, vocab_size=10)
    assert model.lm_head.weight.shape[0] == 10


def test_a_head_may_be_new(saved):
    model, info = LimeForSequenceClassification.from_pretrained(saved, output_loading_info=True)
    assert info["missing_keys"] == {"score.weight"}
    base = LimeForCausalLM.from_pretrained(saved).model
    assert torch.equal(
        model.model.layers[2].self_attn.memory.weight, base.layers[2].self_attn.memory.weight
    )


def test_the_base_model_loads_from_a_causal_lm_and_back(saved, tmp_path, ids):
    base = LimeModel.from_pretrained(saved)
    base.save_pretrained(tmp_path / "base")
    again = LimeForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(base(ids).last_hidden_state, again.model(ids).last_hidden_state)


def test_saved_folders_hold_no_pickle_and_a_stub(saved):
    names = {path.name for path in saved.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_layermem.py",
    }
    auto_map = json.loads((saved / "config.json").read_text())["auto_map"]
    assert auto_map["AutoConfig"] == "modeling_layermem.LimeConfig"
    assert auto_map["AutoModelForCausalLM"] == "modeling_layermem.LimeForCausalLM"
    assert len(auto_map) == 6


def run(code, *paths, cwd):
    """Run Python that has the paths before its own, and transformers' cache in ``cwd``."""
    environment = {"HF_HOME": str(cwd / "hf"), "PYTHONPATH": ":".join(map(str, paths))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=cwd
    )


def test_the_stub_loads_without_an_import_of_ours(saved, tmp_path):
    code = (
        "from transformers import AutoModelForCausalLM as A; "
        f"print(type(A.from_pretrained({str(saved)!r}, trust_remote_code=True)).__module__)"
    )
    done = run(code, Path(__file__).parents[2] / "src", cwd=tmp_path)
    assert done.stdout.strip() == "layermem.variants.lime", done.stderr


def test_the_stub_says_what_is_missing(saved, tmp_path):
    # A package of our name that cannot be imported: as if it were not installed.
    (tmp_path / "block" / "layermem").mkdir(parents=True)
    (tmp_path / "block" / "layermem" / "__init__.py").write_text("raise ImportError('absent')")
    code = (
        "from transformers import AutoModelForCausalLM as A; "
        f"A.from_pretrained({str(saved)!r}, trust_remote_code=True)"
    )
    done = run(code, tmp_path / "block", cwd=tmp_path)
    assert done.returncode and "pip install layermem" in done.stderr


def test_loading_through_the_stub_does_not_copy_our_sources(saved, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True)
    model.save_pretrained(tmp_path / "again")
    assert {p.name for p in (tmp_path / "again").iterdir()} == {
        p.name for p in saved.iterdir() if p.is_file()
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"num_attention_heads": 2, "head_dim": 16, "num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"rms_norm_eps": 0.5},
        {"hidden_act": "relu"},
    ],
    ids=["heads", "tied", "epsilon", "activation"],
)
def test_from_llama_never_gives_weights_another_meaning(fields, llama, tmp_path):
    llama.save_pretrained(tmp_path)
    for source in (llama, tmp_path):
        with pytest.raises(ValueError, match="its weights cannot be used with another value"):
            LimeForCausalLM.from_llama(source, **fields)


def test_ignored_sizes_are_no_other_heads(saved):
    other = {"num_attention_heads": 2, "head_dim": 16, "num_key_value_heads": 1}
    with pytest.raises(ValueError, match="its weights cannot be used with another value"):
        LimeForCausalLM.from_pretrained(saved, ignore_mismatched_sizes=True, **other)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_head_is_not_tied_or_untied_in_loading(tied, tmp_path):
    config = LimeConfig(**TINY, tie_word_embeddings=tied)
    make(LimeForCausalLM, config).save_pretrained(tmp_path)
    for load in (LimeForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match="saved with tie_word_embeddings"):
            load(tmp_path, tie_word_embeddings=not tied)


@pytest.mark.parametrize("name", ["cla", "yoco", "fused_kv", "cla+mudd"])
def test_from_llama_makes_no_plain_decoder_of_a_variant_that_shares(name, llama, tmp_path):
    """At the fields that make it the plain decoder it would share nothing."""
    llama.save_pretrained(tmp_path)
    cls = lookup(name).causal_lm
    for source in (llama, tmp_path):
        with pytest.raises(ValueError, match=f"its defaults 2 of the 4 layers of {cls.__name__}"):
            cls.from_llama(source)
    # Who asks for it by name has it.
    assert isinstance(cls.from_llama(llama, **cls.variant.plain_fields), cls)


def test_a_file_that_is_cut_short_is_named(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for load in (LimeForCausalLM.from_llama, PlainForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=str(tmp_path)):
            load(tmp_path)


def test_from_llama_takes_the_older_name_of_a_dtype(llama, tmp_path):
    llama.save_pretrained(tmp_path)
    for source in (llama, tmp_path):
        model = LimeForCausalLM.from_llama(source, torch_dtype="bfloat16")
        assert model.dtype == torch.bfloat16


def test_from_llama_takes_all_of_a_trained_memory_or_none(llama, ids):
    layermem.attach(llama)
    with torch.no_grad():
        for parameter in layermem.router_parameters(llama):
            parameter.add_(0.2 * torch.randn_like(parameter))
    torch.testing.assert_close(LimeForCausalLM.from_llama(llama)(ids).logits, llama(ids).logits)
    with pytest.raises(ValueError, match="has some of the 6 parameters .* detach its memory"):
        LimeForCausalLM.from_llama(llama, router_shares_kv=False)


def test_from_llama_takes_no_router_that_would_read_other_layers(llama, ids, tmp_path):
    """Weights of windows have one shape whichever layers they read."""
    layermem.attach(llama, router="first", window=1)
    with torch.no_grad():
        for parameter in layermem.router_parameters(llama):
            parameter.add_(0.2 * torch.randn_like(parameter))
    same = LimeForCausalLM.from_llama(llama, router="first", router_window=1)
    torch.testing.assert_close(same(ids).logits, llama(ids).logits)
    others = [[], [0], [0, 1], [0, 1]]
    with pytest.raises(ValueError, match=r"reads the layers \[0, 2, 3\] in .* fields \[0, 1, 3\]"):
        LimeForCausalLM.from_llama(llama, router_sources=others)
    bare = layermem.LimeModel.from_llama(llama, router="first", router_window=1)
    torch.testing.assert_close(bare(ids)[0], llama.model(ids)[0])
    llama.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has layer memory attached, .* pass the model"):
        LimeForCausalLM.from_llama(tmp_path, router="first", router_window=1)


def test_from_llama_refuses_an_adapter_on_a_tied_head():
    llama = LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True))
    with pytest.warns(UserWarning, match="a tied layer is part of the adapter"):
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["lm_head"]), llama)
    with pytest.raises(ValueError, match=r"does not have, such as lm_head\."):
        LimeForCausalLM.from_llama(llama)


def test_from_llama_takes_no_other_weights_than_the_llamas(llama):
    with pytest.raises(TypeError, match="no config or state_dict"):
        LimeForCausalLM.from_llama(llama, state_dict=llama.state_dict())


class ScaledLlama(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 3 * output.logits
        return output


def test_a_llama_with_a_forward_of_its_own_is_refused():
    with pytest.raises(ValueError, match="ScaledLlama has a forward of its own"):
        LimeForCausalLM.from_llama(ScaledLlama(LlamaConfig(**TINY)))


def test_a_llama_that_brings_its_own_code_is_refused(llama, tmp_path, ids):
    llama.save_pretrained(tmp_path)
    edit_config(tmp_path, auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    with pytest.raises(ValueError, match="code of its own for AutoModelForCausalLM"):
        LimeForCausalLM.from_llama(tmp_path, trust_remote_code=True)
    assert torch.equal(LimeForCausalLM.from_llama(tmp_path)(ids).logits, llama(ids).logits)


@pytest.mark.parametrize("name", ["model.embed_positions.weight", "model.extra_norm.weight"])
def test_an_unknown_part_inside_the_decoder_is_refused(name, llama, saved, tmp_path):
    llama.save_pretrained(tmp_path / "llama")
    edit_weights(saved, lambda w: w.update({name: torch.ones(32)}))
    edit_weights(tmp_path / "llama", lambda w: w.update({name: torch.ones(32)}))
    with pytest.raises(ValueError, match=f"does not have, such as {name}"):
        LimeForCausalLM.from_pretrained(saved)
    with pytest.raises(ValueError, match=f"does not have, such as {name}"):
        LimeForCausalLM.from_llama(tmp_path / "llama")


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 4},
        {"attention_chunk_size": 4},
        {"layer_types": ["sliding_attention"] * 4},
    ],
    ids=str,
)
def test_fields_that_make_a_cache_forget_are_refused(fields, llama, tmp_path):
    llama.save_pretrained(tmp_path)
    edit_config(tmp_path, **fields)
    for load in (LimeForCausalLM.from_llama, PlainForCausalLM.from_pretrained):
        with pytest.raises(StrictDataclassClassValidationError, match="attends to all earlier"):
            load(tmp_path)
