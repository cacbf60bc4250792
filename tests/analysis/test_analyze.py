"""Test what analyze computes, for our models and others, and the page that it draws."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
import transformers
from small_run import a_run
from tiny import TINY, make

import layermem
from layermem.models.lime_router import LimeRouter
from layermem.models.registry import lookup
from layermem.models.seams import DependsOnInput, Memory
from layermem_bench import cli
from layermem_bench.analysis.analyze import DiskRows, _analyze_routing, analyze
from layermem_bench.analysis.checkpoints import open_checkpoints
from layermem_bench.analysis.entropy import matrix_entropy, standardise
from layermem_bench.config.run import Task
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.analysis import Analysis, AnalysisOptions
from layermem_bench.results.files import read_result
from layermem_bench.train.run import train

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
    """The folder of an analysis of both runs, by the command, with a figure."""
    out, text = folder / "both", folder / "words.jsonl"
    options = ["--text", text, "--out", out, "--figure", folder / "figure.svg", "--alpha", "0.5"]
    cli.main(["analyze", *map(str, [runs[0], "--against", runs[1], *options, *SMALL])])
    return out


def analyzed(checkpoints, out, **options):
    """Analyze without the command and its page; return the models of what was written."""
    options = AnalysisOptions(sequences=6, length=24, **{"each": 6, **options})
    assert analyze(list(map(str, checkpoints)), options, out) == read_result(Analysis, out)
    return read_result(Analysis, out)


def saved(model, path):
    """Save a model with a tokenizer of bytes; return the folder."""
    model.save_pretrained(path)
    load_tokenizer("bytes").save_pretrained(path)
    return path


def test_two_runs_side_by_side(both, folder):
    analysis = read_result(Analysis, both)
    assert (folder / "figure.svg").read_text().count("-axes_") == 5
    assert list(analysis.models) == ["lime", "plain"] and analysis.folder == str(both)
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
    assert "No router reads another layer" in page and "Heaviest paths" in page
    assert "The values of lime have an entropy of" in page and len(page) < 5_000_000


def test_folders_of_one_name_are_called_by_their_parents_too(runs, folder, tmp_path):
    again = tmp_path / "again" / "lime"
    shutil.copytree(runs[0], again)
    opened = open_checkpoints([str(runs[0]), str(again)])
    assert [checkpoint.name for checkpoint in opened] == [f"{folder.name}/lime", "again/lime"]
    for same in (runs[0], runs[0] / ".." / "lime"):
        with pytest.raises(ValueError, match="lime are one checkpoint; give different ones"):
            open_checkpoints([str(runs[0]), str(same)])


def depends_on_input(memory):
    raise DependsOnInput("the weights of LimeRouter depend on its input")


@pytest.mark.parametrize(
    ("static_weights", "reason"),
    [
        (depends_on_input, "the weights of LimeRouter depend on its input"),
        (Memory.static_weights_by_part, "LimeRouter does not override static_weights"),
    ],
    ids=["depends", "undefined"],
)
def test_routers_of_unknown_weights_are_left_out_with_the_reason(
    static_weights, reason, caplog, monkeypatch
):
    monkeypatch.setattr(LimeRouter, "static_weights_by_part", static_weights)
    caplog.set_level(logging.INFO)
    routing, unknown = _analyze_routing(layermem.build("lime", **TINY), "ours")
    assert routing is None and unknown.startswith(reason)
    assert f"what the routers of ours read is left out: {unknown}" in caplog.messages


def test_what_two_variants_mix_over_depth_is_recorded(folder):
    a_run(folder)
    names = ("mudd", "denseformer")
    sizes = {**TINY, "vocab_size": 257, "num_hidden_layers": 3}
    entries = [(name, lookup(name)) for name in names]
    paths = [
        saved(make(entry.causal_lm, entry.config(**sizes)), folder / name)
        for name, entry in entries
    ]
    options = {"text": str(folder / "words.jsonl"), "words": ("w1", "w2")}
    analysis = analyzed(paths, folder / "mixtures", **options)
    mudd, denseformer = (analysis.models[name].mixtures for name in names)
    assert [m.place for m in mudd] == ["layer 1, attention", "layer 2, attention", "final norm"]
    assert mudd[1].readers == ("query", "key", "value", "residual")
    assert np.shape(mudd[1].mean) == (4, 3) and np.any(mudd[1].deviation)
    assert [m.place for m in denseformer] == [f"layer {i}, mlp" for i in range(3)]


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


def test_a_decoder_of_transformers(folder):
    a_run(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 257, "max_position_embeddings": 128})
    path = saved(transformers.LlamaForCausalLM(config), folder / "llama")
    options = {"text": str(folder / "words.jsonl"), "words": ("w1", "w2")}
    (model,) = analyzed([path], folder / "llama-analysis", **options).models.values()
    assert model.routing is None and model.routing_unknown is None
    assert model.about.class_name == "LlamaForCausalLM"


def test_a_run_on_a_task_reads_its_own_problems_for_the_tasks_words(folder):
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=("operands=2",))
    run = train(a_run(folder, task=task, max_steps=2), folder / "sums")
    analysis = analyzed([run.path], folder / "default", each=5)
    assert analysis.sequences == 6 and analysis.options.words == ("1", "2", "3", "4")
    (model,) = analysis.models.values()
    assert set(model.layout.labels) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--words", "is", "w1"], "'is' never occurs in .*words.jsonl"),
        (["--each", "100000"], "occurs .* times in .*words.jsonl .*, 100000 were asked for"),
        (["--each", "3"], "for its folds, --each of at least 5; got w1, w2, w3 and 3"),
        (["--text", "/nowhere/text.jsonl"], "/nowhere/text.jsonl"),
        (["--against", "/nowhere/model"], "/nowhere/model does not exist"),
        (["--figure", "x.foo", "--against", "/nowhere"], "end in .svg, .png or .pdf, got x.foo"),
    ],
)
def test_bad_options_are_refused(runs, folder, more, message):
    words = SMALL.index("--words")
    small = SMALL[:words] if "--words" in more else SMALL
    options = ["analyze", str(runs[0]), "--text", str(folder / "words.jsonl"), *small]
    with pytest.raises(SystemExit, match=message):
        cli.main([*options, "--out", str(folder / "refused"), *more])


def test_entropy_is_of_order_1_by_default():
    # The paper's code has 0.5, but its figure and ours are of order 1.
    assert AnalysisOptions().alpha == 1.0


@pytest.mark.parametrize(
    ("field", "value", "least"),
    [("length", 1, 2), ("sequences", 0, 1), ("documents", 0, 1), ("alpha", 0.0, 0)],
)
def test_options_out_of_range(field, value, least):
    with pytest.raises(ValueError, match=f"--{field} must be .* {least}, got {value}"):
        AnalysisOptions(**{field: value})


def test_rows_come_back_as_they_were_appended():
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(size=(7, 3 + key)).astype(np.float32) for key in range(3)}
    with DiskRows() as stored:
        for i in range(7):
            for key, array in rows.items():
                stored.append(key, array[i])
            # Reading in between loses nothing.
            np.testing.assert_array_equal(stored.read(1), rows[1][: i + 1])
        for key, array in rows.items():
            np.testing.assert_array_equal(stored.read(key), array)
        with pytest.raises(ValueError, match="rows of 0 hold 3 numbers, got 4"):
            stored.append(0, np.zeros(4))
    with pytest.raises(ValueError, match="closed file"):
        stored.read(0)


def test_a_view_with_strides_is_kept_by_value():
    array = np.arange(12.0).reshape(3, 4)
    with DiskRows() as stored:
        stored.append("column", array[:, 1])
        np.testing.assert_array_equal(stored.read("column"), [[1, 5, 9]])
