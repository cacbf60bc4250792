"""`layermem report`: runs are put by their labels on boards and into arms; what is refused."""

import csv
import json
from dataclasses import replace

import pyarrow.parquet
import pytest
from recorded import SIZES, record

from layermem_bench.config.host import VARIANT
from layermem_bench.config.run import Data, Host, Labels, Model, Optim, Run
from layermem_bench.run.folder import RunFolder
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.labelled_runs import (
    arms_of_same_seeds,
    find_runs,
    gather_runs,
    labels_of,
)
from layermem_bench.studies.long_table import COLUMNS, write_table
from layermem_bench.studies.result import EVERY_STEP_RIGHT, LOSS, RIGHT_ANSWERS


def compared(tmp_path, *runs, **more):
    return gather_runs(runs, tmp_path / "out", command="layermem report", **more)


def arms_of(result, board=0):
    """Return the names of the runs of each arm of a board, in its order."""
    of = result.boards[board]
    runs = result.of(of.name, of.conditions[0].name)
    return {
        arm.name: [run.name for run in runs if run.arm == arm.name] for arm in of.conditions[0].arms
    }


def test_the_report_of_a_study_has_its_tables(tmp_path, made_up, study):
    asked, out = study(seeds=2), tmp_path / "runs"
    result, _ = carry_out(asked, out, launcher=made_up)
    report = compared(tmp_path, out / "board")
    (board,) = report.boards
    assert [each.name for each in board.conditions] == ["tokens", "time", "parameters"]
    for condition in asked.conditions:
        assert report.values("board", condition, LOSS) == result.values("board", condition, LOSS)
    # Runs that tried rates are in none.
    assert {run.seed for run in report.runs} == {0, 1}


def test_runs_without_labels_are_named_by_their_variants(tmp_path):
    runs = tmp_path / "runs"
    options = replace(SIZES, options=("router_init=identity",))
    for seed in (1, 0, 1000):
        record(runs / f"a-s{seed}", seed=seed, model=options)
        record(runs / f"plain-s{seed}", variant="plain", seed=seed)
    record(runs / "recipe", model=options, labels=Labels(arm="recipe"))
    arms = {
        "plain": ["plain-s0", "plain-s1"],
        "lime:router_init=identity": ["a-s0", "a-s1"],
        "recipe": ["recipe"],
    }
    found = compared(tmp_path, runs)
    assert arms_of(found) == arms and list(arms_of(found)) == list(arms)
    assert (found.boards[0].name, found.boards[0].metric) == ("made-up (stdlib)", LOSS)
    # In the order asked for, the first is what the others are compared with.
    assert list(arms_of(compared(tmp_path, runs / "a-s0", runs / "plain-s0")))[1] == "plain"
    asked = compared(tmp_path, runs, against="recipe")
    assert list(arms_of(asked))[0] == "recipe"
    assert asked.boards[0].costs[0].arm == "recipe"
    # A run named twice is one run.
    assert len(compared(tmp_path, runs, runs / "recipe").runs) == 5
    saved = json.loads((tmp_path / "out" / "study.json").read_text())["runs"]
    assert {run["name"] for run in saved} == {name for names in arms.values() for name in names}


@pytest.mark.parametrize(
    ("fields", "way"),
    [
        ({"memory": "none", "train": "all"}, "plain"),
        ({"memory": "none", "train": "lora"}, "lora"),
        ({"train": "routers"}, "routers"),
        ({"train": "routers", "shares_kv": False}, "apart"),
        ({"train": "all"}, "all"),
    ],
)
def test_models_of_transformers_are_named_by_their_ways(fields, way):
    host = Host(model="tokenizer", **fields)
    assert labels_of(Run(variant=VARIANT, model=Model(), host=host)).arm == way


def test_what_is_refused(tmp_path):
    one = record(tmp_path / "one", about={"data": "first", "precision": "float32"})
    for name, changes, named in (
        ("seed", {"optim": Optim(lr=0.5)}, r"both seed 0 of lime .*--labels.arm"),
        ("data", {"seed": 1, "about": {"data": "second"}}, "first, second"),
        ("precision", {"seed": 1, "about": {"precision": "bfloat16"}}, "float32, bfloat16"),
    ):
        with pytest.raises(ValueError, match=named):
            compared(tmp_path, one, record(tmp_path / name, **changes))
    with pytest.raises(ValueError, match="'lame'; there are lime"):
        compared(tmp_path, one, against="lame")
    for nothing in (tmp_path / "nowhere", record(tmp_path / "trial", seed=1000)):
        with pytest.raises(FileNotFoundError, match=nothing.name):
            compared(tmp_path, nothing)
    count = {"right": 0.5, "seed": 4, "count": 10}
    with pytest.raises(ValueError, match="20 problems, 10 problems"):
        compared(tmp_path, record(tmp_path / "many", right=0.5), record(tmp_path / "few", **count))
    start = replace(SIZES, pretrained="base/final")
    runs = [
        record(tmp_path / f"w{i}", seed=i, model=start, about={"weights": f"w{i}"}) for i in (0, 1)
    ]
    with pytest.raises(ValueError, match="weights of base/final"):
        compared(tmp_path, *runs)
    # A run that has not recorded something agrees.
    older = record(tmp_path / "older", seed=3)
    assert arms_of(compared(tmp_path, one, older)) == {"lime": ["one", "older"]}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", '{"accuracy": 0.5'),
        ("metrics.jsonl", "12\n"),
        ("config.yaml", "variant: lime\nnew_field: 1\n"),
        ("config.yaml", "variant: [lime\n"),
        ("final/config.json", "{"),
    ],
)
def test_a_damaged_run_is_named(file, text, tmp_path):
    one, other = record(tmp_path / "one", seed=1, right=0.5), record(tmp_path / "two", right=0.5)
    (other / file).write_text(text)
    with pytest.raises(ValueError, match="two"):
        compared(tmp_path, other, one)


def test_what_a_run_recorded(tmp_path):
    record(tmp_path / "lime-s0", final=0.25, right=0.75)
    lost = record(tmp_path / "lost", seed=1, rows=2, max_steps=40, diverged=25, right=0.5)
    result = compared(tmp_path, tmp_path / "lime-s0", lost)
    one, other = result.runs
    assert one.state == "ended" and one.steps == one.max_steps == 40
    assert one.about["command"] == "layermem train made-up --seed 0"
    assert one.metrics == {LOSS: 0.25, RIGHT_ANSWERS: 0.75, EVERY_STEP_RIGHT: 0.375}
    assert result.metrics[RIGHT_ANSWERS].is_share and result.boards[0].metric == RIGHT_ANSWERS
    assert one.tokens_per_second == 52.5
    assert [row.flops for row in one.validations] == [7000, 14000, 21000, 28000]
    assert (other.state, other.metrics) == ("diverged", {}) and "step 25" in other.note
    # The last validation lost: the one before it would be a plausible number.
    rows = (tmp_path / "lime-s0" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "lime-s0" / "metrics.jsonl").write_text("".join(rows[:-1]))
    with pytest.raises(ValueError, match="lime-s0 .*step 40"):
        compared(tmp_path, tmp_path / "lime-s0")


def test_costs_are_those_of_the_model_that_was_saved(tmp_path):
    plain, lime = record(tmp_path / "plain", variant="plain"), record(tmp_path / "lime")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 70, "router": "full"}
    for path in (plain, lime):
        (path / "final" / "config.json").write_text(json.dumps(sizes))
    costs = compared(tmp_path, plain, lime).boards[0].costs
    assert [(cost.arm, cost.layers, cost.width) for cost in costs] == [
        ("plain", 3, 32),
        ("lime", 3, 32),
    ]
    # A model that is not here, and an option that its variant has no more.
    for name, model in (
        ("away", replace(SIZES, pretrained="not/here")),
        ("former", replace(SIZES, options=("storage=half",))),
    ):
        assert not compared(tmp_path, record(tmp_path / name, model=model)).boards[0].costs


def test_runs_of_the_same_seeds_are_arms(tmp_path, caplog):
    paths = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed)
        for variant, seed in (("lime", 1), ("plain", 1), ("plain", 0), ("lime", 0))
    ]
    runs = find_runs(paths)
    arms = {"lime": ("lime0", "lime1"), "plain": ("plain0", "plain1")}
    assert arms_of_same_seeds(runs) == arms and not caplog.text
    runs |= find_runs([record(tmp_path / "lime2", seed=2)])
    assert arms_of_same_seeds(runs) == {} and "different seeds" in caplog.text
    other = record(tmp_path / "other", seed=1, data=Data(source="a.jsonl"))
    assert arms_of_same_seeds(find_runs([paths[0], other])) == {}


def test_all_values_are_one_long_table(tmp_path):
    record(tmp_path / "a", right=0.5, rows=2)
    record(tmp_path / "b", seed=1, ended=False, right=0.5)
    RunFolder(tmp_path / "b").metrics.unlink()
    result = gather_runs([tmp_path / "a", tmp_path / "b"])
    file = tmp_path / "t.csv"
    assert write_table([result], file) == 3 + 2 * 2 + 1
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS and {row["arm"] for row in rows} == {"lime"}
    assert [(r["metric"], r["value"]) for r in rows[1:3]] == [
        ("right answers", "0.5"),
        ("every step right", "0.25"),
    ]
    assert (rows[3]["metric"], rows[3]["step"], rows[-1]["state"]) == (
        "val_loss",
        "10",
        "not begun",
    )
    write_table([result], tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == len(rows)
