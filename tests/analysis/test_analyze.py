"""Test what analyze computes, for our models and others, and the page that it draws."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from small_run import a_run
from tiny import TINY

from layermem import cli
from layermem.analysis.analyze import DiskRows
from layermem.analysis.entropy import matrix_entropy, standardise
from layermem.config import Task
from layermem.data.tokenizers import load_tokenizer
from layermem.models.seams import DependsOnInput, Memory
from layermem.results.analysis import Analysis, AnalysisOptions
from layermem.results.files import read_result
from layermem.train.run import train
from layermem.variants.lime import LimeRouter

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


def analyzed(*options):
    """Run the command with its options and return what it wrote to the folder that --out names."""
    cli.main(["analyze", *map(str, options)])
    return read_result(Analysis, Path(options[options.index("--out") + 1]))


def test_two_runs_side_by_side(runs, folder, capsys):
    out = folder / "both"
    text = folder / "words.jsonl"
    figure = folder / "figure.svg"
    options = ["--against", runs[1], "--text", text, "--out", out, "--figure", figure, *SMALL]
    analysis = analyzed(runs[0], *options)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("entropy,", "paper", "converged", "lime", "plain"))
    assert figure.read_text().count('<g id="axes_') == 4
    assert list(analysis.models) == ["lime", "plain"] and analysis.folder == str(out)
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
    page = (out / "index.html").read_text()
    assert (
        "No router reads another layer" in page and "Heaviest paths" in page and "--against" in page
    )
    assert len(page) < 5_000_000


def test_folders_of_one_name_are_called_by_their_parents_too(runs, folder, tmp_path):
    again = tmp_path / "again" / "lime"
    shutil.copytree(runs[0], again)
    options = ["--out", tmp_path / "out", "--text", folder / "words.jsonl", *SMALL]
    analysis = analyzed(runs[0], "--against", again, *options)
    assert list(analysis.models) == [f"{folder.name}/lime", "again/lime"]
    for same in (runs[0], runs[0] / ".." / "lime"):
        with pytest.raises(SystemExit, match="lime are one checkpoint; give different ones"):
            analyzed(runs[0], "--against", same, *options)


def depends_on_input(memory):
    raise DependsOnInput("the weights of LimeRouter depend on its input")


@pytest.mark.parametrize(
    ("static_weights", "reason"),
    [
        (depends_on_input, "the weights of LimeRouter depend on its input"),
        (
            Memory.static_weights,
            "LimeRouter does not override static_weights, which a memory does if it has weights "
            "that hold for every input and for keys and values alike",
        ),
    ],
    ids=["depends", "undefined"],
)
def test_routers_of_unknown_weights_are_left_out_with_the_reason(
    static_weights, reason, runs, tmp_path, folder, caplog, monkeypatch
):
    monkeypatch.setattr(LimeRouter, "static_weights", static_weights)
    out = tmp_path / "unknown"
    caplog.set_level(logging.INFO)
    analysis = analyzed(runs[0], "--text", folder / "words.jsonl", "--out", out, *SMALL)
    (model,) = analysis.models.values()
    assert model.routing is None and model.routing_unknown == reason
    assert f"It is not shown: {reason}." in (out / "index.html").read_text()
    assert f"what the routers of lime read is left out: {reason}" in caplog.messages


def test_what_two_variants_mix_over_depth_is_shown(folder):
    names = ("mudd", "denseformer")
    first, second = (train(a_run(folder, variant=v, max_steps=2), folder / v).path for v in names)
    out = folder / "mixtures"
    options = ["--text", folder / "words.jsonl", "--out", out, *SMALL]
    analysis = analyzed(first, "--against", second, *options)
    mudd, denseformer = (analysis.models[name].mixtures for name in names)
    assert [m.place for m in mudd] == ["layer 1, attention", "layer 2, attention", "final norm"]
    assert mudd[1].readers == ("query", "key", "value", "residual")
    assert np.shape(mudd[1].mean) == (4, 3) and np.any(mudd[1].deviation)
    assert [m.place for m in denseformer] == [f"layer {i}, mlp" for i in range(3)]
    page = (out / "index.html").read_text()
    assert "What mudd mixes" in page and "What denseformer mixes" in page


def test_entropy_is_that_of_the_arrays(runs, folder):
    text = folder / "words.jsonl"
    options = ["--text", text, "--out", folder / "one", "--alpha", "0.5", *SMALL]
    (model,) = analyzed(runs[0], *options).models.values()
    # By hand: the first six pieces of 24 bytes, each from its own document.
    texts = [json.loads(line)["text"] for line in text.read_text().splitlines()]
    pieces = [t[i : i + 24] for t in texts for i in range(0, len(t) - 23, 24)][:6]
    ids = torch.tensor([list(piece.encode()) for piece in pieces])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(runs[0] / "final")
    with torch.no_grad():
        hidden = loaded(ids, output_hidden_states=True).hidden_states[2].double().numpy()
    expected = [matrix_entropy(z, 0.5) for z in standardise(hidden)]
    assert model.entropy["hidden"].mean[1] == pytest.approx(np.mean(expected), rel=1e-6)
    assert model.entropy["hidden"].deviation[1] == pytest.approx(np.std(expected), rel=1e-4)


def test_a_decoder_of_transformers(folder):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 257, "max_position_embeddings": 128})
    path = folder / "llama"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    load_tokenizer("bytes").save_pretrained(path)
    options = ["--text", folder / "words.jsonl", "--out", folder / "llama-analysis", *SMALL]
    (model,) = analyzed(path, *options).models.values()
    assert model.routing is None and model.routing_unknown is None
    assert model.about.class_name == "LlamaForCausalLM"


def test_a_run_on_a_task_reads_its_own_problems(folder):
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=("operands=2",))
    run = train(a_run(folder, task=task, max_steps=2), folder / "sums")
    options = ["--each", "5", "--sequences", "8"]
    analysis = analyzed(run.path, "--words", "2", "3", *options, "--out", folder / "numbers")
    assert analysis.sequences == 8 and analysis.options.words == ("2", "3")
    # Without --words the probe is for the task's own words.
    analysis = analyzed(run.path, *options, "--out", folder / "default")
    assert analysis.options.words == ("1", "2", "3", "4")
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
    options = ["analyze", str(runs[0]), "--text", str(folder / "words.jsonl"), *SMALL]
    with pytest.raises(SystemExit, match=message):
        cli.main([*options, "--out", str(folder / "refused"), *more])


def test_entropy_is_of_order_1_by_default():
    # The paper's code has 0.5, but its figure and ours are of order 1.
    assert AnalysisOptions().alpha == 1.0


def test_options_out_of_range():
    for field, value, message in (
        ("length", 1, "--length must be at least 2, got 1"),
        ("sequences", 0, "--sequences must be at least 1, got 0"),
        ("documents", 0, "--documents must be at least 1, got 0"),
        ("alpha", 0.0, "--alpha must be positive, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
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
    with pytest.raises(KeyError):
        stored.read(0)


def test_a_view_with_strides_is_kept_by_value():
    array = np.arange(12.0).reshape(3, 4)
    with DiskRows() as stored:
        stored.append("column", array[:, 1])
        np.testing.assert_array_equal(stored.read("column"), [[1, 5, 9]])
