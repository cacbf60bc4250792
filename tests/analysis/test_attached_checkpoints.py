"""Commands that take checkpoints take attached ones: whole, and as a base and its adapter."""

import json
import shutil

import numpy as np
import pytest
import torch
from host_models import make_host, shake_routers
from safetensors.torch import load_file, save_file
from small_run import a_run
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from layermem.retrofit import attach, router_parameters, save_routers
from layermem_bench import cli
from layermem_bench.analysis.analyze import _analyze_routing
from layermem_bench.analysis.checkpoints import load_model, open_checkpoints
from layermem_bench.analysis.routing import mean_heatmap
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals.benchmarks import checkpoint_digest
from layermem_bench.evals.perplexity import perplexity
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result

TEXTS = ["w1 w2 w3 " * 8, "w4 w5 w6 w7"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base with a tokenizer, its routers as an adapter, and both as a whole checkpoint."""
    path = tmp_path_factory.mktemp("attached")
    make_host("llama", vocab_size=300).save_pretrained(path / "base")
    load_tokenizer("bytes").save_pretrained(path / "base")
    model = shake_routers(attach(LlamaForCausalLM.from_pretrained(path / "base")))
    save_routers(model, path / "adapter")
    model.save_pretrained(path / "whole")
    load_tokenizer("bytes").save_pretrained(path / "whole")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (path / "texts.jsonl").write_text(lines, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(folder):
    base = LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    return shake_routers(attach(base)).eval()


def test_perplexity_is_that_of_the_model_in_memory(folder, model, tmp_path):
    checkpoints = [str(folder / name) for name in ("base", "adapter", "whole")]
    texts = ["--tasks", f"ppl={folder / 'texts.jsonl'}", "--context", "24"]
    cli.main(["eval", *checkpoints, *texts, "--out", str(tmp_path)])
    measured = read_result(EvalResult, tmp_path).of("loss")["nats per token"].scores
    expected = perplexity(model, load_tokenizer("bytes"), TEXTS, context=24, stride=12)
    assert measured["adapter"].value == measured["whole"].value == expected.loss
    assert abs(measured["base"].value - expected.loss) > 0.01


def test_analysis_shows_what_attached_routers_read(model):
    routing, unknown = _analyze_routing(model, "attached")
    assert unknown is None
    np.testing.assert_allclose(routing.heatmap, mean_heatmap(model))
    assert [reading.off_layer_share > 0 for reading in routing.readings] == [False] + [True] * 3


def test_judged_pairs_are_those_of_the_model_in_memory(folder, model, tmp_path):
    loaded = load_model(*open_checkpoints([str(folder / "adapter")]), with_head=True)
    ids = torch.randint(257, (4, 16))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    rows = [
        {
            **{"sentence_good": f"w{i} w1 w2", "sentence_bad": f"w2 w{i} w9", "pairID": str(i)},
            **{"UID": "order", "field": "syntax", "linguistics_term": "order"},
        }
        for i in range(8)
    ]
    (tmp_path / "order.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoints = [str(folder / name) for name in ("adapter", "whole")]
    options = ["--tasks", f"blimp={tmp_path / 'order.jsonl'}", "--out", str(tmp_path)]
    cli.main(["eval", *checkpoints, *options])
    for row in read_result(EvalResult, tmp_path).parts[0].rows:
        assert row.scores["adapter"] == row.scores["whole"]


def test_a_model_of_the_hub_is_of_one_commit(hub_cache, folder):
    """Its files are those of the moment when it was opened, and its answers are kept by it."""

    def push(seed):
        def save(path):
            make_host("llama", seed=seed, vocab_size=300).save_pretrained(path)
            load_tokenizer("bytes").save_pretrained(path)

        return hub_cache.push("org/model", save)

    first = push(1)
    (opened,) = open_checkpoints(["org/model"])
    second = push(2)
    (moved,) = open_checkpoints(["org/model"])
    assert [opened.revision, moved.revision] == [first, second]
    assert checkpoint_digest(opened) == f"org/model@{first}" != checkpoint_digest(moved)
    one, other = (load_model(each, with_head=True).lm_head.weight for each in (opened, moved))
    assert torch.equal(one, make_host("llama", seed=1, vocab_size=300).lm_head.weight)
    assert not torch.equal(one, other)
    # A folder has its files.
    assert all(c.revision is None for c in open_checkpoints([str(folder / "adapter")]))


@pytest.mark.slow
def test_a_checkpoint_is_analyzed(folder, tmp_path):
    a_run(tmp_path)
    options = ["--text", str(tmp_path / "words.jsonl"), "--sequences", "6", "--length", "24"]
    words = ["--each", "6", "--words", "w1", "w2", "w3", "--out", str(tmp_path / "out")]
    cli.main(
        ["analyze", str(folder / "base"), "--against", str(folder / "whole"), *options, *words]
    )
    models = json.loads((tmp_path / "out" / "analysis.json").read_text())["models"]
    assert models["base"] != models["whole"]


def test_answers_are_kept_by_base_and_routers(folder, tmp_path):
    def digest_of(path):
        (checkpoint,) = open_checkpoints([str(path)])
        return checkpoint_digest(checkpoint)

    before = {name: digest_of(folder / name) for name in ("base", "adapter", "whole")}
    assert len(set(before.values())) == 3
    model = attach(LlamaForCausalLM.from_pretrained(folder / "base"))
    save_routers(model, tmp_path / "others")
    assert digest_of(tmp_path / "others") not in before.values()
    changed = json.loads((folder / "base" / "config.json").read_text())
    original = (folder / "base" / "config.json").read_text()
    try:
        changed["rms_norm_eps"] = 1e-3
        (folder / "base" / "config.json").write_text(json.dumps(changed))
        assert digest_of(folder / "adapter") != before["adapter"]
    finally:
        (folder / "base" / "config.json").write_text(original)


def test_the_model_is_in_the_precision_that_is_asked_for(folder):
    (checkpoint,) = open_checkpoints([str(folder / "adapter")])
    assert checkpoint.base == str(folder / "base")
    loaded = load_model(checkpoint, dtype=torch.bfloat16)
    assert loaded.dtype == torch.bfloat16
    # Those of routers have 32 bits beside any base.
    assert {weight.dtype for weight in router_parameters(loaded)} == {torch.float32}


def opened(path):
    (checkpoint,) = open_checkpoints([str(path)])
    return load_model(checkpoint, with_head=True)


def test_routers_without_their_settings_are_refused(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder / "base")
    shake_routers(attach(model)).save_pretrained(tmp_path)
    load_tokenizer("bytes").save_pretrained(tmp_path)
    shutil.copy(folder / "base" / "config.json", tmp_path)
    with pytest.raises(ValueError, match=r"self_attn\.memory"):
        opened(tmp_path)


def test_damaged_and_lost_parts_are_one_line(folder, tmp_path):
    save_routers(attach(LlamaForCausalLM.from_pretrained(folder / "base")), tmp_path)
    settings = json.loads((tmp_path / "routers.json").read_text())
    settings["base"]["name"] = str(tmp_path / "gone")
    (tmp_path / "routers.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="no base that is on this machine, but .*gone"):
        opened(tmp_path)
    (tmp_path / "routers.json").write_text("{")
    with pytest.raises(ValueError, match="can be read"):
        opened(tmp_path)


def test_half_of_a_checkpoint_is_refused(folder, tmp_path):
    model = shake_routers(attach(LlamaForCausalLM.from_pretrained(folder / "base")))
    model.save_pretrained(tmp_path)
    load_tokenizer("bytes").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: w for name, w in weights.items() if "layers.1.mlp" not in name}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks 3 of the model's weights"):
        opened(tmp_path)
