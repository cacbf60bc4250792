"""Checkpoints of LIMe's released code: equal logits, and what is refused."""

import json

import pytest
import torch
from literal import released_lime
from safetensors.torch import save_file
from transformers import LlamaConfig

from layermem import LimeForCausalLM
from layermem.convert.converting import convert

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


def released(kv_heads, tied, dtype=torch.float64):
    """Return a LLaMA's config and random weights under the released code's names."""
    config = LlamaConfig(**SIZES, num_key_value_heads=kv_heads, tie_word_embeddings=tied)
    draw, width = torch.Generator().manual_seed(0), config.hidden_size
    shapes = {"model.embed_tokens.weight": (61, width), "model.norm.weight": (width,)}
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (width,)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{at}mlp.{name}.weight"] = (40, width)
        shapes[f"{at}mlp.down_proj.weight"] = (width, 40)
        for name in ("q_proj", "o_proj"):
            shapes[f"{at}self_attn.{name}.weight"] = (width, width)
        shapes[f"{at}self_attn.kv_proj_weight"] = (2 * 8 * kv_heads, width)
        if layer:
            router = (kv_heads, (layer + 1) * kv_heads)
            shapes[f"{at}self_attn.lime_router.static_weights"] = router
    if not tied:
        shapes["lm_head.weight"] = (61, width)
    weights = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64).mul(0.3).to(dtype)
        for name, shape in shapes.items()
    }
    return config, weights


def save(folder, config, weights, *, layout="beside", file="model.safetensors", prefix=""):
    """Write a checkpoint as the released code does, or with the config beside the weights."""
    folder.mkdir(exist_ok=True)
    config.save_pretrained(folder if layout == "beside" else folder / "config")
    final = folder if layout == "beside" else folder / "final"
    final.mkdir(exist_ok=True)
    weights = {prefix + name: tensor for name, tensor in weights.items()}
    if file == "model.safetensors":
        save_file(weights, final / file)
    else:
        torch.save(weights, final / file)
    return final


@pytest.mark.parametrize(
    ("kv_heads", "tied", "how"),
    [
        (4, True, {"layout": "run", "prefix": "_orig_mod."}),
        (2, False, {}),
        (1, True, {"file": "pytorch_model.bin", "prefix": "module._orig_mod."}),
    ],
)
def test_logits_are_those_of_the_released_forward(kv_heads, tied, how, tmp_path, ids):
    config, weights = released(kv_heads, tied)
    final = save(tmp_path / "run", config, weights, **how)
    head = {"lm_head.weight": weights["model.embed_tokens.weight"]} if tied else {}
    expected = released_lime.logits(config, {**weights, **head}, ids)
    for folder in {tmp_path / "run", final}:
        target = tmp_path / f"new-{folder.name}"
        written = convert(str(folder), target)
        assert written.model_class == "LimeForCausalLM"
        model = LimeForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
        assert (model(ids).logits - expected).abs().max() < 1e-10
    # Heads as they stand, not interleaved, would compute something else.
    name = "model.layers.1.self_attn.kv_proj_weight"
    weights[name] = weights[name].flip(0)
    changed = released_lime.logits(config, {**weights, **head}, ids)
    assert (changed - expected).abs().max() > 1e-3


def drop(name):
    return lambda weights: weights.pop(name)


def replace(name, tensor):
    return lambda weights: weights.update({name: tensor})


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop(LAYER + "self_attn.lime_router.static_weights"), "lime_router"),
        (drop(LAYER + "self_attn.kv_proj_weight"), "kv_proj_weight"),
        (drop(LAYER + "mlp.up_proj.weight"), "up_proj"),
        (replace("model.extra.weight", torch.ones(1)), "extra"),
        (replace(LAYER + "self_attn.kv_proj_weight", torch.ones(32, 32)), r"\b32\b"),
        (replace(LAYER + "self_attn.lime_router.static_weights", torch.ones(4, 4)), "mismatch"),
        (replace(LAYER + "attention_hc.static_alpha", torch.ones(4, 5)), "static_alpha"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change, named, tmp_path):
    config, weights = released(4, True, torch.float32)
    change(weights)
    save(tmp_path / "run", config, weights)
    with pytest.raises(ValueError, match=f"(?s)config.json.*{named}"):
        convert(str(tmp_path / "run"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_parts_with_an_index_keep_their_dtype(tmp_path, ids):
    config, weights = released(4, False, torch.bfloat16)
    save(tmp_path / "whole", config, weights)
    folder = tmp_path / "parts"
    final = save(folder, config, {})
    (final / "model.safetensors").unlink()
    names = sorted(weights)
    files = {name: f"part-{names.index(name) % 2}.safetensors" for name in names}
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, final / file)
    index = final / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    models = []
    for source in ("whole", "parts"):
        convert(str(tmp_path / source), tmp_path / "new" / source)
        models.append(LimeForCausalLM.from_pretrained(tmp_path / "new" / source))
    assert {model.dtype for model in models} == {torch.bfloat16}
    assert torch.equal(models[0](ids).logits, models[1](ids).logits)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(files, "../x")}))
    with pytest.raises(ValueError, match="Invalid name"):
        convert(str(folder), tmp_path / "other")


def test_options_of_routers_are_refused(tmp_path):
    save(tmp_path / "run", *released(4, True, torch.float32))
    for asked in ({"variant": "plain"}, {"fields": {"router": "average"}}):
        with pytest.raises(ValueError, match=r"plain|average"):
            convert(str(tmp_path / "run"), tmp_path / "new", **asked)


def test_damaged_and_pickled_files_are_refused(tmp_path):
    config, weights = released(4, True, torch.float32)
    final = save(tmp_path / "run", config, weights)
    path = final / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        convert(str(tmp_path / "run"), tmp_path / "new")
    path.unlink()
    torch.save({"x": print}, final / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        convert(str(tmp_path / "run"), tmp_path / "new")


def test_a_config_that_is_missing_or_anothers_is_refused(tmp_path):
    final = save(tmp_path / "run", *released(4, True, torch.float32), layout="run")
    config = tmp_path / "run" / "config" / "config.json"
    values = json.loads(config.read_text())
    for wrong in ({"model_type": "gpt2"}, {"attention_bias": True}):
        config.write_text(json.dumps({**values, **wrong}))
        with pytest.raises(ValueError, match=r"config\.json"):
            convert(str(final), tmp_path / "new")
    config.unlink()
    with pytest.raises(FileNotFoundError, match=r"config/config\.json"):
        convert(str(final), tmp_path / "new")
