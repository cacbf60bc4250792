"""`compute.tensor`: processes that share heads, beside copies and shards, and what is refused."""

import json
from pathlib import Path

import pytest
from forked import launch_script
from single_runs import heads_run
from small_run import a_run, assert_alike, rewound
from tiny import TINY

import layermem
from layermem_bench.config.micro_batches import sequences_at_once
from layermem_bench.config.run import Compute, Host, Run
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.processes import mesh_shape
from layermem_bench.train.run import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of what one, two and four processes trained."""
    path = tmp_path_factory.mktemp("heads")
    train(heads_run(path), path / "one")
    for processes in (2, 4):
        launch_script(Path(__file__).parent / "shared_heads.py", path, processes)
    return path


def seen(folder, processes, name):
    """Return what each process saw in the first step of a run."""
    files = (folder / f"seen-{processes}-{rank}.json" for rank in range(processes))
    return [json.loads(file.read_text(encoding="utf-8"))[name] for file in files]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sharded"),
    [
        ("two", False),
        ("one-two", False),
        ("copies", True),
        ("shards", True),
        ("two-shards", True),
        ("one-shards", True),
        ("shards-copies", True),
    ],
)
def test_processes_that_share_heads_draw_the_curve_of_one(name, sharded, folder):
    """Losses, gradient norms, validations and the final model, begun there or gone on there."""
    assert_alike(RunFolder(folder / name), RunFolder(folder / "one"), sharded=sharded)


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["two", "copies", "shards"])
def test_one_process_goes_on_from_what_they_wrote(begun, folder, tmp_path):
    path = rewound(folder / begun, tmp_path / "one", 2).path
    resumed = train(heads_run(folder), path, resume=True)
    assert_alike(resumed, RunFolder(folder / "one"), sharded=True)


@pytest.mark.slow
def test_who_holds_and_reads_what(folder):
    """Two heads of width 4 from 16 numbers: 128 weights, of which two processes hold half each."""
    two, copies, shards = (
        seen(folder, 2, "two"),
        seen(folder, 4, "copies"),
        seen(folder, 4, "shards"),
    )
    assert [each["numbers"] for each in (*two, *copies)] == 6 * [64]
    assert [each["numbers"] for each in shards] == 4 * [32]
    assert [each["sizes"] for each in (two[0], copies[0], shards[0])] == [[2], [2, 1, 2], [2, 2]]
    for group in (two, copies[:2], copies[2:], shards[:2], shards[2:]):
        assert group[0]["rows"] == group[1]["rows"]
    assert copies[0]["rows"] != copies[2]["rows"]
    assert shards[0]["rows"] != shards[2]["rows"]
    assert all(each["router"] == [2, 4] for each in (*two, *copies, *shards))
    assert all(each["router is whole"] for each in two)
    assert not two[0]["fused"]
    assert copies[0]["fused"]


@pytest.mark.slow
def test_processes_that_share_heads_solve_the_same_problems(folder):
    """In each process the answers were those of a process that solves all."""
    rows = [RunFolder(folder / f"solving-{processes}").rows()[-1] for processes in (2, 4)]
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("compute", "processes", "shape"),
    [
        ({}, 1, (1, 1, 1)),
        ({}, 4, (4, 1, 1)),
        ({"shard": True}, 4, (1, 4, 1)),
        ({"tensor": 2}, 8, (4, 1, 2)),
        ({"tensor": 2, "shard": True}, 8, (1, 4, 2)),
        ({"tensor": 2, "shard": True, "replicas": 2}, 8, (2, 2, 2)),
    ],
)
def test_every_process_has_one_place_in_the_mesh(compute, processes, shape):
    assert mesh_shape(Compute(**compute), processes) == shape


@pytest.mark.parametrize(
    ("compute", "processes", "message"),
    [
        ({"tensor": 2}, 1, "compute.tensor needs several processes: torchrun"),
        ({"tensor": 3}, 4, "tensor=3 does not divide the 4 processes; take one of 1, 2, 4"),
        ({"tensor": 2, "shard": True}, 2, "the 1 processes that compute.tensor=2 leaves"),
        ({"tensor": 2, "shard": True, "replicas": 3}, 8, "replicas=3 does not divide the 4"),
    ],
)
def test_what_does_not_divide_the_processes_is_refused(compute, processes, message):
    with pytest.raises(ValueError, match=message):
        mesh_shape(Compute(**compute), processes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compute": {"tensor": 4}}, "tensor=4 does not divide num_key_value_heads=2; .* 1, 2,"),
        (
            {"model": {"intermediate_size": 9}},
            "tensor=2 does not divide intermediate_size=9; take one of 1, 3, 9",
        ),
        ({"variant": "value_residual"}, "cannot share the heads of value_residual"),
        ({"variant": "lime_hidden"}, "cannot share the heads of lime_hidden"),
        ({"model": {"options": ("attention_dropout=0.1",)}}, "with attention_dropout=0.1"),
    ],
)
def test_models_whose_heads_cannot_be_shared_are_refused(changes, message, tmp_path, monkeypatch):
    # Before a group is formed: no other process is there.
    monkeypatch.setenv("WORLD_SIZE", "4")
    run = a_run(tmp_path, **{"compute": {"tensor": 2}, **changes})
    with pytest.raises(ValueError, match=message):
        train(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_batch_is_divided_by_the_groups_that_share_heads(tmp_path):
    """Eight sequences a step, three at once in each of two groups."""
    run = a_run(tmp_path, compute={"tensor": 2, "micro_batch": 3})
    with pytest.raises(ValueError, match="batch_size .8. .* number of groups of processes .2."):
        sequences_at_once(run, 2)


def test_a_saved_model_whose_heads_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("layermem_bench.train.setup.mesh_shape", lambda *_: (1, 1, 1))
    sizes = {**TINY, "vocab_size": 258, "num_key_value_heads": 1}
    layermem.build("lime", **sizes).save_pretrained(tmp_path / "saved")
    load_tokenizer("bytes").save_pretrained(tmp_path / "saved")
    run = a_run(tmp_path, compute={"tensor": 2}, model={"pretrained": str(tmp_path / "saved")})
    with pytest.raises(ValueError, match="tensor=2 does not divide num_key_value_heads=1"):
        train(run, tmp_path / "out")


def test_models_of_transformers_are_not_shared():
    with pytest.raises(ValueError, match="compute.tensor=2"):
        Run(variant="host", host=Host(model="m"), compute=Compute(tensor=2))
