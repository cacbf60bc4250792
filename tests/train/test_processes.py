"""Two processes, copied and sharded: how they are set up, what they send, what they share."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import UNEVEN, a_run, curve

from layermem.runs import RunFolder
from layermem.train.run import train
from layermem.train.trainer import arguments

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent


def probe(name, folder):
    """Have two processes run a function of processes.py; return what it saw."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*launch, str(TESTS / "train" / "processes.py"), name, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{name}.json").read_text())


def test_a_copied_run_looks_for_no_unused_parameters_and_has_its_timeout(tmp_path):
    run = a_run(tmp_path, max_steps=2, eval_every=2, save_every=0)
    expected = curve(train(run, tmp_path / "alone"))
    seen = probe("copied", tmp_path)
    assert seen["kind"] == "DistributedDataParallel"
    assert not seen["looks for unused parameters"]
    assert seen["timeout"] == 77
    for ours, theirs in zip(seen["curve"], expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)


def test_a_timeout_must_be_positive(tmp_path):
    assert arguments(a_run(tmp_path), RunFolder(tmp_path), validates=True).ddp_timeout == 1800
    with pytest.raises(ValueError, match="compute.ddp_timeout must be at least 1, got 0"):
        a_run(tmp_path, compute={"ddp_timeout": 0})


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """What two sharded processes saw, and the curve of one process in each precision."""
    folder = tmp_path_factory.mktemp("sharded")
    # Prepares the text, too.
    alone = {
        precision: train(a_run(folder, **UNEVEN, compute=compute), folder / precision)
        for precision, compute in (
            ("float32", {"precision": "float32", "micro_batch": 1}),
            ("bfloat16", {"precision": "bfloat16", "micro_batch": 1}),
        )
    }
    return probe("sharded", folder), {name: curve(run) for name, run in alone.items()}


@pytest.fixture(scope="module")
def footprint():
    spec = importlib.util.spec_from_file_location("footprint", ROOT / "benchmarks/footprint.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["footprint"] = module
    spec.loader.exec_module(module)
    return module


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
def test_what_a_step_sends(case, gathers, sums, sharded, footprint, tmp_path):
    """A process has four sequences in a step: in one micro-batch or in four."""
    sent = sharded[0][case]["sent"]
    assert (sent["gathers"], sent["sums"]) == (gathers, sums)
    precision, kept, micro = case.split()
    # 257 words are split in two as 258.
    sizes = a_run(tmp_path).model.sizes()
    parts, _ = footprint.parts_of({**sizes, "vocab_size": 258})
    how = {"micro_batches": 4 // int(micro), "kept": kept}
    narrow = precision == "bfloat16"
    assert sent["gathered"] == footprint.gathered(parts, **how, narrow=narrow)
    assert sent["summed"] == footprint.scattered(parts, **how)


@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # In bfloat16 gradients of a slot are added in another order; its rounding is 4e-3.
    [("float32", 1e-6), ("bfloat16", 5e-4)],
)
def test_what_is_kept_whole_does_not_change_the_curve(precision, tolerance, sharded):
    seen, alone = sharded
    curves = [seen[case]["curve"] for case in seen if case.startswith(precision)]
    assert len(curves) >= 2
    for rows in curves:
        for ours, theirs in zip(rows, alone[precision], strict=True):
            shared = {name: theirs[name] for name in ours}
            assert ours == pytest.approx(shared, rel=tolerance, abs=1e-6)


def test_in_bfloat16_norms_and_routers_stay_in_float32(sharded):
    """The forward computes what autocast does without sharding; cast, it would be off by 1e-4."""
    seen, alone = sharded
    for case in ("bfloat16 nothing 1", "bfloat16 all 1"):
        losses = [row["loss"] for row in seen[case]["curve"] if "loss" in row]
        expected = [row["loss"] for row in alone["bfloat16"] if "loss" in row]
        assert losses[:2] == pytest.approx(expected[:2], rel=1e-5)


def test_only_a_sharded_run_can_keep_something_whole(tmp_path):
    with pytest.raises(ValueError, match=r"compute.keep_whole='all' .* add it, or leave"):
        a_run(tmp_path, compute={"keep_whole": "all"})
