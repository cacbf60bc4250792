"""Training with shared matrices: checkpoints, tensor parallelism x FSDP2, compiled, misuse."""

import copy
import importlib.metadata
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import in_forks, join, leave
from shared_models import a_model, descend, in_processes, load, some_ids, whole
from torch import distributed

from layermem_bench.analysis.capture import capture

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not distributed.is_available(), reason="this torch has no distributed package"
    ),
]
ROOT = Path(__file__).parents[2]
# One with heads of its own, one with two routers, one that no heads are shared of, one tied.
IN_A_MESH = ["lime", "lime-separate", "lime-one-head", "lime-tied"]
# A shared router, and one each for keys and values.
COMPILED = ["lime", "lime-separate"]
TRANSFORMERS = tuple(map(int, importlib.metadata.version("transformers").split(".")[:2]))
needs_mesh = pytest.mark.skipif(TRANSFORMERS < (5, 19), reason="transformers has one dimension")


def assert_equal_weights(found, expected, case):
    others = dict(found.named_parameters())
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(
            others[name], parameter, rtol=1e-7, atol=1e-9, msg=f"{case}: {name}"
        )


def in_a_mesh(rank, world, folder):
    """Train by 2 x 2: two halves of each batch, each by two processes; save, and load again."""
    found = {}
    for case in IN_A_MESH:
        half = slice(0, 2) if rank < 2 else slice(2, 4)
        model = load(folder / case, tp_size=2, fsdp_size=2)
        losses = descend(model, range(5), half)
        model.save_pretrained(folder / f"{case}-trained")
        distributed.barrier()
        again = load(folder / f"{case}-trained", tp_size=2, fsdp_size=2)
        with torch.no_grad():
            found[case] = {"losses": losses, "logits": whole(again.eval()(some_ids()).logits)}
    return found


@needs_mesh
def test_a_mesh_of_two_by_two_trains_as_one_process(tmp_path):
    for case in IN_A_MESH:
        a_model(case).save_pretrained(tmp_path / case)
    ranks = in_processes(in_a_mesh, 4, tmp_path)
    for case in IN_A_MESH:
        model = a_model(case)
        expected = descend(model, range(5))
        first, second = ranks[0][case]["losses"], ranks[2][case]["losses"]
        assert ranks[1][case]["losses"] == first
        assert ranks[3][case]["losses"] == second
        means = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        assert means == pytest.approx(expected, rel=1e-9), case
        assert_equal_weights(load(tmp_path / f"{case}-trained"), model, case)
        saved = json.loads((tmp_path / f"{case}-trained" / "config.json").read_text())
        assert "distributed_config" not in saved
        with torch.no_grad():
            logits = model.eval()(some_ids()).logits
        for rank in range(4):
            torch.testing.assert_close(ranks[rank][case]["logits"], logits, rtol=1e-7, atol=1e-9)


def as_torchrun_does(rank, world, folder):
    """Run the script as one process of several, which meet in a file."""
    os.chdir(folder)
    if world > 1:
        join(rank, world, folder)
    runpy.run_path("script.py", run_name="__main__")
    leave(folder)


@needs_mesh
def test_the_script_of_the_page_trains_as_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (saving,) = (block for block in blocks if '"my-lime")' in block and "DTensor" not in block)
    (script,) = (block for block in blocks if "WORLD_SIZE" in block)
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    ids, logits = some_ids(), {}
    exec(saving, {})
    for processes in (1, 2, 4):
        if processes == 2:
            start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
            command = [sys.executable, *start, "script.py"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        else:
            in_forks(as_torchrun_does, (processes, tmp_path), processes)
        with torch.no_grad():
            logits[processes] = load(tmp_path / "my-trained-lime")(ids).logits
    for processes in (2, 4):
        torch.testing.assert_close(logits[processes], logits[1], rtol=0, atol=1e-5)


def compiled(rank, world, folder):
    """Return what compiling as one graph changes, without gradients and with them."""
    changes = {}
    for case in COMPILED:
        model, ids = load(folder / case, world), some_ids()
        whole_graph = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            logits = [whole(call(ids).logits) for call in (model, whole_graph)]
        gradients = []
        for call in (model, whole_graph):
            model.zero_grad()
            call(ids).logits.square().mean().backward()
            gradients.append([whole(parameter.grad).clone() for parameter in model.parameters()])
        pairs = zip(*gradients, strict=True)
        changes[case] = max(float((a - b).abs().max()) for a, b in [logits, *pairs])
    return changes


def test_a_shared_model_compiles_as_one_graph(tmp_path):
    for case in COMPILED:
        a_model(case, num_hidden_layers=2).save_pretrained(tmp_path / case)
    for changes in in_processes(compiled, 2, tmp_path):
        assert max(changes.values()) < 1e-15, changes


def misuse(rank, world, folder):
    """Refuse what a shared model cannot do; return what a copied router and training compute."""
    model = load(folder / "lime", world)
    with pytest.raises(ValueError, match="router of layer 1"):
        model.prune_routers(0.5)
    with pytest.raises(ValueError, match="tp_size=2"):
        next(capture(model, [some_ids()], kinds=("routed",)))
    hidden = next(capture(model, [some_ids()], kinds=("hidden",))).hidden[-1]
    # PEFT copies what it trains whole.
    router = model.model.layers[1].self_attn.memory
    slots = [tuple(torch.ones(2, 1, 1, 3, 8, dtype=torch.float64)) for _ in range(2)]
    other = copy.deepcopy(router)
    with torch.no_grad():
        other.weight.zero_()
        sums = [float(m(None, slots)[0].abs().sum()) for m in (router, other)]
    mixing = load(folder / "lime_hidden", world)
    mixing(some_ids()).logits.square().mean().backward()
    with torch.no_grad(), pytest.raises(NotImplementedError, match="tp_plan"):
        mixing(some_ids())
    gradients = {name: whole(p.grad) for name, p in mixing.named_parameters()}
    return {"hidden": torch.tensor(hidden), "sums": sums, "gradients": gradients}


def test_misuse_is_refused_and_copies_have_weights_of_their_own(tmp_path):
    model, mixing = a_model("lime"), a_model("lime_hidden")
    model.save_pretrained(tmp_path / "lime")
    mixing.save_pretrained(tmp_path / "lime_hidden")
    mixing(some_ids()).logits.square().mean().backward()
    hidden = torch.tensor(next(capture(model, [some_ids()], kinds=("hidden",))).hidden[-1])
    for found in in_processes(misuse, 2, tmp_path):
        for name, parameter in mixing.named_parameters():
            torch.testing.assert_close(found["gradients"][name], parameter.grad, msg=name)
        torch.testing.assert_close(found["hidden"], hidden)
        assert found["sums"][0] > 0 == found["sums"][1]
