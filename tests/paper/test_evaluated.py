"""Scores of ended runs on the tasks of the paper's tables, and what is refused before training."""

import importlib.util
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from eval_fixtures import docs
from small_run import a_run

from layermem_bench.evals.benchmarks import RIGHT
from layermem_bench.evals.task_catalog import TASKS
from layermem_bench.paper import evaluated, get_artefact
from layermem_bench.paper.artefact import Observing
from layermem_bench.paper.trained import grouped_queries
from layermem_bench.results.eval import EvalResult, Row
from layermem_bench.results.files import read_result
from layermem_bench.study.records import read_record
from layermem_bench.train.run import train

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval (the extra eval) is not installed"
)


def write_records(folder):
    folder.mkdir()
    for name in ("qnli", "copa"):
        lines = "".join(json.dumps(item) + "\n" for item in docs(name)["validation"])
        (folder / f"{name}_validation.jsonl").write_text(lines, encoding="utf-8")
    return str(folder)


def test_every_column_has_a_task():
    columns = {name: get_artefact(name).tasks for name in ("table1", "table4", "table5", "table6")}
    assert {len(tasks) for tasks in columns.values()} == {8, 5, 4, 7}
    for tasks in columns.values():
        assert {evaluated.find_task(evaluated.NAMES[task]).name for task in tasks} <= {*TASKS}


def test_a_table_can_be_had_without_some_of_its_tasks():
    """Averages are those of the others then, the paper's too."""
    whole = get_artefact("table1")
    part = evaluated.leave_out(whole, ["MultiRC", "wic", "wic"])
    assert part.tasks == ("QNLI", "ARC-E", "ARC-C", "KV", "Induction", "LD-3")
    average = "average without MultiRC, WiC"
    assert {claim.quantity for claim in part.claims("tiny")} == {average}
    (ours,) = [n for n in part.numbers if (n.quantity, n.arm) == (average, "lime")]
    six = (51.43, 71.15, 39.30, 55.64, 55.36, 34.47)
    assert ours.value == pytest.approx(sum(six) / 600, abs=1e-6)
    assert ours.where == "Table 1, the mean of these"
    assert {number.quantity for number in part.numbers} == {*part.tasks, average}
    for all_of_it in (whole, get_artefact("fig1")):
        assert evaluated.leave_out(all_of_it, []) is all_of_it
    # The mean of all columns is the one that is printed.
    (printed,) = evaluated._averages(
        [n for n in whole.numbers if n.quantity in whole.tasks and n.arm == "lime"], "x"
    )
    assert printed.value == pytest.approx(0.5174, abs=5e-5)


@needs_lm_eval
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_cannot_be_asked_is_said_before_anything_is_trained(dry_run):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        evaluated.check_artefact(
            "table4", get_artefact("table4"), "tiny", ["nowhere"], dry_run=dry_run
        )


def test_a_guess_is_the_most_frequent_answer(monkeypatch, tmp_path):
    """A model that says "yes" to everything is above 1 / choices, and knows nothing."""

    def row(chance, most_frequent):
        return Row(table="", name="", scores={}, chance=chance, most_frequent=most_frequent)

    scored = {"run-0": {"QNLI": 0.55, "COPA": 0.6}, "run-1": {"QNLI": 0.55, "COPA": 0.62}}
    of_tasks = {"QNLI": row(0.5, 0.55), "COPA": row(0.5, 0.48)}
    monkeypatch.setattr(evaluated, "_score", lambda *_: (scored, of_tasks))
    records = {seed: SimpleNamespace(folder=f"run-{seed}") for seed in (0, 1)}
    trained = Observing(
        scale="tiny", seeds=(0, 1), records={"study": {"lime": records}}, out=tmp_path
    )
    qnli, copa, average = evaluated.observe_tasks(("QNLI", "COPA"))(trained)
    assert (qnli.chance, copa.chance) == (0.55, 0.5)
    assert average.chance == pytest.approx(0.525) and average.by_seed[0] == pytest.approx(0.575)


@pytest.mark.slow
@needs_lm_eval
def test_scores_are_those_of_eval_by_arm_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    runs = {}
    for variant in ("lime", "plain"):
        for seed in (0, 1):
            run = replace(a_run(tmp_path, max_steps=2), variant=variant, seed=seed)
            folder = train(run, tmp_path / f"{variant}-{seed}")
            record = read_record(folder.path.name, run, folder)
            runs.setdefault(variant, {})[seed] = record
    records = write_records(tmp_path / "records")
    trained = Observing(
        scale="tiny",
        seeds=(0, 1),
        records={"study": runs},
        out=tmp_path / "out",
        task_records=(records,),
    )
    part = evaluated.leave_out(get_artefact("table4"), ["MultiRC", "WiC", "WNLI"])
    observed = {(row.quantity, row.arm): row for row in part.observe(trained)}
    average = "average without MultiRC, WiC, WNLI"
    result = read_result(EvalResult, tmp_path / "out" / "eval")
    block = grouped_queries("tiny", ("plain",)).base.data.block_size
    asked = result.options
    assert (asked.shots, asked.seeds, asked.truncate, asked.max_length) == (3, 1, True, 2 * block)
    rows = [result.of(RIGHT)[task] for task in ("qnli", "copa")]
    for arm in ("lime", "plain"):
        for seed in (0, 1):
            qnli, copa = (row.scores[f"{arm}-{seed}"].value for row in rows)
            assert observed["QNLI", arm].by_seed[seed] == qnli
            assert observed["COPA", arm].by_seed[seed] == copa
            assert observed[average, arm].by_seed[seed] == pytest.approx((qnli + copa) / 2)
    guesses = [max(row.chance, row.most_frequent) for row in rows]
    assert observed["QNLI", "lime"].chance == guesses[0] >= 0.5
    assert observed[average, "lime"].chance == pytest.approx(sum(guesses) / 2)
