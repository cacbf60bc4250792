"""What artefacts read off ended runs: routers at a start, analyses of the weights there are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_run import a_run

import layermem
from layermem_bench.analysis import analyze
from layermem_bench.paper import inspecting
from layermem_bench.paper.artefact import Observing
from layermem_bench.results.analysis import Analysis, AnalysisOptions, Layout
from layermem_bench.results.files import read_result
from layermem_bench.results.study import RunRecord, Validation
from layermem_bench.study.records import read_record
from layermem_bench.train.run import train


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Runs of LIMe and the plain decoder at learning rate 0: their ends are their starts."""
    folder = tmp_path_factory.mktemp("runs")
    records = {}
    for arm, router_lr in (("lime", 0.0), ("plain", None)):
        still = {"lr": 0.0, "router_lr": router_lr, "min_lr": 0.0, "weight_decay": 0.0}
        run = a_run(
            folder, variant=arm, seed=3, max_steps=1, eval_every=1, save_every=0, optim=still
        )
        records[arm] = {3: read_record(arm, run, train(run, folder / arm))}
    return Observing(scale="tiny", seeds=(3,), records={"study": records}, out=folder / "result")


def test_routers_at_their_start_are_those_of_the_run(untrained):
    maps = inspecting.heatmaps(untrained, "study", by_head=True)
    assert list(maps) == ["lime", "lime at its start"]
    assert np.array_equal(maps["lime"][3], maps["lime at its start"][3])
    ours, start = inspecting.shares_read(maps, "own layer 2", lambda m: float(m[2, :, 2].mean()))
    assert (ours.arm, start.arm) == tuple(maps) and 0 < ours.by_seed[3] == start.by_seed[3] < 1


def test_weights_are_averaged_over_heads_and_then_normalised_as_in_section_5_4(untrained):
    ours = inspecting.heatmaps(untrained, "study", by_head=False)["lime"][3]
    by_head = inspecting.heatmaps(untrained, "study", by_head=True)["lime"][3]
    folder = Path(untrained.records["study"]["lime"][3].folder, "final")
    model = layermem.LimeForCausalLM.from_pretrained(folder)
    heads = model.config.num_key_value_heads
    for i, layer in enumerate(model.model.layers[1:], 1):
        sizes = layer.self_attn.memory.weight.detach().double().abs().reshape(heads, i + 1, heads)
        of_layers = sizes.mean((0, 2))
        expected = of_layers / of_layers.sum()
        np.testing.assert_allclose(ours[i, : i + 1], expected, rtol=1e-12)
        # The other order, a mean of each head's shares, is another number.
        assert not np.allclose(by_head.mean(1)[i, : i + 1], expected, rtol=1e-3)


def test_other_weights_of_one_run_are_analyzed_anew(untrained, tmp_path, monkeypatch):
    trained = replace(untrained, out=tmp_path / "result")
    options = AnalysisOptions(text=None, words=("w1", "w2"), each=5, sequences=2, length=8)
    begun = []

    def count(*args):
        begun.append(args)
        return analyzed(*args)

    analyzed = analyze.analyze
    monkeypatch.setattr(analyze, "analyze", count)
    options = replace(options, text=str(next(untrained.out.parent.glob("*.jsonl"))))
    first = inspecting.analyses(trained, "study", options)
    assert inspecting.analyses(trained, "study", options) == first and len(begun) == 1
    # Trained again under one run id, as after a change of the code: here with other weights.
    weights = Path(trained.records["study"]["lime"][3].folder, "final", "model.safetensors")
    from safetensors.torch import load_file, save_file

    save_file({k: v + 0.1 for k, v in load_file(weights).items()}, weights, {"format": "pt"})
    second = inspecting.analyses(trained, "study", options)
    assert len(begun) == 2 and second["lime"][3].entropy != first["lime"][3].entropy
    assert second["plain"] == first["plain"]
    # Nor is what our code finds in the same weights after a change.
    monkeypatch.setattr("layermem_bench.config.hashing.sources_digest", lambda: "changed")
    assert inspecting.analyses(trained, "study", options) == second and len(begun) == 3
    kept = {path.parent.name[-12:] for path in tmp_path.glob("analyses/*/analysis.json")}
    assert len(kept) == 3
    assert all(read_result(Analysis, path) for path in tmp_path.glob("analyses/*"))


def test_tokens_saved_are_at_the_higher_last_loss():
    def a_run_of(losses):
        curve = (
            Validation(step=10 * i, val_loss=loss, tokens=100.0 * i, flops=1000.0 * i)
            for i, loss in enumerate(losses, 1)
        )
        return RunRecord(
            name="x", run_id="x", folder="runs/x", state="ended", validations=tuple(curve)
        )

    def share(ours, theirs):
        records = {"s": {"lime": {0: a_run_of(ours)}, "plain": {0: a_run_of(theirs)}}}
        trained = Observing(scale="tiny", seeds=(0,), records=records, out=Path())
        observed, zero = inspecting.saved(trained, "s", "lime", "tokens", "q")
        assert zero.by_seed == {0: 0.0}
        return observed.by_seed[0]

    # Half way between 3 and 1, after 150 of 400 tokens.
    assert share((3.0, 1.0, 0.5, 0.4), (4.0, 3.5, 3.0, 2.0)) == pytest.approx(1 - 150 / 400)
    assert share((4.0, 3.5, 3.0, 2.0), (3.0, 1.0, 0.5, 0.4)) == pytest.approx(1 - 400 / 150)
    assert share((3.0, 2.0), (3.0, 2.0)) == 0
    assert share((1.0, 1.0), (3.0, 2.0)) == pytest.approx(1 - 100 / 200)
    # How often a run is validated makes it no other run, but its curve another.
    for ours, theirs in (((3.0, 2.0), (3.0, 2.5, 2.0)), ((2.0,), (2.0,))):
        with pytest.raises(ValueError, match="runs/x at [12]"):
            share(ours, theirs)


def test_the_nearest_point_of_a_layout():
    points = ((0.0, 0.0), (0.0, 1.0), (5.0, 5.0), (5.0, 6.0))
    layers = {0: points[::-1], 1: points}
    assert inspecting.same_as_nearest(Layout(labels=(0, 0, 1, 1), layers=layers)) == 1
    assert inspecting.same_as_nearest(Layout(labels=(0, 1, 0, 1), layers=layers)) == 0
    assert inspecting.same_as_nearest(Layout(labels=(0, 0, 1, 2), layers=layers)) == 0.5
