"""What the paper draws, drawn of our numbers beside its own: curves, lines, bars."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import a_result

from layermem_bench.paper import get_artefact, names
from layermem_bench.report import drawings, figures
from layermem_bench.report.study import build
from layermem_bench.results.files import read_result
from layermem_bench.results.study import (
    BY_LAYER,
    Arm,
    Board,
    Condition,
    Drawing,
    Metric,
    PaperNumber,
    Point,
    RunRecord,
    StudyResult,
    Validation,
)

RECORDS = Path(__file__).parents[2] / "docs" / "records" / "artefacts"
DRAWN = {"fig1": 1, "fig10": 1, "fig11": 2, "fig2": 2, "fig4": 2, "fig6": 1, "fig7": 2, "prosqa": 1}
DRAWN |= {f"table{i}": 1 for i in (1, 4, 5, 6)}


@pytest.fixture
def seen(monkeypatch):
    """Return what is asked of the drawing functions, which draw it."""
    asked = []

    def watched(name):
        draw = getattr(figures, name)

        def call(*args, **kwargs):
            asked.append((name, args, kwargs))
            return draw(*args, **kwargs)

        monkeypatch.setattr(figures, name, call)

    watched("curves")
    watched("grouped_bars")
    return asked


@pytest.mark.parametrize("scale", ["tiny", "paper"])
@pytest.mark.parametrize("name", names())
def test_what_is_drawn_are_numbers_that_the_artefact_has(name, scale):
    artefact = get_artefact(name)
    drawn = artefact.drawings(scale)
    assert len(drawn) == DRAWN.get(name, 0)
    claimed = {
        (claim.quantity, arm)
        for claim in artefact.claims(scale)
        for arm in (claim.arm, claim.against)
    }
    points = {(point.quantity, point.arm) for drawing in drawn for point in drawing.points}
    assert {point for point in points if BY_LAYER not in point[0]} <= claimed
    assert artefact.study(name, scale).drawings == drawn


def test_figure_6_of_the_record_is_drawn(seen):
    result = read_result(StudyResult, RECORDS / "fig6-tiny.json")
    (figure,) = drawings.paper_figures(
        replace(result, drawings=get_artefact("fig6").drawings("tiny"))
    )
    ElementTree.fromstring(figure.svg)
    ((_, (series,), options),) = seen
    assert list(series) == ["plain", "lime"] and series["lime"][0] == [8, 16, 32, 64]
    values = result.computed("validation loss")["lime, 64 layers"].values()
    assert series["lime"][1][-1] == pytest.approx(sum(values) / len(values))
    low, high = options["bands"]["lime"]
    assert low[-1] < min(values) < max(values) < high[-1]
    assert "no numbers" in figure.caption


def test_the_papers_numbers_are_points_beside_the_lines(seen):
    points = tuple(
        Point(quantity=f"right, {n}", arm=arm, line=arm, at=n)
        for arm in ("plain", "lime")
        for n in (4, 6)
    )
    drawing = Drawing(kind="lines", up="right answers", across="operands", points=points)
    paper = PaperNumber(quantity="right, 6", arm="lime", value=0.716, where="", is_share=True)
    values = {f"right, {n}": {"plain": (0.3, 0.5), "lime": (0.5, 0.7)} for n in (4, 6)}
    metrics = dict.fromkeys(values, Metric(is_share=True))
    result = a_result(values, seeds=(0, 1), metrics=metrics, papers=(paper,), drawings=(drawing,))
    (figure,) = drawings.paper_figures(result)
    ((_, (series,), options),) = seen
    assert series["lime, the paper"] == ([6], [0.716]) and options["scale"] == "share"
    assert series["plain"] == ([4, 6], [0.4, 0.4]) and "lime, the paper" in figure.svg
    # What is not evaluated is not drawn.
    assert not drawings.paper_figures(replace(result, rows=()))


def test_bars_are_of_what_the_paper_prints(seen):
    papers = tuple(
        PaperNumber(quantity="ARC-E", arm=arm, value=value, where="Table 1", is_share=True)
        for arm, value in (("plain", 0.70), ("lime", 0.71))
    )
    values = {"ARC-E": {"plain": (0.25, 0.35), "lime": (0.3, 0.3)}, "other": {"plain": (9.0, 9.0)}}
    metrics = {"ARC-E": Metric(is_share=True, chance=0.25)}
    drawing = Drawing(kind="bars", up="right answers")
    result = a_result(values, seeds=(0, 1), metrics=metrics, papers=papers, drawings=(drawing,))
    (figure,) = drawings.paper_figures(result)
    ElementTree.fromstring(figure.svg)
    ((_, (groups, marks, chances), _),) = seen
    assert list(groups) == ["ARC-E"] and groups["ARC-E"]["lime"] == pytest.approx((0.3, 0.3, 0.3))
    # Of shares intervals end at 0 and 1.
    assert groups["ARC-E"]["plain"] == pytest.approx((0.0, 0.3, 0.3 + 0.6353), abs=1e-3)
    assert marks["ARC-E", "lime"] == 0.71 and chances == {"ARC-E": 0.25}
    assert "a guess" in figure.caption and "paper" in figure.caption
    assert not drawings.paper_figures(replace(result, rows=()))


def a_run(arm, seed, *losses, state="ended", flops=7.0):
    curve = (
        Validation(step=i, val_loss=loss, tokens=10.0 * i, flops=flops and flops * i)
        for i, loss in enumerate(losses, 1)
    )
    return RunRecord(
        name=f"{arm}-s{seed}", run_id=f"{arm}{seed}", folder="", state=state, board="b", arm=arm,
        seed=seed, conditions=("tokens",), validations=tuple(curve),
        metrics={"validation loss": losses[-1]} if state == "ended" else {},
    )  # fmt: skip


def test_curves_of_the_paper_have_its_numbers_and_are_drawn_once(seen):
    runs = (
        a_run("plain", 0, 4.0, 3.0),
        a_run("plain", 1, 4.0, state="diverged"),
        a_run("lime", 0, 3.0, 2.0),
        a_run("lime", 1, 5.0, 4.0),
        a_run("mudd", 0, 3.0, state="begun", flops=None),
    )
    arms = tuple(Arm(name=arm, steps=2) for arm in ("plain", "lime", "mudd"))
    board = Board(
        name="b", metric="validation loss", conditions=(Condition(name="tokens", arms=arms),)
    )
    paper = PaperNumber(quantity="saved", arm="lime", value=0.089, where="", is_share=True)
    result = a_result(
        {}, seeds=(0, 1), boards=(board,), runs=runs, papers=(paper,),
        drawings=(Drawing(kind="curves", across="flops", up="validation loss"),),
        metrics={"validation loss": Metric(better="lower")},
        claims=[{"quantity": "saved", "direction": "higher"}],
    )  # fmt: skip
    page = build(result)
    (curve,) = [f for s in page.sections if s.title == "The paper and here" for f in s.figures]
    assert "saved, lime: 8.90%" in curve.caption
    # A run that diverged early ends no curve, and what is not recorded is not drawn but said.
    assert "ended of: plain, mudd." in curve.caption and "recorded of: mudd." in curve.caption
    flops, tokens = (args[0] for name, args, _ in seen)
    assert flops == {"plain": ([7.0, 14.0], [4.0, 3.0]), "lime": ([7.0, 14.0], [4.0, 3.0])}
    assert seen[0][2]["bands"]["lime"] == ([3.0, 2.0], [5.0, 4.0])
    assert tokens["mudd"] == ([10.0], [3.0])
    learnt = [f for s in page.sections if s.title.startswith("How they learn") for f in s.figures]
    assert [figure.caption.split(":")[0] for figure in learnt] == ["validation loss by tokens"]
