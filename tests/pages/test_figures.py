"""Figures: XML in the page's ink, a style for each variant, curves, what the paper draws."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from made_up import a_comparison, a_result

from layermem.models.registry import list_variants
from layermem_bench.pages import figures, study
from layermem_bench.statistics import Interval
from layermem_bench.studies.result import Drawing, Metric, PaperNumber, Point, Validation

ONE, SINGLE = Interval(mean=0.5, half=0.1, count=3), Interval(mean=0.5, half=np.inf, count=1)
NAME = "a_$b_{c$<b>"


def drawn(name="a"):
    flat = {name: [(at, (0.3, 0.4, 0.5)) for at in (1, 2)]}
    doubling = {name: [(at, (at, at, at)) for at in (8, 16, 32)]}
    bars = {name: (0.1, 0.2, 0.3), "one seed": SINGLE, "several": ONE}
    plots = {
        "curves": figures.curves(flat, across="x", up=name, is_share=True),
        "doubling": figures.curves(doubling, across="x", up="y"),
        "forest": figures.intervals(bars, is_share=True, across="x", line=0.1),
        "heatmap": figures.heatmap(np.eye(4), across="x", up="layer"),
        "large": figures.heatmap(np.eye(40), across="x", up="head"),
        "words": figures.scatter([[0, 1], [1, 0]], [0, 1], [name, "b"]),
    }
    return {kind: figures.drawing(plot).svg for kind, plot in plots.items()}


def test_drawings_are_xml_in_the_pages_own_ink_and_the_same_each_time():
    again, ids = drawn(), []
    for name, svg in drawn().items():
        ElementTree.fromstring(svg)
        assert "currentColor" in svg and figures.INK not in svg and svg == again[name], name
        ids.append(set(re.findall(r'\bid="([^"]+)"', svg)))
        used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used <= ids[-1]
    # On one page no two of them meet.
    assert sum(map(len, ids)) == len(set().union(*ids))


def test_names_are_names_and_no_markup_or_formula():
    without = [kind for kind, svg in drawn(NAME).items() if "a_$b_{c$&lt;b&gt;" not in svg]
    assert without == ["heatmap", "large"]


def test_every_variant_has_a_style_of_its_own_wherever_it_is_drawn():
    names = [*list_variants(), "recipe"]
    styles = {name: figures.styles_of([name])[name] for name in names}
    assert len(set(styles.values())) == len(names), "give the new variant a style in figures.py"
    for others in (["plain", "lime"], ["lime", "mudd", "plain"], ["x", "lime"]):
        assert figures.styles_of(others)["lime"] == styles["lime"]
    of_arms = figures.styles_of(["lime:router=last", "lime", "lime:router=average", "other"])
    assert of_arms["lime"] == styles["lime"] and len(set(of_arms.values())) == 4
    assert figures.styles_of(["lime:router=last"])["lime:router=last"] != styles["lime"]


@pytest.mark.parametrize("count", [4, 19])
def test_many_names_stand_below_the_axes(count):
    """Within, they would hide the curves; outside of the figure nobody reads them."""
    series = {f"arm {i}": [(at, (i, i, i)) for at in (1, 2)] for i in range(count)}
    drawn = figures.drawing(figures.curves(series, across="tokens", up="loss")).svg
    svg = ElementTree.fromstring(drawn)
    whole = float(svg.get("height")[:-2])
    assert (whole == pytest.approx(3.4 * 72)) == (count == 4)
    at = {t.text: float(t.get("y")) for t in svg.iter("{http://www.w3.org/2000/svg}text") if t.text}
    named = [at[name] for name in series]
    assert max(named) < whole and (at["tokens"] < min(named)) == (count > 4)


def test_an_arm_is_the_mean_of_its_seeds_between_the_lowest_and_the_highest():
    three = [[(10, 3.0), (20, 2.0), (30, 1.0)], [(12, 6.0), (24, 5.0)], [(14, 9.0), (28, 2.0)]]
    arms = {"a": three, "b": [[(10, 4.0), (20, None)]], "c": [[]]}
    # The third point is of one seed alone; nothing is known of c.
    assert figures.means_of_curves(arms) == {
        "a": [(12, (3.0, 6.0, 9.0)), (24, (2.0, 3.0, 5.0))],
        "b": [(10, (4.0, 4.0, 4.0))],
    }


def test_curves_are_of_what_was_recorded():
    made = a_comparison({"plain": (1.0, None), "lime": (1.0, 1.5), "mudd": (2.0, 2.0)})
    curve = tuple(Validation(step=i, tokens=i, val_loss=1 / i) for i in (1, 2))
    runs = [r if r.arm == "mudd" else replace(r, validations=curve) for r in made.runs]
    result = replace(made, runs=tuple(runs))
    (figure,) = study.learning_curves(result, result.boards[0])
    assert ">lime<" in figure.svg and ">mudd<" not in figure.svg
    # One validation is in a table; the training loss is drawn beside the first arm's.
    runs = [replace(r, validations=curve[:1], learning=((5, 2.0), (9, 1.5))) for r in made.runs]
    (lead,) = study.learning_curves(replace(made, runs=tuple(runs)), made.boards[0])
    assert ">mudd<" in lead.svg and ">plain<" not in lead.svg
    assert not list(study.learning_curves(made, made.boards[0]))


def test_the_papers_numbers_stand_beside_ours(monkeypatch):
    points = tuple(
        Point(quantity=f"right, {n}", arm=arm, line=arm, at=n)
        for arm in ("plain", "lime")
        for n in (4, 6)
    )
    paper = PaperNumber(quantity="right, 6", arm="lime", value=0.716, where="", is_share=True)
    values = {f"right, {n}": {"plain": (0.3, 0.5), "lime": (0.5, 0.7)} for n in (4, 6)}
    metrics = dict.fromkeys(values, Metric(is_share=True, chance=0.1))
    lines = Drawing(up="right answers", across="operands", points=points)
    result = a_result(values, seeds=(0, 1), metrics=metrics, papers=(paper,))
    draw, seen = figures.curves, {}
    monkeypatch.setattr(figures, "curves", lambda of, **how: seen.update(of) or draw(of, **how))
    assert len(list(study.draw_lines(result, lines))) == 1
    assert seen["lime, the paper"] == [(6, (0.716, 0.716, 0.716))]
    assert [(at, ends[1]) for at, ends in seen["plain"]] == [(4, 0.4), (6, 0.4)]
    # Student's t of one degree, 12.706, times half the distance of two seeds.
    assert seen["plain"][0][1][2] == pytest.approx(0.4 + 12.706 * 0.1, abs=1e-3)
    # What is not evaluated is not drawn.
    assert not list(study.draw_lines(replace(result, rows=()), lines))
