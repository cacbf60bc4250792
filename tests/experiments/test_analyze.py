"""Analyze: numbers by layer for ours and theirs, a page from them alone, and clear refusals."""

import itertools
import json
import logging
import shutil
import tracemalloc
from collections import Counter
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from recorded import record
from safetensors.torch import load_file, save_file
from small_run import a_run
from tiny import TINY
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from layermem import cli
from layermem.analysis.entropy import matrix_entropy, standardise
from layermem.analysis.words import check_known, pattern
from layermem.config import Task
from layermem.data.tokenizers import load_tokenizer
from layermem.experiments import analyze as inside
from layermem.experiments.analyze import Analyze
from layermem.models.seams import DependsOnInput, Memory
from layermem.tasks import prosqa
from layermem.tasks.registry import TASKS, lookup
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
            "LimeRouter does not override static_weights, which a memory does if it has weights "
            "that hold for every input and for keys and values alike",
        ),
    ],
    ids=["depends", "undefined"],
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
    # Without words it is the task's own that are told apart.
    asked = ["--each", "5", "--sequences", "8", "--out", folder / "default"]
    analyze(capsys, run.path, *asked)
    found = json.loads((folder / "default" / "analysis.json").read_text())
    assert found["asked"]["words"] == ["1", "2", "3", "4"]
    (model,) = found["models"].values()
    assert set(model["layout"]["labels"]) == {0, 1, 2, 3}


def sums(folder, **changes):
    """Return the folder of a run on sums that has ended, without a model that could be loaded."""
    options = ("operands=2", *changes.pop("options", ()))
    task = Task(name="arithmetic", examples=30, validation=5, test=60, options=options)
    path = record(folder / "run", task=replace(task, **changes))
    transformers.LlamaConfig(**TINY).save_pretrained(path / "final")
    fields = task.fields()
    own = lookup(task.name).tokenizer(**fields)
    (load_tokenizer("bytes") if changes else own).save_pretrained(path / "final")
    return path


@pytest.mark.parametrize(
    ("more", "changes", "message"),
    [
        (
            ["--words", "is", "1"],
            {},
            "'is' cannot occur in what the tokenizer of run writes",
        ),
        (["--words", "1", "201"], {}, "'201' cannot occur in what the tokenizer of run writes"),
        (
            ["--words", "is", "1"],
            {"tokenizer": "bytes"},
            "'is' cannot occur in the test problems of run: there is no token for it; give other",
        ),
        (
            ["--words", "1", "193", "--each", "9999"],
            {},
            r"'1' occurs \d+ times in the first 60 of the test problems of run: 9999 would take "
            r"too many; ask for fewer \(--each\), or for other --words",
        ),
        (["--words", "1", "1"], {}, "words must be different and not empty"),
        (["--words", "1"], {}, "a probe needs at least two --words"),
        (
            ["--words", "1", "2", "--each", "4"],
            {},
            "of --each at least 5, one for each of its folds",
        ),
    ],
)
def test_words_that_will_not_do_are_refused_before_a_model_is_loaded(
    more, changes, message, tmp_path, monkeypatch
):
    path = sums(tmp_path, **changes)
    monkeypatch.setattr(inside, "_model", None)
    monkeypatch.setattr(inside, "_find", None)
    with pytest.raises(SystemExit, match=message):
        cli.main(["analyze", str(path), *more])


def test_every_task_has_words_that_its_problems_are_full_of():
    for name, kind in TASKS.items():
        fields = {"operands": 6} if name == "arithmetic" else {}
        texts = next(inside._problems_by_seed(Task(name=name, test=200)))
        for options in ({}, fields):
            words = kind.words(**options)
            check_known(words, kind.tokenizer(**options), name)
        # Of 2,000 there are more than the 200 that are looked for by default.
        inside._check_frequent(words, 200, texts, name)
        found = Counter(match for text in texts for match in pattern(words).findall(text))
        assert len(words) == 4 and min(found[word] for word in words) >= 20, (name, found)
    assert TASKS["arithmetic"].words(value_max=2) == ("0", "1", "2")


def test_a_text_is_read_for_the_papers_words(runs):
    (subject,) = inside._subjects([str(runs[0])])
    asked = inside._worded(Analyze(checkpoint="x", text="stdlib"), subject)
    assert asked.words == ("is", "are", "was", "were")


def test_a_problem_is_read_once(folder, tmp_path):
    few = prosqa.generate(3, 0)
    file = tmp_path / "few.json"
    file.write_text(json.dumps([asdict(record) for record in [*few, *few]]))
    task = Task(name="prosqa", test=6, options=(f"test={file}",))
    read = list(inside._problems(task))
    assert read == [f"{record.prompt} {record.solution}" for record in few]
    # Other seeds bring other problems, until there are no more.
    read = list(inside._problems(Task(name="arithmetic", test=60, options=("operands=2",))))
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
        (["--each", "3"], "of --each at least 5, one for each of its folds"),
        (["--text", "/nowhere/text.jsonl"], "/nowhere/text.jsonl"),
        (["--against", "/nowhere/model"], "/nowhere/model does not exist"),
        (["--figure", "x.foo", "--against", "/nowhere"], "end in .svg, .png or .pdf, got x.foo"),
    ],
)
def test_what_is_refused(runs, folder, more, message):
    asked = ["analyze", str(runs[0]), "--text", str(folder / "words.jsonl"), *SMALL]
    with pytest.raises(SystemExit, match=message):
        cli.main([*asked, "--out", str(folder / "refused"), *more])


def test_entropy_is_shannons_unless_asked_otherwise():
    # The paper's code: 0.5. What its figure and ours show must not depend on who forgot to say it.
    assert Analyze(checkpoint="x").alpha == 1.0


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


def a_llama(path, tokenizer):
    """Save a small model of transformers with a tokenizer of at most 300 tokens."""
    sizes = {**TINY, "vocab_size": 300, "max_position_embeddings": 128}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_weights_that_are_missing_are_not_made_up(folder, runs, tmp_path):
    path = a_llama(tmp_path / "half", load_tokenizer("bytes"))
    weights = load_file(path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    asked = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"half lacks 9 of the model's weights, model\.layers\.1"):
        cli.main(["analyze", str(path), *asked])


def test_one_vocabulary_used_in_two_ways_is_not_laid_side_by_side(folder, runs, tmp_path):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {piece: i for i, piece in enumerate((*letters, "w1", "Ġw", "<end>"))}

    def cutting(*pairs):
        made = Tokenizer(models.BPE(vocab=numbers, merges=list(pairs)))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=made, eos_token="<end>", pad_token="<end>"
        )

    ours = a_llama(tmp_path / "ours", cutting(("w", "1")))
    theirs = a_llama(tmp_path / "theirs", cutting(("Ġ", "w")))
    asked = ["--text", str(folder / "words.jsonl"), *SMALL, "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="ours and theirs cut the same text into different tokens"):
        cli.main(["analyze", str(ours), "--against", str(theirs), *asked])
