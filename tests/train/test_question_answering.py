"""`layermem train --host --kind question-answering`: from a model to scored answers."""

import json
import re
import subprocess
import sys

import pytest
import torch
from asked import END, asked, predictions_of, put_base, put_questions, question_rows
from host_models import ARMS, shake_routers
from labelled import write_rows
from safetensors.torch import load_file
from small_run import Interrupted, assert_same_end, interrupt, stop_at
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from layermem.retrofit import attach, load_attached
from layermem.retrofit.loading import is_attached
from layermem_bench import cli
from layermem_bench.data.question_records import exact_match, f1
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Answers
from layermem_bench.results.study import StudyResult
from layermem_bench.train.learning.questions import answer_questions

# Those of the table of hosts that transformers has such a head on.
HOSTS = (
    *("bert", "roberta", "deberta", "gpt2", "gpt_neox"),
    *("llama", "mistral", "qwen2", "qwen3", "smollm3"),
)
FAST = ("roberta", "qwen3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("asking")
    for name in ("bert", "llama"):
        put_base(path / name, name)
    put_questions(path / "questions.jsonl", 80, unanswerable=0.3)
    return path


def run_on(folder, out, *more, base="bert", **options):
    source = folder / "questions.jsonl"
    return asked(folder / base, source, out, "--unanswerable", *more, **options)


@pytest.fixture(scope="module")
def arms(folder):
    """Arms of one encoder, by name."""
    return {name: run_on(folder, folder / "arms" / name, *o) for name, o in ARMS.items()}


@pytest.fixture(scope="module")
def decoder(folder):
    return run_on(folder, folder / "decoder", "--max-length", "10", "--stride", "2", base="llama")


def load(run):
    """Return the final model of a run in eval mode, attached where it was."""
    if is_attached(run.final):
        return load_attached(run.final, auto_class=AutoModelForQuestionAnswering).eval()
    return AutoModelForQuestionAnswering.from_pretrained(run.final).eval()


def validations_of(run):
    return [row for row in run.rows() if "val_loss" in row]


def test_every_arm_starts_alike_and_learns(arms):
    starts = set()
    for name, run in arms.items():
        rows = validations_of(run)
        assert [row["step"] for row in rows] == [0, 4, 8] and "val_perplexity" not in rows[0]
        assert rows[-1]["val_loss"] < rows[0]["val_loss"], name
        starts.add((rows[0]["val_loss"], rows[0]["val_accuracy"], rows[0]["val_f1"]))
    assert len(starts) == 1


def test_only_what_is_said_and_the_head_are_trained(folder, arms):
    before = load_file(folder / "bert" / "model.safetensors")
    for name, run in arms.items():
        after = load_file(run.final / "model.safetensors")
        base = {key for key in after if key in before}
        changed = {key for key in base if not torch.equal(before[key], after[key])}
        assert len(base) > 60 and (changed == set()) == (name == "routers"), name
        assert any(".memory." in key for key in after) == (name in ("routers", "everything"))
        if name == "lora":
            assert all(re.search(r"self\.(key|value)\.weight$", key) for key in changed)
    rows = [row for row in arms["routers"].rows() if "loss" in row]
    assert rows[0]["router_lr"] > rows[0]["lr"] > 0 and "router_norm" in rows[0]


def answer_by_hand(model, ids, types, first, spans, null):
    """Return the best span of a sequence by loops over its logits, and the null score.

    ``first``: where the context is in ``ids``; ``types``: segments, for a model that has them.
    """
    segments = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        output = model(torch.tensor([ids]), **segments)
    starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
    count = range(len(spans))
    scores = {(a, b): starts[first + a] + ends[first + b] for a in count for b in count if a <= b}
    begin, end = max(scores, key=scores.get)
    return scores[begin, end], spans[begin][0], spans[end][1], starts[null] + ends[null]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_predictions_are_those_of_the_saved_model(kind, arms, decoder):
    """Windows, logits, the choice over windows and the scores, all done anew here."""
    run = arms["everything"] if kind == "encoder" else decoder
    model, tokenizer = load(run), AutoTokenizer.from_pretrained(run.final)
    predictions, answers = predictions_of(run), read_result(Answers, run.answers)
    for row in predictions:
        question = tokenizer(row["question"], add_special_tokens=False)["input_ids"]
        context = tokenizer(row["context"], add_special_tokens=False, return_offsets_mapping=True)
        ids, spans = context["input_ids"], context["offset_mapping"]
        if kind == "encoder":
            cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
            types = [*[0] * (len(question) + 2), *[1] * (len(ids) + 1)]
            sequence = [cls, *question, sep, *ids, sep]
            found = [answer_by_hand(model, sequence, types, len(question) + 2, spans, 0)]
        else:
            end, found = tokenizer.convert_tokens_to_ids(END), []
            for begin in range(0, max(1, len(ids) - 2), 3):
                sequence = [*question, end, *ids[begin : begin + 5], end]
                part = spans[begin : begin + 5]
                found.append(answer_by_hand(model, sequence, None, len(question) + 1, part, -1))
        score, first, last, _ = max(found)
        null_score = min(each[3] for each in found)
        assert (row["score"], row["null_score"]) == pytest.approx((score, null_score), rel=1e-4)
        assert row["prediction"] == ("" if null_score > score else row["context"][first:last])
        assert row["exact"] == exact_match(row["prediction"], row["answers"])
        assert row["f1"] == f1(row["prediction"], row["answers"])
    last = validations_of(run)[-1]
    for name, column in (("exact", "val_accuracy"), ("f1", "val_f1")):
        mean = sum(row[name] for row in predictions) / len(predictions)
        assert getattr(answers.all, name) == pytest.approx(mean) == pytest.approx(last[column])
    assert json.loads(run.result.read_text())["accuracy"] == answers.all.exact
    assert (kind == "encoder") == answers.counts.null_is_first
    assert answers.counts.validation == len(predictions)


def test_no_context_is_on_both_sides(folder, arms, decoder):
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    held_out = {row["id"] for row in predictions_of(arms["plain"])}
    assert held_out == {row["id"] for row in predictions_of(decoder)}
    sides = [
        {row["context"] for row in rows if (row["id"] in held_out) is is_out}
        for is_out in (True, False)
    ]
    assert not sides[0] & sides[1] and 5 < len(held_out) < 40
    counts = read_result(Answers, decoder.answers).counts
    assert counts.training + counts.validation == 80 and counts.left_out == 0
    assert counts.validation_windows > counts.validation


def test_questions_about_one_context_stay_together(folder, tmp_path):
    row = question_rows(1)[0]
    spaced = {
        **row,
        "context": row["context"].replace(" ", "  "),
        "answers": {"text": [], "answer_start": []},
    }
    rows = question_rows(20, seed=1, unanswerable=0.3)
    write_rows(tmp_path / "t.jsonl", [*rows, {**row, "id": "a"}])
    write_rows(tmp_path / "v.jsonl", [{**row, "id": "b"}, {**spaced, "id": "c"}])
    options = ["--validation", str(tmp_path / "v.jsonl"), "--unanswerable"]
    run = asked(folder / "bert", tmp_path / "t.jsonl", tmp_path / "out", *options, steps=1)
    counts = read_result(Answers, run.answers).counts
    assert (counts.training, counts.validation, counts.left_out) == (20, 2, 1)


@pytest.mark.parametrize(
    "base", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in HOSTS]
)
def test_every_host_starts_from_its_weights(base, tmp_path):
    """transformers leaves the body of some of these at random weights."""
    put_base(tmp_path / base, base)
    put_questions(tmp_path / "questions.jsonl", 40, unanswerable=0.3)
    options = ["--lr", "1e-3", "--max-length", "60"]
    run = run_on(tmp_path, tmp_path / "out", *options, base=base, steps=4)
    before = load_file(tmp_path / base / "model.safetensors")
    after = load_file(run.final / "model.safetensors")
    named = {key.partition(".")[2]: tensor for key, tensor in after.items()}
    body = {key for key in before if re.search(r"\.(layers?|h)\.", key)}
    assert len(body) > 20 and all(
        torch.equal(before[key], named[key.partition(".")[2]]) for key in body
    )
    assert any(".memory." in key for key in after)
    rows = validations_of(run)
    assert rows[-1]["val_loss"] < rows[0]["val_loss"]
    # The saved model is whole.
    (given,) = answer_questions(
        load(run), AutoTokenizer.from_pretrained(run.final), [("which city ?", "near oslo")]
    )
    assert given.text and given.text in "near oslo"


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_with_memory_is_gone_on_with(tied, tmp_path):
    """Its class for question answering calls its base by another name than its checkpoint."""
    put_base(tmp_path / "bare", "llama", tie_word_embeddings=tied)
    put_questions(tmp_path / "questions.jsonl", 40, unanswerable=0.3)
    model = shake_routers(attach(AutoModelForCausalLM.from_pretrained(tmp_path / "bare")))
    model.save_pretrained(tmp_path / "base")
    AutoTokenizer.from_pretrained(tmp_path / "bare").save_pretrained(tmp_path / "base")
    options = ["--router-lr", "0", "--train", "routers"]
    if not tied:
        with pytest.raises(SystemExit, match=r"no place for, such as lm_head.weight"):
            run_on(tmp_path, tmp_path / "out", *options, base="base")
        return
    run = run_on(tmp_path, tmp_path / "out", *options, base="base", steps=2)
    ours, theirs = (
        [weight for name, weight in sorted(load_file(path).items()) if ".memory." in name]
        for path in (folder / "model.safetensors" for folder in (run.final, tmp_path / "base"))
    )
    assert len(ours) == len(theirs) == 3 and all(map(torch.equal, ours, theirs))


def test_a_classifier_gets_a_head_of_its_own(folder, tmp_path):
    AutoTokenizer.from_pretrained(folder / "bert").save_pretrained(tmp_path / "base")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "bert", num_labels=3)
    model.save_pretrained(tmp_path / "base")
    run = run_on(folder, tmp_path / "out", base=tmp_path / "base", steps=1)
    assert load_file(run.final / "model.safetensors")["qa_outputs.weight"].shape[0] == 2


@pytest.mark.slow
def test_lora_of_a_decoder_is_merged(folder, tmp_path):
    run = run_on(folder, tmp_path / "out", "--train", "lora", base="llama")
    before, after = (load_file(p / "model.safetensors") for p in (folder / "llama", run.final))
    same = {key.partition(".")[2]: tensor for key, tensor in after.items()}
    names = {key for key in before if key.startswith("model.layers")}
    changed = {k for k in names if not torch.equal(before[k], same[k.partition(".")[2]])}
    assert changed == {
        f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(4) for p in "kv"
    }


def test_the_micro_batch_changes_nothing_but_rounding(folder, tmp_path):
    curves = []
    for micro in ("8", "2"):
        options = ["--train", "all", "--micro-batch", micro]
        rows = run_on(folder, tmp_path / micro, *options, steps=4).rows()
        curves.append(
            [row[k] for row in rows for k in ("loss", "grad_norm", "val_loss") if k in row]
        )
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_as_one_left_alone(folder, tmp_path, monkeypatch):
    options = ["--train", "all", "--save-every", "2"]
    whole = run_on(folder, tmp_path / "whole", *options)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        stop_at(patch, 5, interrupt)
        run_on(folder, tmp_path / "part", *options)
    part = RunFolder(tmp_path / "part")
    cli.main(["train", "--config", str(part.config), "--out", str(part.path), "--resume"])
    assert_same_end(whole, part)
    for name in ("result", "predictions", "answers"):
        assert getattr(whole, name).read_text() == getattr(part, name).read_text()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_card_says_how_to_use_the_model(kind, arms, decoder, capsys):
    run = arms["everything"] if kind == "encoder" else decoder
    card = (run.final / "README.md").read_text()
    assert "pipeline_tag: question-answering" in card and "nats a window" in card
    assert "guess, random words: exact match, F1 of words" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(code.replace("path/to/this/folder", str(run.final)), {})
    assert capsys.readouterr().out.splitlines()[-1] == predictions_of(run)[0]["prediction"]


@pytest.mark.slow
def test_the_final_model_answers_alike_in_a_fresh_process(decoder, tmp_path):
    code = f"""
import json
from layermem.retrofit import load_attached
from layermem_bench.train.learning.questions import answer_questions
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
rows = [json.loads(line) for line in open({str(decoder.predictions)!r})]
model = load_attached({str(decoder.final)!r}, auto_class=AutoModelForQuestionAnswering)
given = answer_questions(
    model, AutoTokenizer.from_pretrained({str(decoder.final)!r}),
    [(row["question"], row["context"]) for row in rows],
    max_length=10, stride=2, unanswerable=True, batch_size=3,
)
assert [each.text for each in given] == [row["prediction"] for row in rows]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_arms_are_compared_on_a_page(arms, tmp_path):
    folders = [str(run.path) for run in arms.values()]
    cli.main(["report", *folders, "--out", str(tmp_path)])
    result = read_result(StudyResult, tmp_path / "study.json")
    arms_here = result.boards[0].conditions[0].arms
    assert arms_here[0].name == "plain" and len(arms_here) == 4
    for run in result.runs:
        by_answer = {f"right answers by answer: {kind}" for kind in ("HasAns", "NoAns")}
        assert set(run.metrics) == {"validation loss", "right answers", "F1 of words"} | by_answer
    run = next(run for run in result.runs if run.folder == str(arms["lora"].path))
    assert run.metrics["F1 of words"] == read_result(Answers, arms["lora"].answers).all.f1
    page = (tmp_path / "index.html").read_text()
    assert "F1 of words" in page and "HasAns" in page and "NoAns" in page


def test_a_model_with_a_head_is_gone_on_with(folder, arms, tmp_path):
    memory = ["--memory", "last", "--window", "2", "--train", "all"]
    base = arms["everything"].final
    again = run_on(folder, tmp_path / "again", *memory, base=base, steps=1)
    end = validations_of(arms["everything"])[-1]
    assert validations_of(again)[0]["val_loss"] == pytest.approx(end["val_loss"], rel=1e-6)
    assert validations_of(again)[0]["val_f1"] == pytest.approx(end["val_f1"])


@pytest.mark.slow
@pytest.mark.parametrize("base", ["bert", "gpt2"])
def test_tiny_models_learn_to_answer(base, tmp_path, caplog):
    caplog.set_level("INFO")
    put_base(tmp_path / base, base)
    put_questions(tmp_path / "questions.jsonl", 1500, unanswerable=0.2)
    sizes = ["--batch-size", "32", "--micro-batch", "32", "--warmup-steps", "20"]
    rates = ["--lr", "1e-3", "--eval-every", "450", "--train", "all", "--memory", "full"]
    run = run_on(tmp_path, tmp_path / "out", *sizes, *rates, base=base, steps=450)
    answers = read_result(Answers, run.answers)
    guessed = max(guess.f1 for guess in answers.guesses.values())
    assert answers.all.exact > 0.9 > guessed + 0.5
    assert answers.has_answer.f1 > 0.9 and answers.no_answer.exact > 0.9
    assert "of those without one: exact match, F1 of words" in caplog.text
    assert "guess, none: exact match, F1 of words" in caplog.text
