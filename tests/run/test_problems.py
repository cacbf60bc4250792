"""Training on problems: what is masked, padded and resumed, and that it learns."""

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small_run import a_run, curve, rewound
from transformers import AutoModelForCausalLM, AutoTokenizer

from layermem_bench.config.run import Task
from layermem_bench.evals.solving import attempt, evaluate
from layermem_bench.run.folder import RunFolder, step_of
from layermem_bench.run.loop import Loop
from layermem_bench.run.sequences import ProblemDataset, build_problem_datasets
from layermem_bench.run.training import train
from layermem_bench.tasks.registry import get_task, vocabulary_and_length

TASK = Task(
    name="arithmetic",
    examples=200,
    validation=20,
    test=30,
    options=(
        *("operands=2", "operand_max=20", "value_max=40", "trivial=1.0"),
        "held_out=strict",
    ),
)
FEW = {**TASK.__dict__, "examples": 30, "validation": 5, "test": 6}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on few problems that was left alone, and its folder."""
    place = tmp_path_factory.mktemp("problems")
    run = a_run(place, task=Task(**FEW), keep=9)
    return run, train(run, place / "whole", evaluate=evaluate)


def test_the_loss_is_on_the_solution():
    task = get_task("arithmetic")
    tokenizer = task.tokenizer(value_max=200)
    made = task.problems("train", 5, 0)
    data = ProblemDataset(made, tokenizer)
    batch = data.collate([data[i] for i in range(5)])
    for problem, ids, labels in zip(made, batch["input_ids"], batch["labels"], strict=True):
        prompt, solution = (tokenizer(t)["input_ids"] for t in (problem.prompt, problem.solution))
        length = len(prompt) + len(solution) + 1
        learnt, rest = [*solution, tokenizer.eos_token_id], len(ids) - length
        assert ids.tolist() == [*prompt, *learnt, *[tokenizer.pad_token_id] * rest]
        assert labels.tolist() == [*[-100] * len(prompt), *learnt, *[-100] * rest]
    with pytest.raises(ValueError, match="needs at least one problem"):
        ProblemDataset([], tokenizer)


def test_of_queries_the_loss_is_on_the_answers():
    task = get_task("mqar")
    tokenizer = task.tokenizer()
    made = task.problems("train", 5, 0)
    data = ProblemDataset(made, tokenizer)
    batch = data.collate([data[i] for i in range(5)])
    for problem, ids, labels in zip(made, batch["input_ids"], batch["labels"], strict=True):
        assert tokenizer.decode(ids) == f"{problem.prompt} <end>"
        # A token's label is where the token before it predicts it.
        labelled = (labels != -100).nonzero().flatten() - 1
        assert tuple(labelled.tolist()) == problem.queries
        assert tokenizer.decode(labels[labels != -100]) == problem.solution
        # The answers themselves are not in the sequence.
        assert (ids[labels != -100] != labels[labels != -100]).all()
    assert data.length == 65


def test_a_model_of_queries_is_trained_and_read_alike(tmp_path):
    """What is read at the queries is what the loss is on."""
    options = ("pairs=1", "vocabulary=16", "length=8")
    few = Task(name="mqar", examples=8, validation=4, test=8, options=options)
    run = a_run(
        tmp_path,
        task=few,
        max_steps=60,
        eval_every=60,
        save_every=0,
        optim={"lr": 3e-2, "batch_size": 8},
        compute={"micro_batch": 8},
    )
    folder = train(run, tmp_path / "run", evaluate=evaluate)
    model = AutoModelForCausalLM.from_pretrained(folder.final)
    tokenizer = AutoTokenizer.from_pretrained(folder.final)
    problems = get_task("mqar").problems("train", 8, 0, **few.fields())
    learnt = attempt(model, tokenizer, get_task("mqar"), problems, batch_size=3)
    # The eight problems it was trained on are learnt by heart.
    assert all(a.grade.answer for a in learnt)
    data = ProblemDataset(problems, tokenizer)
    logits = model(**data.collate([data[0], data[1]])).logits
    for row, a in zip(logits, learnt, strict=False):
        (query,) = a.problem.queries
        assert tokenizer.decode(row[query].argmax()) == a.text
    rows = [json.loads(line) for line in folder.attempts.read_text().splitlines()]
    result = json.loads(folder.result.read_text())
    assert result["solutions"] not in (None, result["problems"])
    assert result["accuracy"] == sum(sum(row["right"]) for row in rows) / 8
    told = result["task"], result["chance"], folder.rows()[-1]["tokens"]
    assert told == ("mqar", 1, 60 * 8 * 9)


def test_the_first_problems_stand_there_as_often_as_asked():
    few = Task(**FEW)
    tokenizer = get_task("arithmetic").tokenizer(**few.fields())
    once, validation = build_problem_datasets(few, tokenizer)
    assert (len(once), len(validation)) == (30, 5)
    learnt, same = build_problem_datasets(replace(few, repeated=4, repeats=3), tokenizer)
    assert learnt.problems == [*once.problems, *once.problems[:4], *once.problems[:4]]
    assert learnt.identity()[30:34] == learnt.identity()[34:] == once.identity()[:4]
    assert same.problems == validation.problems


@pytest.mark.parametrize(
    "task",
    [Task(**FEW), Task(name="prosqa", examples=20), Task(name="mqar", examples=20)],
    ids=lambda t: t.name,
)
def test_vocabulary_and_length_are_those_of_the_training_set(task):
    tokenizer = get_task(task.name).tokenizer(**task.fields())
    problems = get_task(task.name).problems("train", task.examples, task.seed, **task.fields())
    expected = len(tokenizer), pytest.approx(ProblemDataset(problems, tokenizer).length)
    assert vocabulary_and_length(task) == expected
    assert vocabulary_and_length(task, tokenizer) == expected


def test_a_run_leaves_its_result_and_resumes_alike(whole, tmp_path):
    run, whole = whole
    rows = whole.rows()
    assert {"val_accuracy", "val_steps"} <= set(rows[-1])
    result = json.loads(whole.result.read_text())
    assert (result["task"], result["split"], result["count"]) == ("arithmetic", "test", 6)
    assert (result["run_id"], result["steps_taken"]) == (run.id, run.max_steps)
    assert len(whole.attempts.read_text().splitlines()) == 6
    assert rows[0]["tokens"] == run.optim.batch_size * 6
    # Killed before its end: the same again.
    cut = rewound(whole.path, tmp_path / "cut", step=6)
    cut.result.unlink()
    cut.attempts.unlink()
    again = train(run, cut.path, resume=True, evaluate=evaluate)
    assert curve(again) == curve(whole)
    assert again.attempts.read_text() == whole.attempts.read_text()
    assert again.result.read_text() == whole.result.read_text()


def out_of_memory():
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("cause", "save_every", "saved"),
    [("error", 0, []), ("error", 3, [6, 8]), ("SIGTERM", 0, []), ("SIGINT", 0, [])],
)
def test_a_model_whose_test_fails_is_kept(
    cause, save_every, saved, whole, tmp_path, monkeypatch, interruptible
):
    """The run has not ended; resumed, it solves without training again."""
    run, whole = whole
    run = replace(run, save_every=save_every, keep=2)

    def failing(model, tokenizer, task, split):
        if split == "test":
            out_of_memory() if cause == "error" else os.kill(os.getpid(), signal.Signals[cause])
        return evaluate(model, tokenizer, task, split)

    raised = {"error": RuntimeError, "SIGINT": KeyboardInterrupt}.get(cause)
    with pytest.raises(raised) if raised else nullcontext():
        train(run, tmp_path / "failed", evaluate=failing)
    folder = RunFolder(tmp_path / "failed")
    assert not folder.final.exists() and not folder.result.exists()
    monkeypatch.setattr(Loop, "train_step", None)
    assert train(run, folder.path, resume=True, evaluate=evaluate).final.exists()
    assert curve(folder) == curve(whole)
    assert folder.result.read_text() == whole.result.read_text()
    assert [step_of(path) for path in folder.complete_checkpoints()] == saved


def test_the_validation_loss_is_the_mean_over_labels(tmp_path):
    # Proofs are of different lengths.
    few = Task(name="prosqa", examples=8, validation=5)
    found = {}
    for micro in (1, 4):
        run = a_run(tmp_path, task=few, max_steps=2, save_every=0, compute={"micro_batch": micro})
        found[micro] = train(run, tmp_path / str(micro))
    model = AutoModelForCausalLM.from_pretrained(found[1].final)
    tokenizer = AutoTokenizer.from_pretrained(found[1].final)
    lost = labels = 0
    for item in (data := build_problem_datasets(few, tokenizer)[1]):
        with torch.no_grad():
            loss = model(**data.collate([item])).loss.item()
        count = len(item["labels"][1:][item["labels"][1:] != -100])
        lost, labels = lost + loss * count, labels + count
    losses = [folder.rows()[-1]["val_loss"] for folder in found.values()]
    assert losses == pytest.approx([lost / labels] * 2, rel=1e-5)
