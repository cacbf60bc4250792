"""Two processes, copied and sharded: how they are set up, what they send, what they share."""

import json
import re
from pathlib import Path

import pytest
import torch
from forked import launch_script
from small_run import UNEVEN, a_run, curve, rewound, weights

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.train.run import train
from layermem_bench.train.setup import training_arguments


@pytest.fixture
def alone(two_processes):
    """The curve of one process, in each precision."""
    return json.loads((two_processes / "alone.json").read_text(encoding="utf-8"))


@pytest.fixture
def seen(two_processes):
    """What two processes saw."""
    return json.loads((two_processes / "probes.json").read_text(encoding="utf-8"))


# Over fewer steps test_resume.py holds the same, from each way to each other.
@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_draw_the_curve_of_one(way, two_processes):
    alone, folder = (RunFolder(two_processes / "long" / name) for name in ("one", way))
    for ours, theirs in zip(curve(folder), curve(alone), strict=True):
        for name, value in theirs.items():
            if name in ours or way == "ddp":
                assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    for name, tensor in weights(alone).items():
        torch.testing.assert_close(weights(folder)[name], tensor, rtol=1e-3, atol=1e-5)
    parts = list((folder.complete_checkpoints()[-1] / "sharded").glob("*.distcp"))
    assert len(parts) == (2 if way == "fsdp" else 0), "every process writes its own part"


@pytest.mark.slow
def test_a_copied_run_looks_for_no_unused_parameters_and_has_its_timeout(seen, alone):
    copied = seen["copied"]
    assert copied["kind"] == "DistributedDataParallel"
    assert not copied["looks for unused parameters"]
    assert copied["timeout"] == 77
    for ours, theirs in zip(copied["curve"], alone["float32"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_two_processes_write_one_model_card(two_processes):
    folder = two_processes
    runs = [folder / "float32", folder / "copied", *(folder / "sharded").iterdir()]
    cards = [(run / "final" / "README.md").read_text(encoding="utf-8") for run in runs]
    # A sharded model is counted whole.
    assert len({re.search(r"[\d,]+ parameters", card)[0] for card in cards}) == 1
    assert len({re.search(r"\| tokens \| .+", card)[0] for card in cards}) == 1


def test_a_timeout_must_be_positive(tmp_path):
    args = training_arguments(a_run(tmp_path), RunFolder(tmp_path))
    assert args.ddp_timeout == 1800
    with pytest.raises(ValueError, match="compute.ddp_timeout must be at least 1, got 0"):
        a_run(tmp_path, compute={"ddp_timeout": 0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "gathers", "sums"),
    [
        # Three layers twice, and the root.
        ("float32 nothing 4", 7, 4),
        ("float32 nothing 1", 4 * 7, 4 * 4),
        ("float32 gradients 1", 4 * 7, 4),
        ("float32 all 1", 4, 4),
        # Norms and routers are a unit of their own.
        ("bfloat16 nothing 1", 4 * 8, 4 * 5),
        ("bfloat16 all 1", 5, 5),
    ],
)
def test_what_a_step_sends(case, gathers, sums, seen):
    """A process has four sequences in a step: in one micro-batch or in four."""
    sent = seen["sharded"][case]["sent"]
    assert (sent["gathers"], sent["sums"]) == (gathers, sums)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # In bfloat16 gradients of a slot are added in another order; its rounding is 4e-3.
    [("float32", 1e-6), ("bfloat16", 5e-4)],
)
def test_what_is_kept_whole_does_not_change_the_curve(precision, tolerance, seen, alone):
    sharded = seen["sharded"]
    curves = [sharded[case]["curve"] for case in sharded if case.startswith(precision)]
    assert len(curves) >= 2
    for rows in curves:
        for ours, theirs in zip(rows, alone[precision], strict=True):
            shared = {name: theirs[name] for name in ours}
            assert ours == pytest.approx(shared, rel=tolerance, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["bfloat16 nothing 1", "bfloat16 all 1"])
def test_in_bfloat16_only_linear_layers_have_bfloat16(case, seen):
    """As under autocast without sharding, which leaves norms and routers in float32."""
    assert seen["sharded"][case]["weights"] == {
        "Embedding": ["float32"],
        "Linear": ["bfloat16", "float32"],  # The head is gathered with the embeddings.
        "FSDPRMSNorm": ["float32"],
        "FSDPLimeRouter": ["float32"],
    }


def test_only_a_sharded_run_can_keep_something_whole(tmp_path):
    with pytest.raises(ValueError, match=r"compute.keep_whole='all' .* add it, or leave"):
        a_run(tmp_path, compute={"keep_whole": "all"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["copied", "sharded"])
def test_processes_share_the_validation_problems(kind, seen):
    """Five for two, with the answers that each would have for all; the test each solves whole."""
    solved = seen["solving"][kind]
    # Twice shared (three for the first process) and whole (five), and the test's two.
    assert solved["done"] == [3, 5, 3, 5, 2]
    assert solved["shared"] == solved["whole"]
    assert [len(rows) for rows in solved["shared"]] == [5, 5]


@pytest.mark.slow
def test_answers_that_end_early_are_shared_too(seen):
    answers = seen["generating"]
    assert len({len(row) for row in answers["alone"]}) > 2
    assert answers["copied"] == answers["sharded"] == answers["alone"]
    assert answers["none"] == []


@pytest.mark.slow
def test_two_copies_over_two_processes_each_draw_the_curve_of_one(tmp_path):
    run = a_run(tmp_path, **UNEVEN, keep=9)
    alone = train(run, tmp_path / "alone")
    launch_script(Path(__file__).parent / "four_processes.py", tmp_path, 4)
    for name in ("nothing", "all", "resumed"):
        folder = RunFolder(tmp_path / name)
        for ours, theirs in zip(curve(folder), curve(alone), strict=True):
            for key in ours:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), (name, key)
        for key, tensor in weights(alone).items():
            torch.testing.assert_close(weights(folder)[key], tensor, rtol=1e-3, atol=1e-5)
    # One process goes on from what four wrote.
    resumed = train(run, rewound(tmp_path / "nothing", tmp_path / "one", 2).path, resume=True)
    assert curve(resumed)[-1]["val_loss"] == pytest.approx(curve(alone)[-1]["val_loss"], rel=1e-5)


def test_copies_that_do_not_divide_the_processes_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="compute.replicas=2 is for sharded runs"):
        a_run(tmp_path, compute={"replicas": 2})
    run = a_run(tmp_path, compute={"shard": True, "replicas": 2})
    for processes in (3, 2):
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        with pytest.raises(ValueError, match=f"replicas=2 does not divide the {processes}"):
            train(run, tmp_path / "out")


@pytest.mark.slow
def test_a_sharded_run_of_many_layers_is_compiled_in_its_first_step_and_whole(tmp_path):
    """Layers are one code, each with another number of slots; dynamo keeps eight versions."""
    launch_script(Path(__file__).parent / "compiled_shards.py", tmp_path, 2)
    seen = json.loads((tmp_path / "seen.json").read_text(encoding="utf-8"))
    assert seen[0]["graphs"] >= 10
    # After the first step nothing is compiled anew, and no graph breaks that did not.
    assert seen[1] == seen[2]
    run = a_run(tmp_path, max_steps=3, eval_every=3, model={"num_hidden_layers": 10})
    alone, compiled = curve(train(run, tmp_path / "alone")), curve(RunFolder(tmp_path / "compiled"))
    for ours, theirs in zip(compiled, alone, strict=True):
        for key in ours:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4), key
