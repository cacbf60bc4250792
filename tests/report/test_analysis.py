"""Test what a page shows of an analysis, and that a file of another version is refused."""

from dataclasses import replace

import pytest
from recorded import an_analysis

from layermem_bench.report import analysis, figures
from layermem_bench.report.depth import routing_section
from layermem_bench.report.page import Link
from layermem_bench.results.analysis import DepthMixture


@pytest.fixture
def undrawn(monkeypatch):
    """Leave out the drawings, which a test does not look at; return what curves are asked for."""
    drawn = []

    def curves(series, **options):
        drawn.append((series, options))

    monkeypatch.setattr(figures, "curves", curves)
    monkeypatch.setattr(figures, "drawing", lambda *args, **options: "")
    return drawn


MADE_UP = an_analysis(["a", "b"], lime="lime-id", plain="plain-id")


def test_the_table_has_a_row_for_each_layer_and_a_column_for_each_number():
    plain = MADE_UP.models["plain"]
    shallow = {kind: replace(v, mean=(0.3,)) for kind, v in plain.entropy.items()}
    table = analysis.table(
        replace(MADE_UP, models={**MADE_UP.models, "plain": replace(plain, entropy=shallow)})
    )
    assert table.header == [
        "layer",
        "entropy, lime",
        "entropy, plain",
        "paper probe, lime",
        "paper probe, plain",
        "converged probe, lime",
        "converged probe, plain",
    ]
    assert table.texts() == [
        ["0", "0.60", "0.30", "60.0%", "60.0%", "60.0%", "60.0%"],
        ["1", "0.70", "", "70.0%", "70.0%", "70.0%", "70.0%"],
    ]


def test_sections_name_what_they_show_and_why_something_is_missing(undrawn):
    unknown = replace(MADE_UP.models["plain"], routing_unknown="the weights are secret")
    mixture = DepthMixture(
        place="layer 0, mlp",
        readers=("input",),
        sources=("embedding",),
        mean=((1.0,),),
        deviation=((0.0,),),
    )
    mixing = replace(MADE_UP.models["plain"], mixtures=(mixture,))
    models = {**MADE_UP.models, "secret": unknown, "mixing": mixing}
    made_up = replace(MADE_UP, models=models)
    parts = analysis.sections(made_up, {}, {}, " (a, b)")
    assert [part.title for part in parts] == [
        "What was analyzed (a, b)",
        "Entropy by layer (a, b)",
        "Separability of words (a, b)",
        "Layout of words (a, b)",
        "What lime reads (a, b)",
        "What plain reads (a, b)",
        "What secret reads (a, b)",
        "What mixing reads (a, b)",
        "What mixing mixes (a, b)",
    ]
    assert parts[4].tables[0].texts() == [["1", "50.0%", "2.00", "0"]]
    nothing = "No router reads another layer: every layer reads its own keys and values."
    assert parts[5].paragraphs == [nothing]
    assert parts[6].paragraphs == ["It is not shown: the weights are secret."]
    instead = "It mixes over depth without routers: see What mixing mixes."
    assert parts[7].paragraphs == [instead]


def test_what_the_pictures_of_routers_leave_open_is_said(undrawn):
    model = MADE_UP.models["lime"]
    section = routing_section("lime", model)
    (switch,) = section.switches
    assert not any("borrows" in text for text in section.paragraphs)
    assert "averaged" not in switch.options[0][1].caption
    apart = replace(model.routing, borrowers=(1,), parts={"key": model.routing.heatmap})
    section = routing_section("lime", replace(model, routing=apart))
    assert section.paragraphs[0].startswith("The source of a layer that borrows (1) is its lender")
    (switch,) = section.switches
    assert "averaged over keys and values" in switch.options[0][1].caption


def test_controls_are_of_a_model_that_is_named(undrawn):
    def controls(made_up):
        (section,) = (
            s for s in analysis.sections(made_up, {}, {}) if s.title == "Separability of words"
        )
        return section.paragraphs[1]

    assert controls(MADE_UP).startswith("Controls, of lime. Of values that attention reads")
    alone = replace(MADE_UP, models={"plain": MADE_UP.models["plain"]})
    assert controls(alone).startswith("Of values that attention reads, paper: chance 50.0%")


def test_models_stand_in_the_order_and_styles_of_their_runs(undrawn):
    marks = {"plain-id": "row-1", "lime-id": "row-2"}
    models, *_ = analysis.sections(MADE_UP, marks, {"plain-id": 0, "lime-id": 3})
    assert [(row[0], row[1].mark) for row in models.tables[0].rows] == [
        ("plain", "row-1"),
        ("lime", "row-2"),
    ]
    series, options = undrawn[0]
    assert list(series) == ["plain", "lime"] and options["styles"] == {"plain": 0, "lime": 3}
    # A model of a run that is not on the page comes first.
    models, *_ = analysis.sections(MADE_UP, {"lime-id": "row-2"}, {})
    assert [row[:2] for row in models.tables[0].rows] == [
        ["plain", "plain-id"],
        ["lime", Link("lime-id", "row-2")],
    ]
    # Without the style of every run, models take styles in their order.
    analysis.sections(MADE_UP, marks, {"plain-id": 0})
    assert undrawn[-1][1]["styles"] is None


def test_a_page_begins_with_what_came_out(undrawn):
    lead = analysis.build(replace(MADE_UP, models={"lime": MADE_UP.models["lime"]})).lead
    assert "values of lime" in lead and "0.65 nats" in lead
    assert "tells a, b apart" in lead and "accuracy of 70%" in lead and "50% of what" in lead
