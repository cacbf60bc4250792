"""Training on problems: what is masked, padded, ordered and resumed, and that it learns."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from small_run import SUMS, Interrupted, a_run, curve, interrupt, rewound
from transformers import AutoModelForCausalLM, AutoTokenizer

from layermem_bench.config.hashing import digest
from layermem_bench.config.run import Run, Task
from layermem_bench.evals import solving
from layermem_bench.evals.evaluating import EvalOptions
from layermem_bench.evals.solving import attempt, evaluate
from layermem_bench.run.folder import RunFolder, step_of
from layermem_bench.run.learning import ProblemDataset, build_problem_datasets, order_of
from layermem_bench.run.loop import Loop
from layermem_bench.run.trained_models import Checkpoint
from layermem_bench.run.training import train
from layermem_bench.tasks import prosqa
from layermem_bench.tasks.registry import get_task, vocabulary_and_length


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run on few problems that was left alone, and its folder."""
    place = tmp_path_factory.mktemp("problems")
    run = a_run(place, task=SUMS, keep=9)
    return run, train(run, place / "whole", evaluate=evaluate)


def batch_of(name, **options):
    """Return tokenizer, problems, their dataset and a batch of it."""
    task = get_task(name)
    tokenizer, made = task.tokenizer(**options), task.problems("train", 5, 0)
    data = ProblemDataset(made, tokenizer)
    return tokenizer, made, data, data.collate([data[i] for i in range(5)])


def test_the_loss_is_on_the_solution():
    tokenizer, made, _, batch = batch_of("arithmetic", value_max=200)
    for problem, ids, labels in zip(made, batch["input_ids"], batch["labels"], strict=True):
        prompt, solution = (tokenizer(t)["input_ids"] for t in (problem.prompt, problem.solution))
        length = len(prompt) + len(solution) + 1
        learnt, rest = [*solution, tokenizer.eos_token_id], len(ids) - length
        assert ids.tolist() == [*prompt, *learnt, *[tokenizer.pad_token_id] * rest]
        assert labels.tolist() == [*[-100] * len(prompt), *learnt, *[-100] * rest]


def test_of_queries_the_loss_is_on_the_answers():
    tokenizer, made, data, batch = batch_of("mqar")
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
    steps = {"max_steps": 60, "eval_every": 60, "save_every": 0, "optim": {"lr": 3e-2}}
    run = a_run(tmp_path, task=few, compute={"micro_batch": 8}, **steps)
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


def test_the_first_problems_stand_there_as_often_as_asked():
    tokenizer = get_task("arithmetic").tokenizer(**SUMS.fields())
    once, validation = build_problem_datasets(SUMS, tokenizer)
    assert (len(once), len(validation)) == (30, 5)
    learnt, same = build_problem_datasets(replace(SUMS, repeated=4, repeats=3), tokenizer)
    assert learnt.problems == [*once.problems, *once.problems[:4], *once.problems[:4]]
    assert learnt.identity()[30:34] == learnt.identity()[34:] == once.identity()[:4]
    assert same.problems == validation.problems
    other, _ = build_problem_datasets(replace(SUMS, seed=1), tokenizer)
    assert digest(other.identity()) != digest(once.identity())


def test_problems_have_a_digest_of_their_own():
    """By which runs that are compared have learnt and validated the same."""
    tokenizer = get_task("arithmetic").tokenizer(**SUMS.fields())
    asked = (SUMS, replace(SUMS, test=9), replace(SUMS, seed=1), replace(SUMS, validation=6))
    built = [build_problem_datasets(each, tokenizer) for each in asked]
    first, same, *others = (digest([each.identity() for each in pair]) for pair in built)
    assert first == same and len({first, *others}) == 3


def test_every_epoch_is_a_permutation_of_its_own_that_the_seed_decides():
    order = list(order_of(7, 21, seed=0))
    epochs = [order[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    # A longer run begins as a shorter one.
    assert order[:10] == list(order_of(7, 10, 0)) != list(order_of(7, 10, 1))


@pytest.mark.parametrize(
    "task",
    [SUMS, Task(name="prosqa", examples=20), Task(name="mqar", examples=20)],
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
    card = (whole.final / "README.md").read_text(encoding="utf-8")
    assert f"| right final answer | {result['accuracy']:.1%} (95% interval" in card
    # Killed before its end: the same again.
    cut = rewound(whole.path, tmp_path / "cut", step=6)
    cut.result.unlink()
    cut.attempts.unlink()
    again = train(run, cut.path, resume=True, evaluate=evaluate)
    assert curve(again) == curve(whole)
    assert again.attempts.read_text() == whole.attempts.read_text()
    assert again.result.read_text() == whole.result.read_text()


@pytest.mark.parametrize(("save_every", "saved"), [(0, []), (3, [6, 8])])
def test_a_model_whose_test_fails_is_kept(save_every, saved, whole, tmp_path, monkeypatch):
    """The run has not ended; resumed, it solves without training again, nor as in training."""
    run, whole = whole
    run = replace(run, save_every=save_every, keep=2)

    def failing(model, tokenizer, task, split):
        if split == "test":
            raise RuntimeError("out of memory")
        return evaluate(model, tokenizer, task, split)

    with pytest.raises(RuntimeError):
        train(run, tmp_path / "failed", evaluate=failing)
    folder = RunFolder(tmp_path / "failed")
    assert not folder.final.exists() and not folder.result.exists()
    monkeypatch.setattr(Loop, "train_step", None)

    def told(model, *asked):
        # Where dropout would draw, and no cache be made.
        assert not model.training
        return evaluate(model, *asked)

    assert train(run, folder.path, resume=True, evaluate=told).final.exists()
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


def test_problems_of_a_file_that_the_model_learnt_from_are_refused(tmp_path, monkeypatch):
    def file(name, some):
        (tmp_path / name).write_text(json.dumps([asdict(record) for record in some]))
        return f"={tmp_path / name}"

    records = prosqa.generate(12, 0)
    learnt, mixed, new = (
        file(name, records[part])
        for name, part in (("a", slice(8)), ("b", slice(6, 12)), ("c", slice(8, 12)))
    )
    options = ("graphs=crossed", f"train{learnt}")
    run = Run(task=Task(name="prosqa", examples=20, options=options))
    checkpoint = Checkpoint(name="run", location=tmp_path, tokenizer=None, run=run)
    monkeypatch.setattr(solving, "solve", lambda *_: interrupt())
    # Whatever is given in place of the file that was learnt.
    for options, error in (
        ((f"test{mixed}",), ValueError),
        ((f"test{mixed}", "train=null"), ValueError),
        ((f"test{mixed}", f"train{new}"), ValueError),
        ((f"test{new}",), Interrupted),
        (("test=null",), Interrupted),
    ):
        with pytest.raises(error):
            asked = EvalOptions(task_options=options, limit=20)
            solving.measure_problems([checkpoint], ["prosqa"], asked, lambda *_: None)
