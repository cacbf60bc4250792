"""Checkpoints of LIMe's released code: equal logits, and what is refused."""

import json

import pytest
import torch
from literal import released_lime
from safetensors.torch import save_file
from transformers import LlamaConfig

from layermem import LimeForCausalLM
from layermem.convert.converting import convert
from layermem.convert.released_lime import load_released_lime

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
        assert (written.source.layout, written.model_class) == ("released_lime", "LimeForCausalLM")
        model = LimeForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
        assert (model(ids).logits - expected).abs().max() < 1e-10
    # Heads as they stand, not interleaved, would compute something else.
    name = "model.layers.1.self_attn.kv_proj_weight"
    weights[name] = weights[name].flip(0)
    changed = released_lime.logits(config, {**weights, **head}, ids)
    assert (changed - expected).abs().max() > 1e-3


def test_the_dtype_is_kept(tmp_path):
    config, weights = released(4, True, torch.bfloat16)
    save(tmp_path / "run", config, weights)
    assert load_released_lime(tmp_path / "run").dtype == torch.bfloat16


def drop(name):
    return lambda weights: weights.pop(name)


def replace(name, tensor):
    return lambda weights: weights.update({name: tensor})


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(LAYER + "self_attn.lime_router.static_weights"), "has no model.layers.1.self_attn.l"),
        (drop(LAYER + "self_attn.kv_proj_weight"), "has no model.layers.1.self_attn.kv_proj_wei"),
        (drop(LAYER + "mlp.up_proj.weight"), r"1 missing keys, such as model.layers.1.mlp.up_pro"),
        (replace("model.extra.weight", torch.ones(1)), "1 unexpected keys, such as model.extra.w"),
        (
            replace(LAYER + "self_attn.kv_proj_weight", torch.ones(32, 32)),
            r"kv_proj_weight has shape \[32, 32\], expected \[64, 32\] for 4 key-value heads of w",
        ),
        (
            replace(LAYER + "self_attn.lime_router.static_weights", torch.ones(4, 4)),
            r"router of layer 1 has shape \[4, 4\], expected \[4, 8\]",
        ),
        (
            replace(LAYER + "self_attn.k_proj_lime.lime_kv_proj", torch.ones(1, 4, 32, 8)),
            "of the earlier LIMe, which mixes hidden states",
        ),
        (replace(LAYER + "attention_hc.static_alpha", torch.ones(4, 5)), "Hyper-Connections"),
        (replace("lm_head.weight", torch.ones(61, 32)), "head and embedding differ"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change, message, tmp_path):
    config, weights = released(4, True, torch.float32)
    change(weights)
    save(tmp_path / "run", config, weights)
    with pytest.raises(ValueError, match=message):
        convert(str(tmp_path / "run"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_options_of_routers_are_refused(tmp_path):
    save(tmp_path / "run", *released(4, True, torch.float32))
    for asked in ({"variant": "plain"}, {"fields": {"router": "average"}}):
        with pytest.raises(ValueError, match="routers are trained, .* leave --variant and --optio"):
            convert(str(tmp_path / "run"), tmp_path / "new", **asked)


class Harm:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code of the file ran')",))


def test_damaged_and_pickled_files_are_refused(tmp_path):
    config, weights = released(4, True, torch.float32)
    final = save(tmp_path / "run", config, weights)
    path = final / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"model.safetensors cannot be read"):
        convert(str(tmp_path / "run"), tmp_path / "new")
    path.unlink()
    torch.save({"x": Harm()}, final / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"cannot be read as tensors alone"):
        convert(str(tmp_path / "run"), tmp_path / "new")


def test_a_config_that_is_missing_or_anothers_is_refused(tmp_path):
    final = save(tmp_path / "run", *released(4, True, torch.float32), layout="run")
    config = tmp_path / "run" / "config" / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ValueError, match="should be a LLaMA's config, and has model_type 'gpt2'"):
        convert(str(final), tmp_path / "new")
    config.unlink()
    with pytest.raises(FileNotFoundError, match="has no config.json; LIMe's code saves it as"):
        convert(str(final), tmp_path / "new")
