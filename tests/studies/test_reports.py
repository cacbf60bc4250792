"""`layermem report`: runs are put by their labels on boards and into arms; what is refused."""

import csv
import json
from dataclasses import replace

import pyarrow.parquet
import pytest
from recorded import SIZES, record

from layermem_bench.config.run import HOST, Data, Host, Labels, Model, Optim, Run
from layermem_bench.run.folder import RunFolder, recorded_run
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.gathering import arms_of_same_seeds, gather_runs, labels_of, write_table
from layermem_bench.studies.result import COLUMNS, EVERY_STEP_RIGHT, LOSS, RIGHT_ANSWERS


def arms_of(result):
    """Return the names of the runs of each arm of the first board, in its order."""
    names = {arm.name: [] for arm in result.boards[0].conditions[0].arms}
    for run in result.runs:
        names[run.arm].append(run.name)
    return names


def test_the_report_of_a_study_has_its_tables(tmp_path, made_up, study):
    asked, out = study(seeds=2), tmp_path / "runs"
    result, _ = carry_out(asked, out, launcher=made_up)
    report = gather_runs([out / "board"])
    (board,), (of_study,) = report.boards, result.boards
    assert [each.name for each in board.conditions] == ["tokens", "time", "parameters"]
    for condition in asked.conditions:
        assert report.values("board", condition, LOSS) == result.values("board", condition, LOSS)
    assert {*map(repr, board.costs)} == {*map(repr, of_study.costs)}
    # Runs that tried rates are in none.
    counted = [run for run in result.runs if run.conditions]
    assert {run.run_id for run in report.runs} == {run.run_id for run in counted}


def test_runs_without_labels_are_named_by_their_variants(tmp_path):
    runs = tmp_path / "runs"
    options = replace(SIZES, options=("router_init=identity",))
    for seed in (1, 0):
        record(runs / f"a-s{seed}", seed=seed, model=options)
        record(runs / f"plain-s{seed}", variant="plain", seed=seed)
    record(runs / "recipe", model=options, labels=Labels(arm="recipe"))
    arms = {
        "plain": ["plain-s0", "plain-s1"],
        "lime:router_init=identity": ["a-s0", "a-s1"],
        "recipe": ["recipe"],
    }
    # A run named twice is one run.
    found = gather_runs([runs, runs / "recipe"], tmp_path / "out")
    assert arms_of(found) == arms and list(arms_of(found)) == list(arms)
    assert (found.boards[0].name, found.boards[0].metric) == ("made-up (stdlib)", LOSS)
    # In the order asked for, the first is what the others are compared with.
    assert list(arms_of(gather_runs([runs / "a-s0", runs / "plain-s0"])))[1] == "plain"
    asked = gather_runs([runs], against="recipe")
    assert list(arms_of(asked))[0] == asked.boards[0].costs[0].arm == "recipe"
    saved = json.loads((tmp_path / "out" / "study.json").read_text())["runs"]
    assert {run["name"] for run in saved} == {name for names in arms.values() for name in names}


def test_models_of_transformers_are_named_by_their_ways():
    for way, fields in {
        "plain": {"memory": "none", "train": "all"},
        "lora": {"memory": "none", "train": "lora"},
        "routers": {"train": "routers"},
        "apart": {"train": "routers", "shares_kv": False},
        "all": {"train": "all"},
    }.items():
        host = Host(model="tokenizer", **fields)
        assert labels_of(Run(variant=HOST, model=Model(), host=host)).arm == way


START = replace(SIZES, pretrained="base/final")


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({}, {"optim": Optim(lr=0.5)}, r"both seed 0 of lime .*--labels.arm"),
        ({"about": {"data": "first"}}, {"seed": 1, "about": {"data": "second"}}, "first, second"),
        (
            {"about": {"precision": "float32"}},
            {"seed": 1, "about": {"precision": "bfloat16"}},
            "float32, bfloat16",
        ),
        ({"right": 0.5}, {"right": 0.5, "seed": 4, "count": 10}, "20 problems, 10 problems"),
        (
            {"model": START, "about": {"weights": "w0"}},
            {"seed": 1, "model": START, "about": {"weights": "w1"}},
            "weights of base/final",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(one, other, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        gather_runs([record(tmp_path / "one", **one), record(tmp_path / "other", **other)])
    # A run that has not recorded something agrees.
    older = record(tmp_path / "older", **{**one, "seed": 3, "about": {}})
    assert len(gather_runs([tmp_path / "one", older]).runs) == 2


def test_folders_without_runs_and_unknown_arms_are_refused(tmp_path):
    for nothing in (tmp_path / "nowhere", record(tmp_path / "trial", labels=Labels(board="b"))):
        with pytest.raises(FileNotFoundError, match=nothing.name):
            gather_runs([nothing])
    with pytest.raises(ValueError, match="'lame'; there are lime"):
        gather_runs([record(tmp_path / "one")], against="lame")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("result.json", '{"accuracy": 0.5'),
        ("metrics.jsonl", "12\n"),
        # The last validation lost: the one before it would be a plausible number.
        ("metrics.jsonl", '{"step": 30, "tokens": 3000, "val_loss": 1.5}\n'),
        ("config.yaml", "variant: lime\nnew_field: 1\n"),
        ("config.yaml", "variant: [lime\n"),
        ("final/config.json", "{"),
    ],
)
def test_a_damaged_run_is_named(file, text, tmp_path):
    one, other = record(tmp_path / "one", seed=1, right=0.5), record(tmp_path / "two", right=0.5)
    (other / file).write_text(text)
    with pytest.raises(ValueError, match="two"):
        gather_runs([other, one])


def test_what_a_run_recorded_and_the_long_table_of_it(tmp_path):
    record(tmp_path / "lime-s0", final=0.25, right=0.75)
    record(tmp_path / "lost", seed=1, rows=2, max_steps=40, diverged=25, right=0.5)
    RunFolder(record(tmp_path / "new", seed=2, ended=False, right=0.5)).metrics.unlink()
    result = gather_runs([tmp_path])
    one, other, _ = result.runs
    assert one.state == "ended" and one.steps == one.max_steps == 40
    assert one.about["command"] == "layermem train made-up --seed 0"
    assert one.metrics == {LOSS: 0.25, RIGHT_ANSWERS: 0.75, EVERY_STEP_RIGHT: 0.375}
    assert result.metrics[RIGHT_ANSWERS].is_share and result.boards[0].metric == RIGHT_ANSWERS
    assert one.tokens_per_second == 52.5
    assert [row.flops for row in one.validations] == [7000, 14000, 21000, 28000]
    assert (other.state, other.metrics) == ("diverged", {}) and "step 25" in other.note
    file = tmp_path / "t.csv"
    assert write_table([result], file) == (3 + 2 * 4) + 2 * 2 + 1
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS and {row["arm"] for row in rows} == {"lime"}
    assert [(row["metric"], row["value"]) for row in rows[:2]] == [
        (LOSS, "0.25"),
        (RIGHT_ANSWERS, "0.75"),
    ]
    assert (rows[3]["metric"], rows[3]["step"]) == ("val_loss", "10")
    assert (rows[-1]["state"], rows[-1]["value"]) == ("not begun", "")
    write_table([result], tmp_path / "t.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows == len(rows)


def test_costs_are_those_of_the_model_that_was_saved(tmp_path):
    plain, lime = record(tmp_path / "plain", variant="plain"), record(tmp_path / "lime")
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "vocab_size": 70, "router": "full"}
    for path in (plain, lime):
        (path / "final" / "config.json").write_text(json.dumps(sizes))
    costs = gather_runs([plain, lime]).boards[0].costs
    assert [(cost.arm, cost.layers, cost.width) for cost in costs] == [
        ("plain", 3, 32),
        ("lime", 3, 32),
    ]
    # A model that is not here, and an option that its variant has no more.
    for name, model in (
        ("away", replace(SIZES, pretrained="not/here")),
        ("former", replace(SIZES, options=("storage=half",))),
    ):
        assert gather_runs([record(tmp_path / name, model=model)]).boards[0].costs == ()


def test_runs_of_the_same_seeds_are_arms(tmp_path, caplog):
    def made(variant, seed, **changes):
        path = record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, **changes)
        return {path.name: (recorded_run(RunFolder(path)), RunFolder(path))}

    runs = made("lime", 1) | made("plain", 1) | made("plain", 0) | made("lime", 0)
    arms = {"lime": ("lime0", "lime1"), "plain": ("plain0", "plain1")}
    assert arms_of_same_seeds(runs) == arms and not caplog.text
    assert arms_of_same_seeds(runs | made("lime", 2)) == {} and "different seeds" in caplog.text
    other = made("mudd", 1, data=Data(source="a.jsonl"))
    assert arms_of_same_seeds(other | made("value_residual", 1)) == {}
