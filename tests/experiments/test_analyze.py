"""Analyze: numbers by layer for ours and theirs, a page from them alone, and clear refusals."""

import itertools
import json
import logging
import shutil
import tracemalloc
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from small_run import a_run
from tiny import TINY
from tokenizers import processors

from layermem import cli
from layermem.analysis.entropy import matrix_entropy, standardise
from layermem.config import Task
from layermem.data.tokenizers import load_tokenizer
from layermem.experiments import analyze as inside
from layermem.experiments.analyze import Analyze
from layermem.models.seams import DependsOnInput, Memory
from layermem.tasks import prosqa
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


def analyze(capsys, *asked):
    cli.main(["analyze", *map(str, asked)])
    capsys.readouterr()


def test_two_runs_side_by_side(runs, folder, capsys):
    out = folder / "both"
    text = folder / "words.jsonl"
    figure = folder / "figure.svg"
    asked = ["--against", runs[1], "--text", text, "--out", out, "--figure", figure, *SMALL]
    cli.main(["analyze", *map(str, [runs[0], *asked])])
    shown = capsys.readouterr().out
    assert all(said in shown for said in ("entropy,", "paper", "converged", "lime", "plain"))
    assert figure.read_text().count('<g id="axes_') == 4
    found = json.loads((out / "analysis.json").read_text())
    assert list(found["models"]) == ["lime", "plain"]
    for name, model in found["models"].items():
        for kind in ("hidden", "routed"):
            assert len(model["entropy"][kind]["mean"]) == 3
            assert all(0 < h < np.log(24) for h in model["entropy"][kind]["mean"])
            for probe in ("paper", "converged"):
                scores = model["separability"][probe][kind]
                assert (
                    all(0 <= score <= 1 for score in scores["mean"]) and scores["chance"] == 1 / 3
                )
        assert len(model["layout"]["labels"]) == 18
        assert [len(points) for points in model["layout"]["layers"].values()] == [18] * 3
        assert ("routing" in model) == (name == "lime")
    page = (out / "index.html").read_text()
    assert "It has no routers" in page and "Heaviest ways" in page and "--against" in page
    assert len(page) < 5_000_000


def test_folders_called_alike_are_told_apart(runs, folder, tmp_path, capsys):
    again = tmp_path / "again" / "lime"
    shutil.copytree(runs[0], again)
    out, asked = tmp_path / "out", ["--text", folder / "words.jsonl", *SMALL]
    analyze(capsys, runs[0], "--against", again, "--out", out, *asked)
    found = json.loads((out / "analysis.json").read_text())
    assert list(found["models"]) == [f"{folder.name}/lime", "again/lime"]
    for same in (runs[0], runs[0] / ".." / "lime"):
        with pytest.raises(SystemExit, match="lime are one; give two"):
            analyze(capsys, runs[0], "--against", same, "--out", out, *asked)


def depends_on_input(memory):
    raise DependsOnInput("the weights of LimeRouter depend on its input")


@pytest.mark.parametrize(
    ("static_weights", "why"),
    [
        (depends_on_input, "the weights of LimeRouter depend on its input"),
        (
            Memory.static_weights,
            "LimeRouter does not tell its weights: override static_weights to return them, or to "
            "raise DependsOnInput if only an input decides them",
        ),
    ],
    ids=["depends", "untold"],
)
def test_routers_whose_weights_are_not_known_are_said_and_left_out(
    static_weights, why, runs, tmp_path, folder, capsys, caplog, monkeypatch
):
    monkeypatch.setattr(LimeRouter, "static_weights", static_weights)
    out = tmp_path / "unknown"
    caplog.set_level(logging.INFO)
    analyze(capsys, runs[0], "--text", folder / "words.jsonl", "--out", out, *SMALL)
    (model,) = json.loads((out / "analysis.json").read_text())["models"].values()
    assert "routing" not in model and model["routing_unknown"] == why
    assert f"It is not shown: {why}." in (out / "index.html").read_text()
    assert f"what lime reads is left out: {why}" in caplog.messages


def test_entropy_is_that_of_the_arrays(runs, folder, capsys):
    out, text = folder / "one", folder / "words.jsonl"
    analyze(capsys, runs[0], "--text", text, "--out", out, "--alpha", "0.5", *SMALL)
    (model,) = json.loads((out / "analysis.json").read_text())["models"].values()
    # By hand: the first six pieces of 24 bytes, each from its own document.
    texts = [json.loads(line)["text"] for line in text.read_text().splitlines()]
    pieces = [t[i : i + 24] for t in texts for i in range(0, len(t) - 23, 24)][:6]
    ids = torch.tensor([list(piece.encode()) for piece in pieces])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(runs[0] / "final")
    with torch.no_grad():
        hidden = loaded(ids, output_hidden_states=True).hidden_states[2].double().numpy()
    expected = [matrix_entropy(z, 0.5) for z in standardise(hidden)]
    assert model["entropy"]["hidden"]["mean"][1] == pytest.approx(np.mean(expected), rel=1e-6)
    assert model["entropy"]["hidden"]["deviation"][1] == pytest.approx(np.std(expected), rel=1e-4)


def test_a_decoder_of_transformers(folder, capsys):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 257, "max_position_embeddings": 128})
    path = folder / "llama"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    load_tokenizer("bytes").save_pretrained(path)
    analyze(capsys, path, "--text", folder / "words.jsonl", "--out", folder / "theirs", *SMALL)
    (model,) = json.loads((folder / "theirs" / "analysis.json").read_text())["models"].values()
    assert "routing" not in model and model["about"]["class"] == "LlamaForCausalLM"


def test_a_run_on_a_task_reads_its_own_problems(folder, capsys):
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=("operands=2",))
    run = train(a_run(folder, task=task, max_steps=2), folder / "sums")
    asked = ["--words", "2", "3", "--each", "5", "--sequences", "8", "--out", folder / "numbers"]
    analyze(capsys, run.path, *asked)
    found = json.loads((folder / "numbers" / "analysis.json").read_text())
    assert found["sequences"] == 8 and found["asked"]["words"] == ["2", "3"]
    with pytest.raises(SystemExit, match="times in the different test problems of sums, 9999 were"):
        analyze(capsys, run.path, *asked, "--each", "9999")


def test_a_problem_is_read_once(folder, tmp_path):
    few = prosqa.generate(3, 0)
    file = tmp_path / "few.json"
    file.write_text(json.dumps([asdict(record) for record in [*few, *few]]))
    task = Task(name="prosqa", test=6, options=(f"test={file}",))
    read = list(inside._problems("prosqa", task))
    assert read == [f"{record.prompt} {record.solution}" for record in few]
    # Other seeds bring other problems, until there are no more.
    read = list(inside._problems("arithmetic", Task(test=60, options=("operands=2",))))
    assert len(read) == len(set(read)) > 60


def test_a_text_is_searched_so_far_and_no_farther(runs, folder, monkeypatch):
    read = 0

    def documents(_, *, streaming):
        # Of a dataset on the hub no more is fetched than is read.
        assert streaming
        nonlocal read
        for read in range(1, 10**9):
            yield f"w1 {read:09} " * 3

    monkeypatch.setattr(inside, "open_source", documents)
    asked = Analyze(checkpoint="", text="x", words=("w1", "w2"), each=5, documents=300, length=24)
    with pytest.raises(
        ValueError, match=r"'w2' never occurs in x \(read up to --documents 300\); give"
    ):
        inside._find(asked, *inside._subjects([str(runs[0])]))
    assert read == 300


def test_texts_without_a_word_are_let_go(monkeypatch):
    texts = itertools.chain((f"{i} {'x' * 10_000}" for i in range(1000)), ["it is"])
    monkeypatch.setattr(inside, "_texts", lambda *_: ("x", texts))
    subject = SimpleNamespace(tokenizer=load_tokenizer("bytes"))
    tracemalloc.start()
    found = inside._find(Analyze(checkpoint="", words=("is",), each=1), subject)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [place.text for place in found] == ["it is"] and peak < 10**6


def test_pieces_are_cut_whatever_a_tokenizer_adds():
    tokenizer = load_tokenizer("bytes")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|endoftext|>", special_tokens=[("<|endoftext|>", 256)]
    )
    assert len(tokenizer("abcdef")["input_ids"]) == 8
    assert list(inside._pieces(["abcdef", "g"], 2, tokenizer)) == ["ab", "cd", "ef"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--words", "is", "w1"], "'is' never occurs in .*words.jsonl"),
        (["--each", "100000"], "occurs .* times in .*words.jsonl .*, 100000 were asked for"),
        (["--each", "3"], "fewer than the 5 folds"),
        (["--text", "/nowhere/text.jsonl"], "/nowhere/text.jsonl"),
        (["--against", "/nowhere/model"], "/nowhere/model does not exist"),
        (["--figure", "x.foo", "--against", "/nowhere"], "end in .svg, .png or .pdf, got x.foo"),
    ],
)
def test_what_is_refused(runs, folder, more, message):
    asked = ["analyze", str(runs[0]), "--text", str(folder / "words.jsonl"), *SMALL]
    with pytest.raises(SystemExit, match=message):
        cli.main([*asked, "--out", str(folder / "refused"), *more])


def test_options_out_of_range():
    for field, value, message in (
        ("length", 1, "--length must be at least 2, got 1"),
        ("sequences", 0, "--sequences must be at least 1, got 0"),
        ("documents", 0, "--documents must be at least 1, got 0"),
        ("alpha", 0.0, "--alpha must be positive, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            Analyze(checkpoint="x", **{field: value})


def test_broken_weights_other_tokens_and_unended_runs(runs, folder, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(runs[0] / "final")
    torch.nn.init.constant_(model.model.layers[1].mlp.down_proj.weight, float("nan"))
    model.save_pretrained(tmp_path / "broken")
    load_tokenizer("bytes").save_pretrained(tmp_path / "broken")
    asked = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="not finite"):
        cli.main(["analyze", str(tmp_path / "broken"), *asked])
    run = folder / "sums"
    with pytest.raises(SystemExit, match="different tokenizers"):
        cli.main(["analyze", str(runs[0]), "--against", str(run), *asked])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match=r"no model at .*empty: it is no run folder"):
        cli.main(["analyze", str(tmp_path / "empty"), *asked])
    unended = tmp_path / "unended"
    unended.mkdir()
    (unended / "config.yaml").write_text("{}")
    with pytest.raises(SystemExit, match="has not ended"):
        cli.main(["analyze", str(unended), *asked])
