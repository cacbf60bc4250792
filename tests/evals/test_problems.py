"""Problems of a run's own task through `layermem eval`: shares, levels, faults, what is refused."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
from small_run import a_run

from layermem_bench import cli
from layermem_bench.analysis.checkpoints import load_final, open_checkpoints
from layermem_bench.config.run import Task
from layermem_bench.evals import solving
from layermem_bench.evals.evaluating import evaluate_checkpoints
from layermem_bench.evals.solving import _check_file
from layermem_bench.results.eval import EvalOptions, EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import Shares, Solved
from layermem_bench.tasks import prosqa
from layermem_bench.train.run import train

TASK = Task(name="arithmetic", options=("operands=2",), examples=60, validation=10, test=10, seed=3)


def test_problems_of_a_file_are_those_that_it_holds_now(tmp_path):
    path = tmp_path / "test.json"
    task = Task(name="prosqa", test=5, options=(f"test={path}",))
    prompts = []
    for seed in (0, 7):
        drawn = prosqa.generate(10, seed, split="test", steps=3, nodes=12, statements=15)
        path.write_text(json.dumps([asdict(each) for each in drawn]))
        prompts.append([problem.prompt for problem in solving._problems(task, "test")])
        assert prompts[-1] == [problem.prompt for problem in solving._problems(task, "test")]
    assert not set(prompts[0]) & set(prompts[1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("solving")
    return train(replace(a_run(folder, max_steps=2), task=TASK), folder / "lime").path


def evaluate(out, *words):
    cli.main(["eval", *map(str, words), "--out", str(out)])
    return read_result(EvalResult, out)


def test_right_answers_and_steps_by_level_with_faults(run, tmp_path, capsys):
    result = evaluate(tmp_path, run, "--tasks", "arithmetic", "--limit", "25")
    (opened,) = open_checkpoints([str(run)])
    model = load_final(RunFolder(run).final)
    solved, _ = solving.evaluate(model, opened.tokenizer, replace(TASK, test=25), "test")
    for table, share, ends in (
        ("arithmetic, right answers", solved.accuracy, solved.interval),
        ("arithmetic, every step right", solved.steps, solved.steps_interval),
    ):
        rows = result.of(table)
        assert list(rows) == ["all", "operands: 2"]
        score = rows["all"].scores["lime"]
        assert (score.value, score.interval, score.count) == (share, ends, 25)
    row = result.of("arithmetic, right answers")["all"]
    assert row.chance == solved.chance > 0
    assert row.scores["lime"].counts == solved.faults and sum(solved.faults.values()) > 0
    shown = capsys.readouterr().out
    assert "25 problems" in shown and next(iter(solved.faults)) in shown


def test_answers_and_steps_are_not_mixed_up_and_models_may_have_other_levels(
    run, tmp_path, monkeypatch
):
    other = shutil.copytree(run, tmp_path / "other")

    def solve(checkpoint, *_):
        low, level = (checkpoint.name == "other") / 10, 2 + (checkpoint.name == "other")
        shares = {"accuracy": 0.5 + low, "interval": (0.4, 0.7), "steps": 0.3, "count": 10}
        of_level = Shares(**shares, steps_interval=(0.1, 0.5))
        by = {"operands": {str(level): of_level}}
        return Solved(**shares, steps_interval=(0.2, 0.4), chance=0.1 + low, by=by)

    monkeypatch.setattr("layermem_bench.evals.solving.solve", solve)
    result = evaluate(tmp_path / "out", run, other, "--tasks", "arithmetic")
    answers, steps = (
        result.of(f"arithmetic, {what}") for what in ("right answers", "every step right")
    )
    assert [score.value for score in answers["all"].scores.values()] == [0.5, 0.6]
    assert answers["all"].scores["lime"].interval == (0.4, 0.7)
    assert steps["all"].scores["lime"].value == 0.3 and steps["all"].chance is None
    assert steps["all"].scores["lime"].interval == (0.2, 0.4)
    assert steps["operands: 2"].scores["lime"].interval == (0.1, 0.5)
    assert set(answers["operands: 3"].scores) == {"other"}
    # Problems of two chances have no one chance: both are named.
    assert answers["all"].chance is None
    assert "10.0%, 20.0%" in result.tables["arithmetic, right answers"].caption
    # What groups runs is given all of them, with their folders.
    asked = EvalOptions(tasks=("arithmetic",))
    grouped = evaluate_checkpoints(
        [str(run), str(other)],
        asked,
        tmp_path / "out",
        group=lambda runs: {str(folder.path): (name,) for name, (_, folder) in runs.items()},
    )
    assert grouped.arms == {str(run): ("lime",), str(other): ("other",)}


def test_other_problems_are_drawn_by_options_split_and_seed(run, tmp_path):
    asked = [run, "--tasks", "arithmetic", "--limit", "12", "--split", "validation", "--seed", "9"]
    result = evaluate(tmp_path, *asked, "--task-options", "operands=3")
    assert list(result.of("arithmetic, right answers")) == ["all", "operands: 3"]
    assert "validation" in result.parts[0].how and result.options.seed == 9


def test_what_is_refused_before_a_model_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.setattr("layermem_bench.evals.solving.solve", None)
    with pytest.raises(SystemExit, match="lime was trained on arithmetic, and is asked prosqa"):
        evaluate(tmp_path, run, "--tasks", "prosqa")
    with pytest.raises(SystemExit, match="is no run folder; only models of runs on arithmetic"):
        evaluate(tmp_path, run / "final", "--tasks", "arithmetic")
    assert not (tmp_path / "eval.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "61"], "--limit 61 is more than the 60 problems that the model was trained"),
        (["--seed", "4"], "--split train asks for the problems that the model was trained on"),
        (["--task-options", "operands=2"], "which --seed and --task-options would draw anew"),
    ],
)
def test_the_training_set_has_no_other_problems(run, options, message, tmp_path, monkeypatch):
    asked = [run, "--tasks", "arithmetic", "--split", "train"]
    with monkeypatch.context() as patch:
        patch.setattr("layermem_bench.evals.solving.solve", None)
        with pytest.raises(SystemExit, match=message):
            evaluate(tmp_path, *asked, *options)
    scores = evaluate(tmp_path, *asked).of("arithmetic, right answers")["all"].scores
    assert scores["lime"].count == TASK.examples


def test_problems_longer_than_the_positions_of_a_model_are_refused(run, tmp_path):
    short = shutil.copytree(run, tmp_path / "short")
    config = json.loads((short / "final" / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = 4
    (short / "final" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"tokens with its solution, and short reads 4 \(max_pos"):
        evaluate(tmp_path / "out", short, "--tasks", "arithmetic", "--limit", "5")


def test_models_of_different_problems_are_not_compared(run, tmp_path):
    config = replace(a_run(tmp_path, max_steps=2), task=replace(TASK, seed=7))
    other = train(config, tmp_path / "other").path
    asked = [run, other, "--tasks", "arithmetic", "--limit", "5"]
    result = evaluate(tmp_path / "out", *asked)
    assert not any(row.is_comparable for row in result.of("arithmetic, right answers").values())
    assert "the models have different problems" in result.parts[0].how
    same = evaluate(tmp_path / "out", *asked, "--seed", "3")
    assert all(row.is_comparable for row in same.of("arithmetic, right answers").values())
    assert "different problems" not in same.parts[0].how


def test_problems_of_a_file_are_not_drawn_by_other_options():
    task = Task(name="prosqa", options=("test=problems.json",))
    _check_file(task, EvalOptions(split="test", task_options=("test=problems.json",)))
    _check_file(task, EvalOptions(split="validation", seed=3))
    for options, name in (({"seed": 3}, "--seed"), ({"task_options": ("steps=3",)}, "steps")):
        with pytest.raises(ValueError, match=f"are read from problems.json, and {name} would"):
            _check_file(task, EvalOptions(split="test", **options))


def test_kinds_of_tasks_are_parts_of_one_result(run, tmp_path):
    (tmp_path / "text.txt").write_text("w1 w2 w3", encoding="utf-8")
    asked = ["--tasks", "arithmetic", f"ppl={tmp_path / 'text.txt'}", "--context", "8"]
    result = evaluate(tmp_path, run, *asked, "--limit", "5")
    assert [list(part.tables)[0] for part in result.parts] == ["loss", "arithmetic, right answers"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "bits per byte" in page and "every step right" in page


def test_a_kind_that_fails_takes_no_other_with_it(run, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("w1 w2 w3", encoding="utf-8")
    monkeypatch.setattr("layermem_bench.evals.solving.solve", None)
    asked = ["--tasks", "arithmetic", f"ppl={tmp_path / 'text.txt'}", "--context", "8"]
    with pytest.raises(SystemExit):
        evaluate(tmp_path, run, *asked)
    assert [part.title for part in read_result(EvalResult, tmp_path).parts] == ["Loss on documents"]
