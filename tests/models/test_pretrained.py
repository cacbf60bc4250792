"""Loading: LLaMA checkpoints, the saved stub, and what is refused rather than left at random."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError
from safetensors.torch import load_file, save_file
from tiny import TINY, make
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, logging

import layermem
from layermem import LimeConfig, LimeForCausalLM, LimeModel, PlainConfig, PlainForCausalLM
from layermem.models.registry import lookup
from layermem.variants.lime import LimeForSequenceClassification


@pytest.fixture
def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TINY)).eval()


@pytest.fixture
def saved_llama(llama, tmp_path):
    """A LLaMA checkpoint's folder."""
    llama.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def saved(tmp_path):
    """A LIMe checkpoint's folder."""
    make(LimeForCausalLM, LimeConfig(**TINY)).save_pretrained(tmp_path / "lime")
    return tmp_path / "lime"


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def edit_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# A LLaMA as a start


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
    before = llama(ids).logits
    with pytest.warns(UserWarning, match="router_init"):
        model = LimeForCausalLM.from_llama(llama, router_init="paper")
    with torch.no_grad():
        assert (model(ids).logits - before).abs().max() > 1e-3
        weights = model.state_dict()
        assert all(torch.equal(weights[name], value) for name, value in llama.state_dict().items())
        # Of the source nothing is shared.
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(llama(ids).logits, before)


def test_from_llama_keeps_dtype_and_generation_settings_and_takes_a_dtype(llama, tmp_path):
    llama.generation_config.max_new_tokens = 7
    llama.bfloat16().save_pretrained(tmp_path)
    for source in (llama, tmp_path):
        kept = LimeForCausalLM.from_llama(source)
        assert kept.dtype == torch.bfloat16 and kept.generation_config.max_new_tokens == 7
        for given in ({"dtype": "float32"}, {"torch_dtype": torch.float32}):
            assert LimeForCausalLM.from_llama(source, **given).dtype == torch.float32
    with pytest.raises(ValueError, match="dtype"):
        LimeForCausalLM.from_llama(tmp_path, dtype="flot")


def test_from_llama_gives_every_class_without_a_report(llama, saved_llama, ids, caplog):
    logging.enable_propagation()
    hidden = llama.model(ids).last_hidden_state
    for source in (llama, saved_llama):
        base = LimeModel.from_llama(source)
        torch.testing.assert_close(base(ids).last_hidden_state, hidden, rtol=0, atol=1e-6)
        classifier = LimeForSequenceClassification.from_llama(source, num_labels=5)
        assert classifier.score.weight.shape == (5, 32)
        got = classifier.model(ids).last_hidden_state
        torch.testing.assert_close(got, hidden, rtol=0, atol=1e-6)
    logging.disable_propagation()
    assert "MISSING" not in caplog.text


def test_memory_is_added_to_our_own_plain_models_too(ids, tmp_path):
    plain = make(PlainForCausalLM, PlainConfig(**TINY))
    plain.save_pretrained(tmp_path)
    for source in (tmp_path, plain):
        model = LimeForCausalLM.from_llama(source)
        assert torch.equal(model(ids).logits, plain(ids).logits)
    model.save_pretrained(tmp_path / "lime")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert type(loaded) is LimeForCausalLM
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_plain_loads_a_llama_folder(llama, saved_llama, ids):
    for load in (PlainForCausalLM.from_pretrained, PlainForCausalLM.from_llama):
        assert torch.equal(load(saved_llama)(ids).logits, llama(ids).logits)


@pytest.mark.parametrize("family", ["Mistral", "Qwen3"])
def test_another_family_is_refused(family, tmp_path):
    config = getattr(transformers, f"{family}Config")(**TINY)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(tmp_path)
    for load in (LimeForCausalLM.from_pretrained, LimeForCausalLM.from_llama):
        with pytest.raises(ValueError, match=f"'{family.lower()}'"):
            load(tmp_path)
    with pytest.raises(ValueError, match=f"'{family.lower()}'"):
        LimeForCausalLM.from_llama(model)


def test_from_llama_never_guesses_at_a_head(llama, tmp_path):
    llama.model.save_pretrained(tmp_path)
    for source in (tmp_path, llama.model):
        with pytest.raises(ValueError, match=r"lm_head\.weight"):
            LimeForCausalLM.from_llama(source)
        LimeModel.from_llama(source)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_attention_heads": 2, "head_dim": 16},
        {"tie_word_embeddings": True},
        {"rms_norm_eps": 0.5},
        {"hidden_act": "relu"},
    ],
    ids=["heads", "tied", "epsilon", "activation"],
)
def test_from_llama_never_gives_weights_another_meaning(fields, llama, saved_llama):
    for source in (llama, saved_llama):
        with pytest.raises(ValueError, match=next(iter(fields))):
            LimeForCausalLM.from_llama(source, **fields)


@pytest.mark.parametrize("name", ["cla", "yoco", "fused_kv", "cla+mudd", "lime_half"])
def test_from_llama_makes_no_plain_decoder_of_a_variant_that_shares(name, llama, saved_llama):
    """At the fields that make it the plain decoder it would share nothing."""
    cls = lookup(name).causal_lm
    for source in (llama, saved_llama):
        with pytest.raises(ValueError, match=f"2 of the 4 layers of {cls.__name__}"):
            cls.from_llama(source)
    # Who asks for it by name has it.
    if cls.variant.plain_fields is not None:
        assert isinstance(cls.from_llama(llama, **cls.variant.plain_fields), cls)


def test_from_llama_takes_a_llama_without_memory(llama, tmp_path, ids):
    """Routers read what the fields of their attachment say, not those of the new model."""
    layermem.attach(llama)
    llama.save_pretrained(tmp_path)
    for source in (llama, tmp_path):
        with pytest.raises(ValueError, match="attached|memory.weight"):
            LimeForCausalLM.from_llama(source)
    layermem.detach(llama)
    assert torch.equal(LimeForCausalLM.from_llama(llama)(ids).logits, llama(ids).logits)


def test_from_llama_takes_no_other_config_and_weights_than_the_llamas(llama):
    for given in ({"state_dict": llama.state_dict()}, {"config": LimeConfig(**TINY)}):
        with pytest.raises(TypeError, match=min(given)):
            LimeForCausalLM.from_llama(llama, **given)


# A checkpoint that is not whole, or another's


@pytest.mark.parametrize("cls", [LimeForCausalLM, LimeModel, lookup("value_residual").causal_lm])
def test_a_llama_is_no_checkpoint_of_a_variant(cls, saved_llama):
    """Though the last of these has no parameters of its own."""
    with pytest.raises(ValueError, match=f"'llama'.*{cls.__name__}.from_llama"):
        cls.from_pretrained(saved_llama)


@pytest.mark.parametrize(
    ("of", "loaded_by"),
    [
        *(("value_residual", "plain"), ("plain", "depth_attention"), ("lime+mudd", "mudd")),
        ("lime", "plain"),
    ],
)
def test_variants_whose_weights_have_the_same_names_are_not_exchanged(of, loaded_by, tmp_path):
    layermem.build(of, **TINY).save_pretrained(tmp_path)
    with pytest.raises(ValueError) as error:
        lookup(loaded_by).causal_lm.from_pretrained(tmp_path)
    assert f"'layermem_{of}'" in str(error.value)


def lose_a_layer(weights):
    for name in [n for n in weights if "layers.1." in n and ".memory." not in n]:
        del weights[name]


def wrap(weights):
    for name in list(weights):
        weights[f"wrapped.{name}"] = weights.pop(name)


ROUTER = "model.layers.2.self_attn.memory.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop(ROUTER), ROUTER),
        (lambda w: w.pop("model.layers.2.mlp.up_proj.weight"), "model.layers.2.mlp.up_proj"),
        (lose_a_layer, " 9 weights .*, such as model.layers.1"),
        (wrap, "embed_tokens.weight"),
        *(
            (lambda w, name=name: w.update({name: torch.ones(32)}), f"1 weights .*, such as {name}")
            for name in (
                *("model.norm.bias", "lm_head.bias", "model.stream.mix.weight"),
                "model.embed_positions.weight",
            )
        ),
    ],
)
def test_weights_that_are_missing_or_have_no_place_are_named(change, named, saved):
    edit_weights(saved, change)
    for load in (LimeForCausalLM.from_pretrained, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(ValueError, match=named):
            load(saved)


def test_from_llama_leaves_no_weight_out(saved_llama):
    edit_weights(saved_llama, lambda w: w.update({"model.extra_norm.weight": torch.ones(32)}))
    with pytest.raises(ValueError, match=r"model\.extra_norm\.weight"):
        LimeForCausalLM.from_llama(saved_llama)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_hidden_layers", 3), ("num_key_value_heads", 1), ("router", "average")),
        *(("hidden_act", "gelu"), ("rms_norm_eps", 0.01), ("tie_word_embeddings", True)),
    ],
)
def test_other_fields_than_the_checkpoints_are_refused(name, value, saved):
    asked = {name: value}
    config = {"config": LimeConfig(**{**TINY, name: value})}
    for given in (asked, {**asked, "ignore_mismatched_sizes": True}, config):
        with pytest.raises(ValueError, match=f"{name}=.*, got {name}={value}"):
            LimeForCausalLM.from_pretrained(saved, **given)


def test_heads_of_another_width_are_refused(saved):
    """Weights of two heads of width 16 have the shape of four of width 8."""
    with pytest.raises(ValueError, match="num_attention_heads=4, got num_attention_heads=2"):
        LimeForCausalLM.from_pretrained(saved, num_attention_heads=2, head_dim=16)
    edit_config(saved, num_key_value_heads=4)
    with pytest.raises(RuntimeError, match="mismatch"):
        LimeForCausalLM.from_pretrained(saved)


@pytest.mark.parametrize("claimed", [3, 6])
def test_a_config_that_lies_about_its_layers_is_refused(claimed, saved):
    edit_config(saved, num_hidden_layers=claimed)
    with pytest.raises(ValueError, match=rf"num_hidden_layers={claimed}.*layers\."):
        LimeForCausalLM.from_pretrained(saved)


def test_a_path_that_is_no_checkpoint_is_named(tmp_path, saved):
    (tmp_path / "file.bin").write_bytes(b"?")
    paths = [tmp_path / "absent", tmp_path, tmp_path / "file.bin", "./absent"]
    for load in (LimeForCausalLM.from_pretrained, LimeForCausalLM.from_llama):
        for path in paths:
            with pytest.raises(OSError, match=Path(path).name):
                load(path)
        with pytest.raises(OSError, match="inner"):
            load(saved, subfolder="inner")
    with pytest.raises(ValueError, match="dtype"):
        LimeForCausalLM.from_pretrained(saved, dtype="bfloat17")


@pytest.mark.parametrize("load", [LimeForCausalLM.from_llama, PlainForCausalLM.from_pretrained])
def test_a_file_that_is_cut_short_is_named(load, saved_llama):
    weights = saved_llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=str(saved_llama)):
        load(saved_llama)


@pytest.mark.parametrize(
    "fields",
    [
        *({"sliding_window": 4}, {"attention_chunk_size": 4}),
        {"layer_types": ["sliding_attention"] * 4},
    ],
    ids=str,
)
def test_fields_that_make_a_cache_forget_are_refused(fields, saved_llama):
    edit_config(saved_llama, **fields)
    for load in (LimeForCausalLM.from_llama, PlainForCausalLM.from_pretrained):
        with pytest.raises(StrictDataclassClassValidationError, match=min(fields)):
            load(saved_llama)


# What is allowed


def test_mismatches_may_be_waved_through(saved):
    model = LimeForCausalLM.from_pretrained(saved, ignore_mismatched_sizes=True, vocab_size=10)
    assert model.lm_head.weight.shape[0] == 10


def test_a_head_may_be_new_or_left_out(saved, tmp_path, ids):
    model, info = LimeForSequenceClassification.from_pretrained(saved, output_loading_info=True)
    assert info["missing_keys"] == {"score.weight"}
    base = LimeModel.from_pretrained(saved)
    assert torch.equal(model.model(ids)[0], base(ids)[0])
    base.save_pretrained(tmp_path / "base")
    again = LimeForCausalLM.from_pretrained(tmp_path / "base")
    assert torch.equal(base(ids)[0], again.model(ids)[0])


# The stub


def test_saved_folders_hold_no_pickle_and_a_stub(saved, tmp_path):
    names = {
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        "modeling_layermem.py",
    }
    assert {path.name for path in saved.iterdir()} == names
    auto_map = json.loads((saved / "config.json").read_text())["auto_map"]
    assert auto_map["AutoConfig"] == "modeling_layermem.LimeConfig"
    assert auto_map["AutoModelForCausalLM"] == "modeling_layermem.LimeForCausalLM"
    assert len(auto_map) == 6
    # Loaded through it, our sources are not copied.
    model = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True)
    model.save_pretrained(tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").iterdir()} == names


@pytest.mark.slow
def test_the_stub_says_what_is_missing(saved, tmp_path):
    # A package of our name that cannot be imported: as if it were not installed.
    path = tmp_path / "block"
    (path / "layermem").mkdir(parents=True)
    (path / "layermem" / "__init__.py").write_text("raise ImportError('absent')")
    code = (
        "from transformers import AutoModelForCausalLM as A; "
        f"A.from_pretrained({str(saved)!r}, trust_remote_code=True)"
    )
    environment = {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode and "pip install layermem" in done.stderr
