"""`layermem models convert`: layouts are told apart, and nothing is overwritten or half written."""

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TINY
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from layermem.convert.converting import as_llama, convert, find_source
from layermem.convert.new_folder import new_folder
from layermem.convert.storage import with_storage
from layermem.models.registry import lookup
from layermem.retrofit import attach
from layermem_bench.analysis.earlier_stages import (
    Lineage,
    check_earlier_stages,
    has_learnt,
    stage_of,
    write_lineage,
)
from layermem_bench.cli import main
from layermem_bench.config.run import Data, Model, Run
from layermem_bench.data.document_hashes import Sketch
from layermem_bench.data.sources import open_source

CONVERT = ("models", "convert")


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
    main([*CONVERT, str(llama), str(target), *asked])
    assert f"found a LLaMA of transformers: {llama}" in caplog.text
    assert f"wrote {target}: {model_class}" in caplog.text and "with its tokenizer" in caplog.text
    model = AutoModelForCausalLM.from_pretrained(target)
    assert type(model).__name__ == model_class
    expected = AutoModelForCausalLM.from_pretrained(llama)(ids).logits
    assert torch.equal(model(ids).logits, expected)
    words = AutoTokenizer.from_pretrained(target)
    assert words("a b c")["input_ids"] == AutoTokenizer.from_pretrained(llama)("a b c")["input_ids"]


def test_our_plain_decoder_and_a_folder_without_a_tokenizer(tmp_path, ids):
    plain = lookup("plain")
    model = plain.causal_lm(plain.config(**TINY))
    model.save_pretrained(tmp_path / "plain")
    convert(str(tmp_path / "plain"), tmp_path / "llama", variant="llama")
    card = (tmp_path / "llama" / "README.md").read_text()
    assert "\n# plain as a LLaMA\n" in card and "library_name: transformers" in card
    assert "layermem\n" not in card.partition("---\n")[2].partition("---\n")[0]
    written = convert(str(tmp_path / "plain"), tmp_path / "lime")
    assert "made from `plain`" in (tmp_path / "lime" / "README.md").read_text()
    assert (written.model_class, written.has_tokenizer) == ("LimeForCausalLM", False)
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert torch.equal(lime(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
        {"rms_norm_eps": 1e-4, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    ],
    ids=["", "tied-biases", "rope"],
)
def test_our_plain_decoder_becomes_transformers_llama(fields, tmp_path, tokenizer, ids, caplog):
    caplog.set_level("INFO")
    plain = lookup("plain")
    torch.manual_seed(0)
    model = plain.causal_lm(plain.config(**TINY | fields)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "plain")
    tokenizer.save_pretrained(tmp_path / "plain")
    main(
        [
            "models",
            "convert",
            str(tmp_path / "plain"),
            str(tmp_path / "llama"),
            "--variant",
            "llama",
        ]
    )
    assert f"found our plain decoder: {tmp_path / 'plain'}" in caplog.text
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert "auto_map" not in config
    assert not list((tmp_path / "llama").glob("*.py"))
    llama = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    assert type(llama) is LlamaForCausalLM
    torch.testing.assert_close(llama(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
    main(
        ["models", "convert", str(tmp_path / "llama"), str(tmp_path / "back"), "--variant", "plain"]
    )
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
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
        # With all layers storing, nothing is changed.
        model, _ = with_storage(expected, TINY["num_hidden_layers"], [ids.repeat(4, 20)])
        torch.testing.assert_close(model(ids).logits, logits, rtol=1e-4, atol=1e-5)


def test_only_a_plain_decoder_becomes_a_llama(llama, tmp_path):
    with pytest.raises(SystemExit, match=r"a LLaMA of transformers already"):
        main([*CONVERT, str(llama), str(tmp_path / "new"), "--variant", "llama"])
    # A name on the hub, where nothing but loading it tells what it is.
    with pytest.raises(ValueError, match=r"no plain decoder of ours but a LlamaForCausalLM"):
        as_llama(str(llama))
    asked = ["--variant", "llama", "--options", "router=last"]
    with pytest.raises(SystemExit, match=r"router are options of a variant; give --variant lime"):
        main([*CONVERT, str(llama), str(tmp_path / "new"), *asked])
    with pytest.raises(SystemExit, match=r"variant 'limes'; did you mean lime\?"):
        main([*CONVERT, str(llama), str(tmp_path / "new"), "--variant", "limes"])
    lime = lookup("lime")
    lime.causal_lm(lime.config(**TINY)).save_pretrained(tmp_path / "lime")
    with pytest.raises(SystemExit, match=r"is a model of layermem already"):
        main(
            [
                "models",
                "convert",
                str(tmp_path / "lime"),
                str(tmp_path / "new"),
                "--variant",
                "llama",
            ]
        )
    assert not (tmp_path / "new").exists()


def test_a_file_of_torch_save_is_read_as_tensors_alone(llama, tmp_path, ids):
    class Harm:
        def __reduce__(self):
            return (exec, ("raise SystemExit('code of the file ran')",))

    model = AutoModelForCausalLM.from_pretrained(llama)
    (llama / "model.safetensors").unlink()
    torch.save(model.state_dict(), llama / "pytorch_model.bin")
    convert(str(llama), tmp_path / "lime")
    lime = AutoModelForCausalLM.from_pretrained(tmp_path / "lime")
    assert torch.equal(lime(ids).logits, model(ids).logits)
    state = {**model.state_dict(), "harm": Harm()}
    torch.save(state, llama / "pytorch_model.bin")
    with pytest.raises(SystemExit, match=r"tensors alone .Unsupported .*save its weights as model"):
        main([*CONVERT, str(llama), str(tmp_path / "other")])
    (llama / "pytorch_model.bin").rename(llama / "part.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(state, "part.bin")}
    (llama / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(SystemExit, match=r"tensors alone; if you trust it, save its weights as mo"):
        main([*CONVERT, str(llama), str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()


def test_nothing_is_replaced_unless_it_is_a_saved_model_and_asked_for(llama, tmp_path):
    target = tmp_path / "new"
    target.mkdir()
    convert(str(llama), target, variant="plain")
    with pytest.raises(FileExistsError, match="exists and is not empty; .* --force"):
        convert(str(llama), target)
    convert(str(llama), target, force=True)
    assert AutoModelForCausalLM.from_pretrained(target).config.model_type == "layermem_lime"
    # A trainer's folder is a saved model and more.
    for name in ("checkpoint-500", "notes.md"):
        (target / name).mkdir() if name == "checkpoint-500" else (target / name).write_text("mine")
        with pytest.raises(FileExistsError, match=f"holds {name} beside a saved model"):
            convert(str(llama), target, force=True)
        (target / name).rename(tmp_path / f"kept-{name}")
    convert(str(llama), target, force=True)
    other = tmp_path / "letters"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="is no saved model .* --force does not replace it"):
        convert(str(llama), other, force=True)
    with pytest.raises(FileExistsError, match=r"letter.txt is a file; name a folder"):
        convert(str(llama), other / "letter.txt", force=True)
    for same in (llama, llama / "lime", tmp_path):
        with pytest.raises(ValueError, match="are one, or one is in the other"):
            convert(str(llama), same, force=True)
    assert (other / "letter.txt").read_text() == "dear" and (llama / "config.json").exists()


def test_a_folder_is_whole_or_what_it_was(tmp_path):
    target = tmp_path / "model"
    for before in (None, "old"):
        if before:
            target.mkdir()
            (target / "config.json").write_text(before)
        with pytest.raises(RuntimeError), new_folder(target) as folder:
            (folder / "config.json").write_text("half")
            raise RuntimeError
        assert target.exists() == bool(before)
        assert [path.name for path in tmp_path.iterdir()] == (["model"] if before else [])
    assert (target / "config.json").read_text() == "old"
    with new_folder(target) as folder:
        (folder / "config.json").write_text("new")
    assert (target / "config.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that takes no others")
def test_a_folder_that_cannot_be_created_is_named_before_a_model_is_loaded(
    llama, tmp_path, monkeypatch
):
    monkeypatch.setattr("layermem.convert.converting._load_model", None)
    (tmp_path / "file").write_text("")
    for target in (Path("/proc/x"), Path("/proc/x/y"), tmp_path / "file" / "x"):
        with pytest.raises(SystemExit) as left:
            main([*CONVERT, str(llama), str(target)])
        assert f"{target} cannot be created" in left.value.code and "\n" not in left.value.code


def write_config(text):
    def write(folder):
        folder.mkdir()
        (folder / "config.json").write_text(text)

    return write


def write_texts(folder):
    folder.mkdir()
    (folder / "a.txt").write_text("a")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "does not exist; name a folder, file or hub name"),
        (lambda folder: folder.mkdir(), "neither a config.json nor one .bin file .* but nothing"),
        (write_texts, "neither a config.json nor one .bin file of llama2.c, but a.txt"),
        (write_config('{"model_type": "gpt2"}'), "holds no LLaMA .model_type 'gpt2'.; convert ta"),
        (write_config('{"model_type": "layermem_lime"}'), "is a model of layermem already"),
        (write_config("{"), "config.json is damaged"),
    ],
)
def test_what_is_no_checkpoint_is_refused(make, message, tmp_path):
    make(tmp_path / "source")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        convert(str(tmp_path / "source"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_single_file_of_a_saved_model_is_refused(llama, tmp_path):
    with pytest.raises(ValueError, match="is one file of a saved model; name its folder"):
        convert(str(llama / "model.safetensors"), tmp_path / "new")


def test_a_tokenizer_of_another_model_is_refused(llama, tmp_path):
    many = tmp_path / "many"
    shutil.copytree(llama, many)
    words = AutoTokenizer.from_pretrained(many)
    words.add_tokens([f"word{i}" for i in range(61)])
    words.save_pretrained(many)
    with pytest.raises(ValueError, match=r"has 73 tokens, and the model 61: it is another model"):
        convert(str(llama), tmp_path / "new", tokenizer=str(many))
    with pytest.raises(ValueError, match=r"nowhere cannot be read .* --tokenizer"):
        convert(str(llama), tmp_path / "new", tokenizer=str(tmp_path / "nowhere"))
    assert not (tmp_path / "new").exists()


def test_a_hub_name_is_a_llama():
    found = find_source("owner/llama")
    assert (found.layout, found.location, found.tokenizer) == (
        "llama",
        "owner/llama",
        "owner/llama",
    )


def test_an_option_without_a_value_is_refused(llama, tmp_path):
    with pytest.raises(SystemExit, match=r"must be NAME=VALUE each, got 'router'"):
        main([*CONVERT, str(llama), str(tmp_path / "new"), "--options", "router"])


def test_attached_memory_is_not_left_behind(tmp_path):
    model = attach(LlamaForCausalLM(LlamaConfig(**{**TINY, "vocab_size": 61})))
    model.save_pretrained(tmp_path / "attached")
    with pytest.raises(ValueError, match="layermem_attached"):
        convert(str(tmp_path / "attached"), tmp_path / "new")


HEADS = ("--method", "heads")


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text("a b c d e f g h " * 200, encoding="utf-8")
    return str(tmp_path / "text.txt")


def test_layers_come_to_borrow_and_it_is_said_how_well(llama, text, tmp_path, ids, caplog):
    caplog.set_level("INFO")
    target = tmp_path / "half"
    asked = ["--text", text, "--tokens", "500"]
    main([*CONVERT, str(llama), str(target), *asked, "--storage", "half"])
    assert re.search("layer 3 borrows: its heads read layer:head 2:[01] 2:[01]; ", caplog.text)
    assert "at 50% of the cache" in caplog.text and f"wrote {target}: Lime" in caplog.text
    model = AutoModelForCausalLM.from_pretrained(target).eval()
    assert model.config.kv_sharing_modes == [None, "reuse"] * 2
    assert torch.isfinite(model(ids).logits).all()
    assert AutoTokenizer.from_pretrained(target)("a b")["input_ids"]
    main(
        [*CONVERT, str(llama), str(target), "--force", *asked, "--storage", "0,2", *("--options",)]
    )
    again = AutoModelForCausalLM.from_pretrained(target)
    assert again.config.storage == [0, 2]
    torch.testing.assert_close(again(ids).logits, model(ids).logits)
    main([*CONVERT, str(llama), str(target), "--force", *asked, "--storage", "2", *HEADS])
    by_head = AutoModelForCausalLM.from_pretrained(target).config.borrow_heads
    (key, head, value, _), _ = by_head[0]
    assert f"layer 2 borrows: its heads read layer:head {key}:{head}" in caplog.text
    assert {key, value} <= {0, 1} and [len(layer) for layer in by_head] == [2, 2]


@pytest.mark.parametrize("method", ["fit", "heads", "average"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_text_that_was_fitted_on_is_not_held_out(method, earlier, llama, text, tmp_path):
    seen = Data(source="books.jsonl", validation_share=0.1)
    run = Run(preset="p", data=seen)
    if earlier:
        config = LlamaConfig.from_pretrained(llama)
        write_lineage(config, Lineage(stages=(stage_of(run, Sketch.of(["seen before"])),)))
        config.save_pretrained(llama)
    half, other = tmp_path / "half", tmp_path / "other.txt"
    asked = ["--text", text, "--tokens", "500", "--storage", "half", "--method", method]
    main([*CONVERT, str(llama), str(half), *asked])
    other.write_text("x y z", encoding="utf-8")
    start = Model(pretrained=str(half))

    def check(held_out):
        return check_earlier_stages(replace(run, model=start), Sketch.of(held_out))

    lineage = check(open_source(str(other)))
    unknown = half if method == "average" else llama
    assert lineage.before == (None if earlier else str(unknown))
    fitted = method != "average"
    told = "starts from, was trained by models convert"
    with pytest.raises(ValueError, match=told) if fitted else nullcontext():
        check(open_source(text))
    assert has_learnt(lineage, Sketch.of(open_source(text))) == fitted
    if earlier:
        with pytest.raises(ValueError, match=f"was trained by run {run.id}"):
            check(["seen before"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--storage", "half"], "needs --text FILE"),
        (["--text", "TEXT"], "is for layers that store nothing"),
        (["--method", "heads"], "--method heads is for layers that store nothing"),
        (["--tokens", "5"], "--tokens 5 is for layers that store nothing"),
        (["--storage", "half", "--text", "TEXT", "--variant", "mudd"], "leave it out"),
        (["--storage", "third", "--text", "TEXT"], "got 'third'"),
        (["--storage", "1,2", "--text", "TEXT"], "begins with 0"),
        (["--storage", "half", "--text", "TEXT", "--tokens", "99999"], "smaller --tokens"),
        (["--storage", "half", "--text", "nowhere.txt"], "nowhere.txt does not exist"),
        (
            ["--storage", "half", "--text", "TEXT", "--tokens", "99", "--options", "upper=mix"],
            'got upper="mix"',
        ),
    ],
    ids=str,
)
def test_storage_that_cannot_be_leaves_nothing(asked, message, llama, text, tmp_path, capsys):
    asked = [text if word == "TEXT" else word for word in asked]
    with pytest.raises(SystemExit) as refused:
        main([*CONVERT, str(llama), str(tmp_path / "half"), *asked])
    # Options that exclude each other are refused by the parser, in a box.
    said = f"{refused.value} {capsys.readouterr().err}"
    assert message in " ".join(said.split())
    assert not (tmp_path / "half").exists()
