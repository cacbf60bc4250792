"""What a page shows of an analysis: rows, sections, and the order of its models."""

from dataclasses import replace

import pytest
from recorded import an_analysis

from layermem_bench.report import analysis, figures
from layermem_bench.report.depth import routing_section
from layermem_bench.report.page import Link
from layermem_bench.results.analysis import DepthMixture


@pytest.fixture
def drawn(monkeypatch):
    """Leave out the drawings, which a test does not look at; return what curves are asked for."""
    asked = []
    monkeypatch.setattr(
        figures, "curves", lambda series, **options: asked.append((series, options))
    )
    monkeypatch.setattr(figures, "drawing", lambda *args, **options: "")
    return asked


MADE_UP = an_analysis(["a", "b"], lime="lime-id", plain="plain-id")


def test_the_table_has_a_row_for_each_layer_and_a_column_for_each_number():
    plain = MADE_UP.models["plain"]
    shallow = {kind: replace(v, mean=(0.3,)) for kind, v in plain.entropy.items()}
    models = {**MADE_UP.models, "plain": replace(plain, entropy=shallow)}
    table = analysis.table(replace(MADE_UP, models=models))
    measures = ("entropy", "paper probe", "converged probe")
    columns = [f"{measure}, {name}" for measure in measures for name in models]
    assert table.header == ["layer", *columns]
    assert table.texts() == [
        ["0", "0.60", "0.30", "60.0%", "60.0%", "60.0%", "60.0%"],
        ["1", "0.70", "", "70.0%", "70.0%", "70.0%", "70.0%"],
    ]


def test_sections_name_what_they_show_and_why_something_is_missing(drawn):
    plain = MADE_UP.models["plain"]
    mixture = DepthMixture(
        **{"place": "layer 0, mlp", "readers": ("input",), "sources": ("embedding",)},
        **{"mean": ((1.0,),), "deviation": ((0.0,),)},
    )
    more = {
        "secret": replace(plain, routing_unknown="the weights are secret"),
        "mixing": replace(plain, mixtures=(mixture,)),
    }
    models = {**MADE_UP.models, **more}
    parts = analysis.sections(replace(MADE_UP, models=models), {}, {}, " (a, b)")
    assert [part.title.removesuffix(" (a, b)") for part in parts] == [
        *("What was analyzed", "Entropy by layer", "Separability of words", "Layout of words"),
        *(f"What {name} reads" for name in models),
        "What mixing mixes",
    ]
    assert parts[4].tables[0].texts() == [["1", "50.0%", "2.00", "0"]]
    assert len(parts[1].figures) == 2 and len(parts[2].figures) == 4
    told = [part.paragraphs[0] for part in parts[5:8]]
    for text, reason in zip(told, ("No router", "are secret", "without routers"), strict=True):
        assert reason in text
    assert "Chance is 50.0%" in parts[2].paragraphs[0]


def test_keys_and_values_that_read_apart_are_drawn_apart(drawn):
    model = MADE_UP.models["lime"]
    apart = replace(model.routing, parts=dict.fromkeys(("key", "value"), model.routing.heatmap))
    shown = [routing_section("lime", replace(model, routing=r)) for r in (model.routing, apart)]
    assert [len(section.figures) for section in shown] == [1, 2]


def test_models_stand_in_the_order_and_styles_of_their_runs(drawn):
    marks = {"plain-id": "row-1", "lime-id": "row-2"}
    models, *_ = analysis.sections(MADE_UP, marks, {"plain-id": 0, "lime-id": 3})
    marked = [(row[0], row[1].mark) for row in models.tables[0].rows]
    assert marked == [("plain", "row-1"), ("lime", "row-2")]
    series, options = drawn[0]
    assert list(series) == ["plain", "lime"] and options["styles"] == {"plain": 0, "lime": 3}
    # A model of a run that is not on the page comes first.
    models, *_ = analysis.sections(MADE_UP, {"lime-id": "row-2"}, {})
    runs = [row[1] for row in models.tables[0].rows]
    assert runs == ["plain-id", Link("lime-id", "row-2")]
    # Without the style of every run, models take styles in their order.
    analysis.sections(MADE_UP, marks, {"plain-id": 0})
    assert drawn[-1][1]["styles"] is None


def test_a_page_begins_with_what_came_out(drawn):
    lead = analysis.build(replace(MADE_UP, models={"lime": MADE_UP.models["lime"]})).lead
    for number in ("0.65 nats", "accuracy of 70%", "50% of what"):
        assert number in lead
