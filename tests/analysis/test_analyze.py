"""What analyze computes, for our models and others, and the page that it draws."""

import json

import numpy as np
import pytest
import torch
import transformers
from host_models import make_host, shake_routers
from small_run import a_run
from tiny import TINY

import layermem
from layermem.models.lime_router import LimeRouter
from layermem.models.seams import Memory
from layermem.retrofit import attach
from layermem_bench import cli
from layermem_bench.analysis.analyze import analyze
from layermem_bench.analysis.entropy import matrix_entropy, standardise
from layermem_bench.analysis.result import Analysis, AnalysisOptions
from layermem_bench.analysis.routing import mean_heatmap
from layermem_bench.config.run import Task
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.run.training import train
from layermem_bench.text.tokenizers import load_tokenizer

SMALL = ["--sequences", "6", "--length", "24", "--each", "6", "--words", "w1", "w2", "w3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("analyze")


@pytest.fixture(scope="module")
def runs(folder):
    return [
        train(a_run(folder, variant=variant, max_steps=2), folder / variant).path
        for variant in ("lime", "plain")
    ]


@pytest.fixture(scope="module")
def both(runs, folder):
    """The folder of an analysis of both runs, by the command."""
    out, text = folder / "both", folder / "words.jsonl"
    options = ["--text", text, "--out", out, "--alpha", "0.5"]
    cli.main(["analyze", *map(str, [runs[0], "--against", runs[1], *options, *SMALL])])
    return out


def analyzed(folder, name, model=None, **options):
    """Analyze a saved model without the command and its page; return what was written of it."""
    path = folder / name
    if model is not None:
        a_run(folder)
        model.save_pretrained(path)
        load_tokenizer("bytes").save_pretrained(path)
        options = {"text": str(folder / "words.jsonl"), "words": ("w1", "w2"), **options}
    options = AnalysisOptions(sequences=6, length=24, **{"each": 6, **options})
    out = folder / f"{name}-analysis"
    assert analyze([str(path)], options, out) == read_result(Analysis, out)
    return read_result(Analysis, out)


def test_two_runs_side_by_side(both):
    analysis = read_result(Analysis, both)
    assert list(analysis.models) == ["lime", "plain"]
    assert analysis.command.startswith("layermem analyze ") and "--against" in analysis.command
    for name, model in analysis.models.items():
        for kind in ("hidden", "routed"):
            assert len(model.entropy[kind].mean) == 3
            assert all(0 < h < np.log(24) for h in model.entropy[kind].mean)
            for probe in ("paper", "converged"):
                accuracy = model.separability[probe][kind]
                assert all(0 <= mean <= 1 for mean in accuracy.mean) and accuracy.chance == 1 / 3
        assert len(model.layout.labels) == 18
        assert [len(points) for points in model.layout.layers.values()] == [18] * 3
        assert (model.routing is not None) == (name == "lime")
    page = (both / "index.html").read_text()
    assert "What lime reads" in page and len(page) < 5_000_000


def test_entropy_is_that_of_the_arrays(both, runs, folder):
    model = read_result(Analysis, both).models["lime"]
    # By hand: the first six pieces of 24 bytes, each from its own document.
    lines = (folder / "words.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    pieces = [t[i : i + 24] for t in texts for i in range(0, len(t) - 23, 24)][:6]
    ids = torch.tensor([list(piece.encode()) for piece in pieces])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(runs[0] / "final")
    with torch.no_grad():
        hidden = loaded(ids, output_hidden_states=True).hidden_states[2].double().numpy()
    expected = [matrix_entropy(z, 0.5) for z in standardise(hidden)]
    assert model.entropy["hidden"].mean[1] == pytest.approx(np.mean(expected), rel=1e-6)
    assert model.entropy["hidden"].deviation[1] == pytest.approx(np.std(expected), rel=1e-4)


def test_decoders_of_transformers_bare_and_with_attached_memory(folder):
    bare = analyzed(folder, "llama", make_host("llama", vocab_size=300)).models["llama"]
    assert bare.routing is None and bare.routing_unknown is None
    assert bare.class_name == "LlamaForCausalLM"
    model = shake_routers(attach(make_host("llama", vocab_size=300)))
    attached = analyzed(folder, "attached", model).models["attached"]
    np.testing.assert_allclose(attached.routing.heatmap, mean_heatmap(model))
    assert attached.entropy["hidden"].mean[0] == bare.entropy["hidden"].mean[0]
    assert attached.entropy["routed"].mean[1] != bare.entropy["routed"].mean[1]


def test_routers_of_unknown_weights_are_left_out_with_the_reason(folder, monkeypatch):
    unknown = Memory.static_weights_by_part
    monkeypatch.setattr(LimeRouter, "static_weights_by_part", unknown)
    model = layermem.build("lime", **TINY | {"vocab_size": 257})
    result = analyzed(folder, "unknown", model).models["unknown"]
    assert result.routing is None and "LimeRouter" in result.routing_unknown


def test_a_run_on_a_task_reads_its_own_problems_for_the_tasks_words(folder):
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=("operands=2",))
    train(a_run(folder, task=task, max_steps=2), folder / "sums")
    analysis = analyzed(folder, "sums", each=5)
    assert analysis.sequences == 6 and analysis.options.words == ("1", "2", "3", "4")
    assert set(analysis.models["sums"].layout.labels) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--length", "100000"], "--length"),
        (["--against", "/nowhere/model"], "/nowhere/model"),
    ],
)
def test_bad_options_are_refused(runs, folder, more, named):
    options = ["analyze", str(runs[0]), "--text", str(folder / "words.jsonl"), *SMALL]
    with pytest.raises(SystemExit, match=named):
        cli.main([*options, "--out", str(folder / "refused"), *more])
