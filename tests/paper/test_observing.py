"""What artefacts read off ended runs: two of LIMe and the plain decoder, trained for two steps."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from launchers import InThisProcess, use
from recorded import an_analysis
from safetensors.torch import load_file, save_file
from small_run import a_run

from layermem_bench import cli
from layermem_bench.analysis import analyze
from layermem_bench.analysis.result import Layout
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.costs.measuring import Measurement
from layermem_bench.evals import evaluating
from layermem_bench.evals.result import Row, Score
from layermem_bench.paper import artefact as artefact_module
from layermem_bench.paper import costs, get_artefact, inside
from layermem_bench.paper import trained as trained_module
from layermem_bench.paper.artefact import full_attention, grouped_queries
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.training import train
from layermem_bench.studies.definition import Observed, Trained
from layermem_bench.studies.records import read_record
from layermem_bench.studies.result import Picture, RunRecord, StudyResult, Validation

SPREAD = "spread over heads of the share read from earlier layers"
BOARDS = [board("tiny") for board in (full_attention, grouped_queries)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs that stand for those of the boards on text."""
    folder, records = tmp_path_factory.mktemp("runs"), {}
    for arm in ("lime", "plain"):
        run = a_run(folder, variant=arm, seed=3, max_steps=2, eval_every=1, save_every=0)
        records[arm] = {3: read_record(arm, run, train(run, folder / arm))}
    by_board = {board.name: records for board in BOARDS}
    return Trained(seeds=(3,), records=by_board, out=folder / "result")


def two_layers(scale):
    board = full_attention(scale)
    model = replace(board.base.model, num_hidden_layers=2)
    return replace(board, base=replace(board.base, model=model))


@pytest.mark.parametrize("name", ["fig1", "fig2", "fig3", "fig5", "fig7", "fig9", "fig10", "fig11"])
def test_a_figure_of_runs_on_text_has_its_numbers_and_pictures(name, trained, monkeypatch):
    monkeypatch.setattr(inside, "_analysis_of", lambda *_: an_analysis(["is", "are"]))
    monkeypatch.setattr(inside, "full_attention", two_layers)
    artefact = get_artefact(name, "tiny")
    seen = list(artefact.observe(trained))
    rows = {(o.quantity, o.arm): o for o in seen if isinstance(o, Observed)}
    for claim in artefact.claims:
        for arm in (claim.arm, claim.against):
            # Only LIMe is lower or higher than something by a share of plain.
            assert set(rows[claim.quantity, arm].by_seed) == {3}, claim
    if name in ("fig2", "fig7"):
        # The last layers of these have 0.7 and 0.5.
        told = next(claim for claim in artefact.claims if "told apart" in claim.quantity)
        assert rows[told.quantity, "lime"].by_seed[3] == (0.7 if name == "fig2" else 0.5)
    pictures = [each for each in seen if isinstance(each, Picture)]
    assert len(pictures) == (2 if name in ("fig3", "fig5", "fig9") else 0)


def test_two_figures_by_their_commands_share_the_runs_that_are_trained(tmp_path, monkeypatch):
    small = replace(a_run(tmp_path), preset="tiny-lm", max_steps=4, eval_every=2, save_every=0)
    monkeypatch.setattr(artefact_module, "get_preset", lambda name: small)
    monkeypatch.setitem(artefact_module._TEXT_RATES, "tiny", ())
    launcher, computed = use(InThisProcess(), monkeypatch), {}
    for name, quantity in (("fig11", "perplexity"), ("fig9", SPREAD)):
        cli.main(["study", f"paper/{name}", "--seeds", "1", "--out", str(tmp_path / "runs")])
        folder = tmp_path / "runs" / "studies" / "paper" / f"{name}-tiny"
        result = read_result(StudyResult, folder / "study.json")
        computed |= {(name, arm): of[0] for arm, of in result.computed(quantity).items()}
        assert "<svg" in (folder / "index.html").read_text() and len(launcher.begun) == 2
    rows = RunFolder(tmp_path / "runs" / "tiny-lm" / "lime-s0").rows()
    last = [row["val_loss"] for row in rows if "val_loss" in row][-1]
    assert computed["fig11", "lime"] == pytest.approx(math.exp(last))
    assert computed["fig9", "lime"] != computed["fig9", "lime at its start"] > 0


def test_routers_at_their_start_are_those_of_the_run(trained, tmp_path):
    still = {"lr": 0.0, "router_lr": 0.0, "min_lr": 0.0, "weight_decay": 0.0}
    run = a_run(tmp_path, variant="lime", seed=3, max_steps=1, save_every=0, optim=still)
    records = {"lime": {3: read_record("r", run, train(run, tmp_path / "run"))}}
    maps = inside.heatmaps(records, by_head=True)
    assert list(maps) == ["lime", "lime at its start"]
    assert np.array_equal(maps["lime"][3], maps["lime at its start"][3])
    trained_maps = inside.heatmaps(trained.of(BOARDS[0]), by_head=True)
    assert not np.array_equal(trained_maps["lime"][3], trained_maps["lime at its start"][3])


def test_analyses_are_used_again_for_the_same_weights_and_code(trained, tmp_path, monkeypatch):
    text, begun, analyzed = tmp_path / "text.jsonl", [], analyze.analyze
    text.write_text("".join(f'{{"text": "{f"{i} w1 w2 " * 16}"}}\n' for i in range(10, 20)))
    monkeypatch.setattr(analyze, "analyze", lambda *args: begun.append(args) or analyzed(*args))
    observing = replace(trained, out=tmp_path / "result")
    data = replace(BOARDS[0].base.data, source=str(text))
    board = replace(BOARDS[0], base=replace(BOARDS[0].base, data=data))

    def analyses():
        return inside.analyses(observing, board, 5, ("w1", "w2"))

    first = analyses()
    assert analyses() == first and len(begun) == 1
    # Trained again under one run id, as after a change of the code: here with other weights.
    weights = Path(trained.of(BOARDS[0])["lime"][3].folder, "final", "model.safetensors")
    kept = load_file(weights)
    save_file({k: v + 0.1 for k, v in kept.items()}, weights, {"format": "pt"})
    second = analyses()
    save_file(kept, weights, {"format": "pt"})
    assert len(begun) == 2 and second["lime"][3].entropy != first["lime"][3].entropy
    assert second["plain"] == first["plain"]
    # Nor is what our code finds in the same weights after a change.
    monkeypatch.setattr("layermem_bench.config.hashing.sources_digest", lambda: "changed")
    assert analyses() == first and len(begun) == 3


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        # Half way between 3 and 1, after 150 of 400 tokens.
        ((3.0, 1.0, 0.5, 0.4), (4.0, 3.5, 3.0, 2.0), 1 - 150 / 400),
        ((4.0, 3.5, 3.0, 2.0), (3.0, 1.0, 0.5, 0.4), 1 - 400 / 150),
        ((3.0, 2.0), (3.0, 2.0), 0),
        ((1.0, 1.0), (3.0, 2.0), 1 - 100 / 200),
    ],
)
def test_tokens_saved_are_at_the_higher_last_loss(ours, theirs, share):
    def a_run_of(losses):
        curve = (
            Validation(step=10 * i, val_loss=loss, tokens=100.0 * i, flops=1000.0 * i)
            for i, loss in enumerate(losses, 1)
        )
        made_up = {"name": "x", "run_id": "x", "folder": "runs/x", "state": "ended"}
        return RunRecord(**made_up, validations=tuple(curve))

    runs = {"lime": {0: a_run_of(ours)}, "plain": {0: a_run_of(theirs)}}
    observed, zero = trained_module.saved(runs, "tokens")
    assert observed.by_seed[0] == pytest.approx(share) and zero.by_seed == {0: 0.0}


def test_the_nearest_point_of_a_layout():
    points = ((0.0, 0.0), (0.0, 1.0), (5.0, 5.0), (5.0, 6.0))
    layers = {0: points[::-1], 1: points}
    for labels, share in (((0, 0, 1, 1), 1), ((0, 1, 0, 1), 0), ((0, 0, 1, 2), 0.5)):
        model = SimpleNamespace(layout=Layout(labels=labels, layers=layers))
        observed, picture = inside.words_in_plane({"lime": {0: model}}, ("a", "b"), "nearest")
        assert observed.by_seed == {0: share} and picture.labels == labels


def test_a_guess_is_the_most_frequent_answer(monkeypatch, tmp_path):
    """A model that says "yes" to everything is above 1 / choices, and knows nothing."""

    def row(chance, most_frequent, *shares):
        scores = {f"run-{i}": Score(value=share) for i, share in enumerate(shares)}
        more = {"chance": chance, "most_frequent": most_frequent}
        return Row(table="", name="", scores=scores, **more)

    rows = {"qnli": row(0.5, 0.55, 0.55, 0.55), "copa": row(0.5, 0.48, 0.6, 0.62)}
    result = SimpleNamespace(models=("run-0", "run-1"), of=lambda table: rows)
    monkeypatch.setattr(evaluating, "evaluate_checkpoints", lambda *_, **__: result)
    records = {seed: SimpleNamespace(folder=f"run-{seed}") for seed in (0, 1)}
    part = get_artefact("table4", "tiny", without=["MultiRC", "WiC", "WNLI"])
    by_board = {part.boards[0].name: {"lime": records}}
    copa, qnli, average = part.observe(Trained(seeds=(0, 1), records=by_board, out=tmp_path))
    assert (qnli.chance, copa.chance) == (0.55, 0.5)
    assert average.chance == pytest.approx(0.525) and average.by_seed[0] == pytest.approx(0.575)


def test_what_a_step_costs_is_relative_to_plains_of_the_same_repeat(monkeypatch, tmp_path):
    busy = itertools.count(1)  # A machine that is busier in each repeat.

    def measure(models, shape, repeats):
        slower, factors = next(busy), {"plain": 1.0, "lime": 1.1, "hyper_connections": 1.5}
        made_up = {"low": 0, "high": 0, "peak": 10**6}
        steps = {arm: Measurement(seconds=slower * f, **made_up) for arm, f in factors.items()}
        # What the system does not say.
        return {**steps, "lime": replace(steps["lime"], peak=None)}

    monkeypatch.setattr(costs, "measure", measure)
    made_up = Trained(seeds=(0, 1), records={}, out=tmp_path)
    observed = {(o.quantity, o.arm): o for o in get_artefact("table9", "tiny").observe(made_up)}
    more_time = observed["time above plain, grouped queries, eager", "lime"]
    assert more_time.by_seed == pytest.approx({0: 0.1, 1: 0.1})
    seconds = observed["seconds of a step, grouped queries, eager", "lime"]
    assert seconds.by_seed == pytest.approx({0: 1.1, 1: 2.2})
    with_peaks = {arm for quantity, arm in observed if "peak" in quantity}
    assert with_peaks == {"plain", "hyper_connections"}
