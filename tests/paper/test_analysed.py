"""Figures of what goes on inside models: their numbers and pictures, and how they are drawn."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up import a_result
from recorded import an_analysis
from tiny import TINY

import layermem
from layermem_bench.paper import get_artefact, inspecting, reasoning, trained
from layermem_bench.presets import get_preset
from layermem_bench.report import drawings
from layermem_bench.report.study import build
from layermem_bench.results.study import Metric, Picture, Row, RunRecord
from layermem_bench.study.definition import Observed, Trained
from layermem_bench.study.gathering import _with_rows

SEEDS = (0, 1)


@pytest.fixture
def result_of(monkeypatch, tmp_path):
    """Return what makes the result of a figure of models of few layers, by its name."""

    def small(name):
        run = get_preset(name)
        return replace(run, model=replace(run.model, num_hidden_layers=2))

    def analysis_of(pair, options, out):
        return an_analysis(options.words or ("is", "are", "was", "were"))

    monkeypatch.setattr(trained, "get_preset", small)
    monkeypatch.setattr(reasoning, "get_preset", small)
    monkeypatch.setattr(inspecting, "_model_of", lambda *_, trained: layermem.build("lime", **TINY))
    monkeypatch.setattr(inspecting, "_analysis_of", analysis_of)

    def result_of(name):
        study = get_artefact(name).study(name, "tiny", len(SEEDS))
        (board,) = study.boards
        records = {
            arm.name: {s: RunRecord(name="", run_id="", folder="", state="ended") for s in SEEDS}
            for arm in board.arms
        }
        ended = Trained(seeds=SEEDS, records={board.name: records}, out=tmp_path)
        seen = list(study.observe(ended))
        observed = [each for each in seen if isinstance(each, Observed)]
        return replace(
            a_result({}, seeds=SEEDS, name=name),
            rows=tuple(Row(metric=o.quantity, arm=o.arm, by_seed=o.by_seed) for o in observed),
            metrics=_with_rows({}, study, observed),
            pictures=tuple(each for each in seen if isinstance(each, Picture)),
            papers=study.papers,
            claims=study.claims,
            claim=study.claim,
            drawings=study.drawings,
        )

    return result_of


def test_what_has_a_metrics_name_is_better_in_its_direction():
    """Computed of the runs, as the loss of figures 6 and 10 is."""
    study = get_artefact("fig6").study("fig6", "tiny", len(SEEDS))
    observed = [Observed(quantity="validation loss", arm="lime", by_seed={0: 1.0})]
    metrics = _with_rows({"validation loss": Metric(better="lower")}, study, observed)
    assert metrics["validation loss"].better == "lower"
    assert _with_rows({}, study, observed)["validation loss"].better is None


def page_of(result):
    """Return the lead of a page, and the section with what the paper draws."""
    page = build(result)
    (section,) = [each for each in page.sections if each.title == "The paper and here"]
    return page.lead, section


def texts(svg):
    """Return the texts of a drawing."""
    nodes = ElementTree.fromstring(svg).iter()
    return ["".join(node.itertext()).strip() for node in nodes if node.tag.endswith("text")]


@pytest.mark.parametrize(("name", "last"), [("fig2", 0.7), ("fig7", 0.5)])
def test_entropy_and_accuracy_are_drawn_by_layer(name, last, result_of, monkeypatch):
    asked = []
    curves = drawings.figures.curves
    monkeypatch.setattr(
        drawings.figures, "curves", lambda *a, **k: asked.append((a[0], k)) or curves(*a, **k)
    )
    result = result_of(name)
    lead, section = page_of(result)
    assert "Of the differences that it claims: " in lead
    entropy, accuracy = section.figures
    assert "layer" in texts(entropy.svg) and "lime" in texts(entropy.svg)
    (of_entropy, _), (of_accuracy, options) = asked
    assert of_entropy["plain"] == ([0, 1], [pytest.approx(last - 0.1), pytest.approx(last)])
    assert of_accuracy["lime"][1][1] == pytest.approx(last) and options["scale"] == "share"
    # The paper's only number stands beside the last layer.
    papers = {line: at for line, at in of_accuracy.items() if "the paper" in line}
    assert papers == ({"lime, the paper": ([1], [1.0])} if name == "fig2" else {})
    # Numbers of single layers are in no table.
    assert not any("layer: " in row[0] for row in section.tables[0].texts())


@pytest.mark.parametrize(
    ("name", "words"),
    [("fig3", ["is, are, was, were"]), ("fig8", ["1, 2, 3, 4", "100, 101, 102, 103"])],
)
def test_layouts_are_drawn_by_layer_and_arm(name, words, result_of):
    _, section = page_of(result_of(name))
    labels = [f"{arm}, seed 0, {each}" for each in words for arm in ("lime", "plain")]
    assert [switch.label for switch in section.switches] == labels
    for switch in section.switches:
        assert [panel for panel, _ in switch.options] == ["layer 0", "layer 1"]
        assert switch.first == 1
        assert texts(switch.options[1][1].svg)[:2] == switch.label.split(", ")[2:4]


def test_what_routers_read_is_drawn_beside_their_start(result_of):
    result = result_of("fig5")
    _, section = page_of(result)
    assert [switch.label for switch in section.switches] == [
        "lime, mean over 2 seeds",
        "lime at its start, mean over 2 seeds",
    ]
    (picture, _) = result.pictures
    heatmap = np.array(picture.panels["all heads"])
    np.testing.assert_allclose(heatmap.sum(1), 1, atol=1e-3)
    assert (np.triu(heatmap, 1) == 0).all()
    shown = texts(section.switches[0].options[0][1].svg)
    assert {"source layer", "layer", f"{heatmap[3, 0]:.2f}"} <= set(shown)
    computed = result.computed("share that the last layer reads from the first two slots")
    of_seeds = list(computed["lime"].values())
    assert np.mean(of_seeds) == pytest.approx(heatmap[-1, :2].sum(), abs=1e-3)


def test_each_heads_router_is_drawn_by_layer(result_of):
    result = result_of("fig9")
    _, section = page_of(result)
    assert [switch.label for switch in section.switches] == [
        "lime, seed 0",
        "lime at its start, seed 0",
    ]
    panels = result.pictures[0].panels
    assert list(panels) == ["layer 1", "layer 2", "layer 3"]
    for heads in panels.values():
        assert np.shape(heads) == (TINY["num_key_value_heads"], 4)
    assert {"source layer", "head"} <= set(texts(section.switches[0].options[2][1].svg))
