"""What every task keeps: repeatable problems, disjoint splits, right grades, texts as tokens."""

import json
from dataclasses import asdict

import pytest

from layermem_bench.config.run import Task
from layermem_bench.run.learning import build_problem_datasets
from layermem_bench.tasks import prosqa
from layermem_bench.tasks.problems import Queried
from layermem_bench.tasks.registry import (
    all_tasks,
    check_tokenizer,
    encode,
    get_task,
    vocabulary_and_length,
)

SPLITS = ("train", "validation", "test")
# Sizes of which there are so few problems that splits would meet without the rule.
FEW = {
    "arithmetic": {"operands": 3, "operand_max": 5, "value_max": 30, "trivial": 0.5},
    "prosqa": {"steps": 3, "nodes": 12, "statements": 15},
    "mqar": {"pairs": 4, "vocabulary": 10, "length": 18},
    "chains": {"depth": 2, "chains": 1},
}
OWN = pytest.mark.parametrize("name", list(FEW))


def what_is_asked(name, problem):
    """Return what decides about the split of a problem, read from its text."""
    words = problem.prompt.split()
    if name == "mqar":
        return frozenset(zip(words[:8:2], words[1:8:2], strict=True))
    if name == "chains":
        return frozenset(problem.prompt.split(" ? ")[0].removesuffix(" ;").split(" ; "))
    return problem.prompt


def test_every_task_of_the_package_is_tested():
    assert [*FEW] == [*all_tasks()][: len(FEW)]


@OWN
def test_a_seed_draws_the_same_problems_and_splits_do_not_meet(name):
    task, count = get_task(name), 60
    drawn = {
        (split, seed): task.problems(split, count, seed, **FEW[name])
        for split in SPLITS
        for seed in (0, 1)
    }
    assert task.problems("train", count, 0, **FEW[name]) == drawn["train", 0] != drawn["train", 1]
    assert task.problems("train", 20, 0, **FEW[name]) == drawn["train", 0][:20]
    assert all(len({p.prompt for p in problems}) == count for problems in drawn.values())
    asked = {
        split: {what_is_asked(name, p) for seed in (0, 1) for p in drawn[split, seed]}
        for split in SPLITS
    }
    assert sum(map(len, asked.values())) == len(set().union(*asked.values()))


@OWN
def test_solutions_are_right_and_corrupted_ones_wrong(name):
    task = get_task(name)
    problems = task.problems("test", 30, 0, **FEW[name])
    others = [*problems[1:], problems[0]]
    for problem, other in zip(problems, others, strict=True):
        grade = task.grade(problem, problem.solution)
        assert grade.answer and grade.steps and not grade.fault and not grade.at
        words = problem.solution.split()
        for wrong in (words[:-1], [*words[:-1], "<unknown>"], [*words, words[-1]], []):
            grade = task.grade(problem, " ".join(wrong))
            assert not grade.steps and grade.fault
        if isinstance(problem, Queried):
            assert grade.right == (False,) * len(problem.queries)
            assert len(problem.answers) == len(problem.levels) == len(problem.queries)
        elif other.solution != problem.solution:
            assert not task.grade(problem, other.solution).steps
        assert task.level(problem) >= 1
    assert 0 < task.chance(problems) <= 1
    told = task.describe(problems)
    assert told["problems"] == told["different prompts"] == 30
    assert sum(told[task.level_name].values()) == pytest.approx(1)


@OWN
def test_texts_are_tokens_and_tokens_texts(name, tmp_path):
    from transformers import AutoTokenizer

    task, problems = get_task(name), get_task(name).problems("train", 60, 0, **FEW[name])
    task.tokenizer(**FEW[name]).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    check_tokenizer(task, tokenizer, problems)
    prompts, solutions = encode(tokenizer, problems)
    for problem, prompt, solution in zip(problems, prompts, solutions, strict=True):
        if isinstance(problem, Queried):
            assert len(prompt) == len(problem.prompt.split())
            assert tokenizer.decode(solution) == problem.solution
        assert tokenizer.decode(prompt).split() == problem.prompt.split() or name == "arithmetic"
        assert task.grade(problem, tokenizer.decode(solution)).steps
    words = task.words(**FEW[name])
    assert words and all(len(ids) == 1 for ids in tokenizer([f" {w}" for w in words])["input_ids"])
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    with pytest.raises(ValueError, match=r"task.tokenizer"):
        encode(tokenizer, [type("Other", (), {"prompt": "ü", "solution": "1"})])


@OWN
def test_the_mean_length_is_that_of_the_training_set(name):
    options = tuple(f"{option}={value}" for option, value in FEW[name].items())
    task = Task(name=name, examples=60, validation=2, options=options)
    tokenizer = get_task(name).tokenizer(**task.fields())
    data, _ = build_problem_datasets(task, tokenizer)
    mean = sum(len(item["input_ids"]) for item in data.items) / len(data.items)
    assert vocabulary_and_length(task) == (len(tokenizer), pytest.approx(mean))
    assert vocabulary_and_length(task, tokenizer) == (len(tokenizer), pytest.approx(mean))


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("arithmetic", {"split": "dev"}, "split"),
        ("arithmetic", {"count": -1}, "count"),
        ("arithmetic", {"operands": 9}, "operands"),
        ("arithmetic", {"operand_max": 300}, "operand_max"),
        ("arithmetic", {"held_out": "expression"}, "held_out"),
        ("arithmetic", {"operands": 2, "count": 10**6, "operand_max": 5}, "only"),
        ("prosqa", {"graphs": "lines"}, "graphs"),
        ("prosqa", {"steps": 2}, "steps"),
        ("prosqa", {"nodes": 41}, "nodes"),
        ("prosqa", {"nodes": 12, "steps": 5}, "nodes"),
        ("mqar", {"vocabulary": 14}, "vocabulary"),
        ("mqar", {"length": 30}, "length"),
        ("chains", {"depth": 14}, "chains"),
        ("chains", {"chains": 0}, "chains"),
        ("chains", {"order": "random"}, "order"),
        ("chains", {"ask": "statements"}, "order"),
        ("chains", {"values": 1}, "values"),
        ("chains", {"depth": 1, "chains": 1, "count": 99}, "only"),
        ("chains", {"learned": 2}, "learned"),
    ],
)
def test_what_cannot_be_is_refused(name, options, named):
    with pytest.raises((ValueError, TypeError), match=named):
        get_task(name).problems(**{"split": "train", "count": 5, "seed": 0, **options})


RECORDS = prosqa.generate(12, 0)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes records into a file and returns its path."""

    def write_file(name, records):
        path = tmp_path / name
        path.write_text(json.dumps([asdict(record) for record in records]))
        return str(path)

    return write_file


def read(split, **files):
    return prosqa.generate(split=split, count=100, seed=0, **files)


@pytest.mark.parametrize("splits", [SPLITS, ("train", "test"), ("validation", "test")])
def test_one_file_for_several_splits_is_refused(write, splits):
    path, turned = write("a.json", RECORDS), write("b.json", RECORDS[::-1])
    for last in (path, turned):
        files = dict.fromkeys(splits, path) | {splits[-1]: last}
        with pytest.raises(ValueError, match="problems"):
            read(splits[0], **files)


def test_what_is_held_out_is_left_out_of_what_comes_before_it(write, caplog):
    files = {
        "train": write("train.json", [*RECORDS, RECORDS[0]]),
        "validation": write("validation.json", RECORDS[4:8]),
        "test": write("test.json", RECORDS[7:10]),
    }
    assert read("test", **files) == RECORDS[7:10] and not caplog.messages
    assert read("validation", **files) == RECORDS[4:7]
    assert read("train", **files) == [*RECORDS[:4], *RECORDS[10:]]
    assert [said.partition(" problems")[0] for said in caplog.messages] == ["1 of 4", "6 of 12"]
    # Where a split has no file, its problems are drawn.
    assert read("train", test=files["test"])[:12] == RECORDS
