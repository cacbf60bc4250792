"""Figures: a variant has one colour wherever it is drawn; files are read on light and on dark."""

from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from layermem.models.registry import list_variants
from layermem_bench.report import figures


def test_every_variant_has_a_style_of_its_own():
    names = [*list_variants(), "recipe"]
    styles = {name: figures.styles_of([name])[name] for name in names}
    assert len(set(styles.values())) == len(names), "give the new variant a style in figures.py"
    colours = [colour for colour, _, _ in figures.STYLES]
    assert len(set(colours)) == len(colours) and max(styles.values()) < len(colours)


@pytest.mark.parametrize("names", [["plain", "lime"], ["lime", "mudd", "plain"], ["x", "lime"]])
def test_the_others_do_not_change_the_style_of_a_variant(names):
    styles = figures.styles_of(names)
    assert list(styles) == names
    assert styles["lime"] == figures.styles_of(["lime"])["lime"]
    assert len(set(styles.values())) == len(names)


def test_arms_of_one_variant_are_told_apart():
    styles = figures.styles_of(["lime:router=last", "lime", "lime:router=first", "LIMe, seed 1"])
    assert styles["lime"] == figures.styles_of(["LIMe"])["LIMe"]
    assert len(set(styles.values())) == 4
    # Alone, an arm has its variant's; what no variant is has never the plain decoder's or LIMe's.
    assert figures.styles_of(["lime:router=last"]) == {"lime:router=last": styles["lime"]}
    free = set(figures.styles_of(f"x{i}" for i in range(9)).values())
    assert not free & set(figures.styles_of(["plain", "lime", "mudd"]).values())
    # More than there are styles share some.
    assert len(figures.styles_of(f"x{i}" for i in range(40))) == 40


def test_a_file_is_read_on_light_and_on_dark(tmp_path):
    plot = figures.curves({"lime": ([0, 1], [1, 2])}, across="step", up="loss")
    figures.save([plot], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.startswith(f"<!-- matplotlib {matplotlib.__version__} -->\n<svg")
    assert "prefers-color-scheme:dark" in text and "currentColor" in text
    about = figures.on_own_ground(figures.drawing(plot), title="a < b", description="1 & 2")
    root = ElementTree.fromstring(about)
    assert [(each.tag.partition("}")[2], each.text) for each in root[:2]] == [
        ("title", "a < b"),
        ("desc", "1 & 2"),
    ]


def axes_of(plot):
    axes = Figure().add_subplot()
    plot(axes)
    return axes


def labels(axes):
    low, high = axes.get_xlim()
    axes.figure.canvas.draw()
    return [
        text
        for at, text in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if low <= at <= high
        for text in [text.get_text()]
    ]


def test_tick_labels_have_room():
    axes = axes_of(figures.curves({"lime": ([0, 180_000], [1, 2])}, across="tokens", up="loss"))
    assert len(labels(axes)) <= 8 and "90k" in labels(axes)
    few = axes_of(figures.curves({"lime": ([0, 8], [1, 2])}, across="layer", up="loss"))
    assert "4" in labels(few)


def test_places_that_double_are_equally_far_apart():
    series = {"lime": ([0, 1, 2, 4, 8, 16], [1] * 6)}
    axes = axes_of(figures.curves(series, across="tokens before", up="loss"))
    assert {"0", "1", "2", "4", "8", "16"} >= set(labels(axes)) >= {"1", "4", "16"}
    x = [axes.transData.transform((place, 1))[0] for place in (2, 4, 8, 16)]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1]) == pytest.approx(x[3] - x[2])


@pytest.mark.parametrize("layers", [2, 12, 13, 30, 128])
def test_layers_of_a_map_have_room(layers):
    shown = labels(axes_of(figures.triangle(np.eye(layers), across="source layer", up="layer")))
    assert shown[0] == "0" and min(layers, 7) <= len(shown) <= 12
