"""`layermem train --host --records`: classifiers from a model of transformers to run folders."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from host_models import ARMS, make_host
from labelled import SIZES, fill, finetuned, rows_of, write_rows
from safetensors.torch import load_file
from small_run import Interrupted, assert_same_end, interrupt, stop_at
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from layermem.retrofit import load_attached
from layermem.retrofit.loading import is_attached
from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.files import read_result
from layermem_bench.results.intervals import proportion
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import RecordCounts
from layermem_bench.results.study import StudyResult
from layermem_bench.train.learning.record_inputs import forward_all
from layermem_bench.train.trainer import Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("classifying"))


@pytest.fixture(scope="module")
def arms(folder):
    """Arms of one encoder, by name."""
    return {name: finetuned(folder, folder / "arms" / name, *o) for name, o in ARMS.items()}


def load(run):
    """Return the final model of a run in eval mode, attached where it was."""
    if is_attached(run.final):
        return load_attached(run.final, auto_class=AutoModelForSequenceClassification).eval()
    return AutoModelForSequenceClassification.from_pretrained(run.final).eval()


def logits_of(model, tokenizer, texts):
    """Return the logits of one or two texts, encoded here."""
    ids = tokenizer(texts[0])["input_ids"]
    if len(texts) == 2:
        ids = [*ids, 256, *tokenizer(texts[1])["input_ids"]]
    assert len(ids) <= 16
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_every_arm_starts_alike_and_learns(arms):
    starts = set()
    for name, run in arms.items():
        rows = [row for row in run.rows() if "val_loss" in row]
        assert [row["step"] for row in rows] == [0, 4, 8] and "val_perplexity" not in rows[0]
        assert rows[-1]["val_loss"] < rows[0]["val_loss"], name
        starts.add((rows[0]["val_loss"], rows[0]["val_accuracy"]))
    assert len(starts) == 1


def test_only_what_is_said_and_the_head_are_trained(folder, arms):
    before = load_file(folder / "bert" / "model.safetensors")
    new = {}
    for name, run in arms.items():
        after = load_file(run.final / "model.safetensors")
        base = {key for key in after if key in before}
        changed = {key for key in base if not torch.equal(before[key], after[key])}
        assert any(".memory." in key for key in after) == (name in ("routers", "everything"))
        assert (changed == set()) == (name == "routers"), name
        if name == "lora":
            names = {f"layer.{i}.attention.self.{p}" for i in range(4) for p in ("key", "value")}
            assert changed == {f"bert.encoder.{each}.weight" for each in names}
        new[name] = {key: after[key] for key in after if "classifier" in key or "pooler" in key}
    # The head was trained in each, from the same weights of the seed.
    assert len({str(weights["classifier.weight"]) for weights in new.values()}) == 4


def test_result_has_what_the_saved_model_gets_right(arms):
    for run in arms.values():
        model, tokenizer = load(run), AutoTokenizer.from_pretrained(run.final)
        attempts = [json.loads(line) for line in run.attempts.read_text().splitlines()]
        losses, right = [], []
        for attempt in attempts:
            logits = logits_of(model, tokenizer, attempt["texts"])
            label = model.config.label2id[attempt["label"]]
            losses.append(
                float(torch.nn.functional.cross_entropy(logits[None], torch.tensor([label])))
            )
            right.append(int(logits.argmax()) == label)
            assert attempt["predicted"] == model.config.id2label[int(logits.argmax())]
        result, counts = json.loads(run.result.read_text()), read_result(RecordCounts, run.records)
        last = [row for row in run.rows() if "val_loss" in row][-1]
        assert result["accuracy"] == last["val_accuracy"] == sum(right) / len(right)
        assert last["val_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
        assert result["interval"] == pytest.approx(proportion(sum(right), len(right)))
        labels = [attempt["label"] for attempt in attempts]
        share = max(labels.count(label) for label in labels) / len(labels)
        assert result["chance"] == counts.majority_share == share
        assert counts.training + counts.validation == 120 and counts.classes == ("n", "y")
        of_class = result["by"]["label"]["y"]
        assert of_class["count"] == labels.count("y")


FRESH = """
import sys, torch
from transformers import AutoModelForSequenceClassification
from layermem.retrofit import load_attached
model = load_attached(sys.argv[1], auto_class=AutoModelForSequenceClassification).eval()
ids = torch.arange(12).reshape(2, 6) + 97
torch.save(model(ids, attention_mask=torch.ones_like(ids)).logits, sys.argv[2])
"""


@pytest.mark.slow
def test_the_final_model_is_the_same_in_a_fresh_process(arms, tmp_path):
    run, out = arms["everything"], tmp_path / "logits.pt"
    subprocess.run([sys.executable, "-c", FRESH, str(run.final), str(out)], check=True)
    ids = torch.arange(12).reshape(2, 6) + 97
    ours = load(run)(ids, attention_mask=torch.ones_like(ids)).logits
    assert torch.equal(ours, torch.load(out))
    again = AutoModelForSequenceClassification.from_pretrained(run.final).eval()
    assert torch.equal(again(ids, attention_mask=torch.ones_like(ids)).logits, ours)


@pytest.mark.parametrize(
    "base",
    [
        "deberta",
        "llama",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("roberta", "gpt2", "gpt_neox")),
    ],
)
def test_encoders_and_decoders_are_trained(base, folder, tmp_path):
    options = ["--train", "all", "--fields", "sentence", "--lr", "3e-3"]
    run = finetuned(folder, tmp_path / "out", *options, base=base, steps=16)
    rows = [row for row in run.rows() if "val_loss" in row]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"] - 0.1
    model, tokenizer = load(run), AutoTokenizer.from_pretrained(run.final)
    # In a batch with padding as alone.
    for attempt in map(json.loads, run.attempts.read_text().splitlines()):
        logits = logits_of(model, tokenizer, attempt["texts"])
        assert attempt["predicted"] == model.config.id2label[int(logits.argmax())]


def test_the_micro_batch_changes_nothing_but_rounding(folder, tmp_path):
    curves = []
    for micro in ("8", "2"):
        options = ["--train", "all", "--micro-batch", micro]
        rows = finetuned(folder, tmp_path / micro, *options, steps=4).rows()
        curves.append(
            [value for row in rows if "loss" in row for value in (row["loss"], row["grad_norm"])]
        )
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


@pytest.mark.parametrize("dropout", [0.2, pytest.param(0.0, marks=pytest.mark.slow)])
def test_a_run_that_was_interrupted_ends_as_one_left_alone(dropout, folder, tmp_path, monkeypatch):
    base = tmp_path / "base"
    make_host("bert", **SIZES, hidden_dropout_prob=dropout).save_pretrained(base)
    load_tokenizer("bytes").save_pretrained(base)
    options = ["--train", "all", "--save-every", "2"]
    whole = finetuned(folder, tmp_path / "whole", *options, base=base)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 5, interrupt)
        finetuned(folder, tmp_path / "part", *options, base=base)
    part = RunFolder(tmp_path / "part")
    cli.main(["train", "--config", str(part.config), "--out", str(part.path), "--resume"])
    assert_same_end(whole, part)
    assert whole.result.read_text() == part.result.read_text()


def test_a_signal_while_records_are_judged_leaves_a_run_that_goes_on(
    folder, tmp_path, monkeypatch, interruptible
):
    whole = finetuned(folder, tmp_path / "whole")

    def stopped(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from forward_all(*args)

    with monkeypatch.context() as patch:
        patch.setattr("layermem_bench.train.learning.labels.forward_all", stopped)
        part = finetuned(folder, tmp_path / "part")
    assert not part.final.exists() and not part.result.exists()
    # It is judged without being trained again.
    monkeypatch.setattr(Trainer, "training_step", None)
    cli.main(["train", "--config", str(part.config), "--out", str(part.path), "--resume"])
    assert_same_end(whole, part)
    assert whole.result.read_text() == part.result.read_text()


def test_random_weights_are_of_the_seed(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    config = make_host("bert", **SIZES).config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ["--from-config", str(tmp_path / "config.json"), "--train", "all"]
    runs = [
        finetuned(folder, tmp_path / name, *options, "--seed", seed, "--memory", memory, steps=1)
        for name, seed, memory in (("a", "0", "none"), ("b", "0", "full"), ("c", "1", "full"))
    ]
    starts = [run.rows()[0]["val_loss"] for run in runs]
    assert starts[0] == starts[1] != starts[2]
    assert "random weights, of seed 1" in caplog.text and "random weights" in card(runs[0])


def card(run):
    return (run.final / "README.md").read_text()


@pytest.mark.parametrize("base", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_card_says_how_to_use_the_model(base, folder, arms, tmp_path, monkeypatch, capsys):
    run = arms["routers"] if base == "bert" else finetuned(folder, tmp_path / "out", base=base)
    assert "nats a record" in card(run) and "right by always '" in card(run)
    assert "pipeline_tag: text-classification" in card(run)
    (code,) = re.findall(r"```python\n(.*?)```", card(run), re.DOTALL)
    exec(code.replace("path/to/this/folder", str(run.final)), {})
    first = json.loads(run.attempts.read_text().splitlines()[0])
    assert capsys.readouterr().out.splitlines()[-1] == first["predicted"]


@pytest.mark.slow
def test_arms_are_compared_on_a_page(arms, tmp_path, caplog):
    cli.main(["report", *(str(run.path) for run in arms.values()), "--out", str(tmp_path)])
    result = read_result(StudyResult, tmp_path / "study.json")
    (board,) = result.boards
    (condition,) = board.conditions
    assert condition.arms[0].name == "plain" and len(condition.arms) == 4
    by_label = {f"right answers by label: {label}" for label in "ny"}
    assert {*result.metrics} == {"validation loss", "right answers"} | by_label
    assert board.data["source"].endswith("records.jsonl")
    assert "records.jsonl" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_other_records_are_another_setting(folder, arms, tmp_path):
    other = finetuned(folder, tmp_path / "o", "--max-length", "12", "--train", "all", steps=1)
    both = [str(other.path), str(arms["routers"].path)]
    cli.main(["report", *both, "--out", str(tmp_path / "page")])
    assert len(read_result(StudyResult, tmp_path / "page" / "study.json").boards) == 2
    assert read_result(RecordCounts, other.records).validation_cut > 0


def test_records_of_the_validation_file_are_left_out(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    rows = rows_of(40, seed=1)
    write_rows(tmp_path / "v.jsonl", [*rows, rows_of(120)[0]])
    out = finetuned(folder, tmp_path / "out", "--validation", str(tmp_path / "v.jsonl"), steps=1)
    counts = read_result(RecordCounts, out.records)
    assert counts.validation == 41 and counts.training + counts.left_out == 120
    assert counts.left_out >= 1 and f"left out {counts.left_out}" in caplog.text


def test_a_classifier_is_gone_on_with_under_its_classes(folder, arms, tmp_path):
    base = arms["everything"].final
    memory = ["--memory", "last", "--window", "2", "--train", "all"]
    again = finetuned(folder, tmp_path / "again", *memory, base=base, steps=1)
    end = [row for row in arms["everything"].rows() if "val_loss" in row][-1]
    assert again.rows()[0]["val_loss"] == pytest.approx(end["val_loss"], rel=1e-6)
    rows = [{**row, "label": {"y": "yes", "n": "no"}[row["label"]]} for row in rows_of(60)]
    other = write_rows(tmp_path / "other.jsonl", rows)
    with pytest.raises(
        SystemExit, match="is a classifier of n, y, and the records have .* no, yes"
    ):
        finetuned(folder, tmp_path / "x", *memory, "--records", str(other), base=base)
    with pytest.raises(SystemExit, match="has memory=last window=2, and the run asks for"):
        finetuned(folder, tmp_path / "x", base=base)


@pytest.mark.slow
def test_a_head_keeps_the_order_of_its_classes(folder, tmp_path):
    torch.manual_seed(0)
    config = {"num_labels": 2, "id2label": {0: "y", 1: "n"}, "label2id": {"y": 0, "n": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(folder / "bert", **config)
    model.save_pretrained(tmp_path / "base")
    load_tokenizer("bytes").save_pretrained(tmp_path / "base")
    run = finetuned(folder, tmp_path / "out", base=tmp_path / "base", steps=1)
    assert read_result(RecordCounts, run.records).classes == ("y", "n")
