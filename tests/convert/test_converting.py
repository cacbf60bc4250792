"""`layermem models convert`: layouts are told apart, and nothing is overwritten or half written."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TINY
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from layermem.convert.converting import as_llama, convert
from layermem.models.registry import lookup
from layermem.retrofit import attach
from layermem_base.files import new_folder
from layermem_bench.cli import main


@pytest.fixture
def llama(tmp_path, tokenizer):
    """The folder of a LLaMA with its tokenizer."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=False))
    model.save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize(
    ("asked", "model_class"),
    [
        ([], "LimeForCausalLM"),
        (["--variant", "lime", "--options", "router=last", "router_window=2"], "LimeForCausalLM"),
        (["--variant", "plain"], "PlainForCausalLM"),
        (["--variant", "denseformer"], "DenseformerForCausalLM"),
    ],
)
def test_a_llama_keeps_its_logits(asked, model_class, llama, tmp_path, ids, caplog):
    caplog.set_level("INFO")
    target = tmp_path / "new"
    main(["models", "convert", str(llama), str(target), *asked])
    assert f"wrote {target}: {model_class}" in caplog.text and "with its tokenizer" in caplog.text
    model = AutoModelForCausalLM.from_pretrained(target)
    assert type(model).__name__ == model_class
    expected = AutoModelForCausalLM.from_pretrained(llama)(ids).logits
    assert torch.equal(model(ids).logits, expected)
    words = AutoTokenizer.from_pretrained(target)
    assert words("a b c")["input_ids"] == AutoTokenizer.from_pretrained(llama)("a b c")["input_ids"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"rms_norm_eps": 1e-4, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ],
    ids=["", "tied-biases", "rope"],
)
def test_our_plain_decoder_becomes_transformers_llama_and_back(fields, tmp_path, ids):
    plain = lookup("plain")
    torch.manual_seed(0)
    model = plain.causal_lm(plain.config(**TINY | fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "plain")
    written = convert(str(tmp_path / "plain"), tmp_path / "llama", variant="llama")
    assert (written.model_class, written.has_tokenizer) == ("LlamaForCausalLM", False)
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert "auto_map" not in config and not list((tmp_path / "llama").glob("*.py"))
    llama = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert type(llama) is LlamaForCausalLM
    torch.testing.assert_close(llama(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    for source, variant in (("llama", "plain"), ("plain", "lime")):
        convert(str(tmp_path / source), tmp_path / variant / "new", variant=variant)
        back = AutoModelForCausalLM.from_pretrained(tmp_path / variant / "new")
        assert torch.equal(back(ids).logits, model(ids).logits)


def test_a_head_of_its_own_stays_apart_though_the_config_says_tied(tmp_path, ids):
    """transformers reads such a file as two weights, and a new model of its config has one."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True)).save_pretrained(tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    weights = load_file(file)
    head = torch.randn_like(weights["model.embed_tokens.weight"])
    save_file({**weights, "lm_head.weight": head}, file, metadata={"format": "pt"})
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    with torch.no_grad():
        logits = expected(ids).logits
        assert not torch.equal(expected.lm_head.weight, expected.get_input_embeddings().weight)
        for source, target, variant in (("a", "b", "plain"), ("b", "c", "llama")):
            convert(str(tmp_path / source), tmp_path / target, variant=variant)
            got = AutoModelForCausalLM.from_pretrained(tmp_path / target)(ids).logits
            torch.testing.assert_close(got, logits, rtol=1e-4, atol=1e-5)


def test_only_a_plain_decoder_becomes_a_llama(llama):
    with pytest.raises(ValueError, match="LlamaForCausalLM"):
        as_llama(llama)


class Harm:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code of the file ran')",))


def test_a_file_of_torch_save_is_read_as_tensors_alone(llama, tmp_path, ids):
    model = AutoModelForCausalLM.from_pretrained(llama)
    (llama / "model.safetensors").unlink()
    torch.save(model.state_dict(), llama / "pytorch_model.bin")
    convert(str(llama), tmp_path / "lime")
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert torch.equal(lime(ids).logits, model(ids).logits)
    state = {**model.state_dict(), "harm": Harm()}
    torch.save(state, llama / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        convert(str(llama), tmp_path / "other")
    (llama / "pytorch_model.bin").rename(llama / "part.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(state, "part.bin")}
    (llama / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=str(llama)):
        convert(str(llama), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_nothing_is_replaced(llama, tmp_path):
    target = tmp_path / "new"
    target.mkdir()
    convert(str(llama), target, variant="plain")
    for there in (target, llama, llama / "config.json"):
        with pytest.raises(FileExistsError, match=there.name):
            convert(str(llama), there)
    assert AutoModelForCausalLM.from_pretrained(target).config.model_type == "layermem_plain"


def test_a_folder_is_whole_or_not_there(tmp_path):
    target = tmp_path / "model"
    with pytest.raises(RuntimeError), new_folder(target) as folder:
        (folder / "config.json").write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with new_folder(target) as folder:
        (folder / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_what_is_no_checkpoint_is_refused(llama, tmp_path):
    lime, empty, damaged = (tmp_path / name for name in ("lime", "empty", "damaged"))
    convert(str(llama), lime)
    empty.mkdir()
    attach(AutoModelForCausalLM.from_pretrained(llama)).save_pretrained(tmp_path / "attached")
    path = llama / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.self_attn.k_proj.weight"][2, 3] = torch.nan
    damaged.mkdir()
    (damaged / "config.json").write_text((llama / "config.json").read_text())
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    for source, error, named in (
        *((tmp_path / "absent", OSError, "absent"), (empty, OSError, "config.json")),
        *((lime, ValueError, "layermem_lime"), (path, OSError, "model.safetensors")),
        (tmp_path / "attached", ValueError, "layermem_attached"),
        (damaged, ValueError, r"layers\.1\.self_attn\.k_proj"),
    ):
        with pytest.raises(error, match=named):
            convert(str(source), tmp_path / "new")
        assert not (tmp_path / "new").exists()


def test_options_that_do_not_fit_are_named(llama, tmp_path, tokenizer):
    for asked, named in (
        ({"variant": "llama", "fields": {"router": "last"}}, "router"),
        ({"variant": "limes"}, "lime"),
        ({"tokenizer": str(tmp_path / "nowhere")}, "nowhere"),
    ):
        with pytest.raises((ValueError, OSError), match=named):
            convert(str(llama), tmp_path / "new", **asked)
    tokenizer = AutoTokenizer.from_pretrained(llama)
    tokenizer.add_tokens([f"word{i}" for i in range(61)])
    tokenizer.save_pretrained(tmp_path / "many")
    with pytest.raises(ValueError, match="73 tokens"):
        convert(str(llama), tmp_path / "new", tokenizer=str(tmp_path / "many"))
    assert not (tmp_path / "new").exists()
