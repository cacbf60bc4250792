"""What a page shows of an analysis: rows, sections, and the order of its models."""

from dataclasses import replace

import pytest
from recorded import an_analysis

from layermem_bench.analysis.result import DepthMixture
from layermem_bench.pages import analysis
from layermem_bench.pages.depth import routing_section

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


@pytest.mark.usefixtures("undrawn")
def test_sections_name_what_they_show_and_why_something_is_missing():
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
    parts = analysis.build(replace(MADE_UP, models=models)).sections
    assert [part.title for part in parts] == [
        *("What was analyzed", "Entropy by layer", "Separability of words", "Layout of words"),
        *(f"What {name} reads" for name in models),
        "What mixing mixes",
    ]
    assert [row[:2] for row in parts[0].tables[0].texts()][:2] == [
        *(["lime", "lime-id"], ["plain", "plain-id"]),
    ]
    assert parts[4].tables[0].texts()[1] == ["1", "50.0%", "2.00", "0, 1"]
    assert len(parts[1].figures) == 2 and len(parts[2].figures) == 4
    told = [part.paragraphs[0] for part in parts[5:8]]
    for text, reason in zip(told, ("No router", "are secret", "without routers"), strict=True):
        assert reason in text
    assert "Chance is 50.0%" in parts[2].paragraphs[0]


@pytest.mark.usefixtures("undrawn")
def test_keys_and_values_that_read_apart_are_drawn_apart():
    model = MADE_UP.models["lime"]
    apart = replace(model.routing, parts=dict.fromkeys(("key", "value"), model.routing.heatmap))
    shown = [routing_section("lime", replace(model, routing=r)) for r in (model.routing, apart)]
    maps = [[name for name, _ in section.switches[0].options] for section in shown]
    assert maps == [["Keys and values"], ["key", "value"]]


@pytest.mark.usefixtures("undrawn")
def test_a_page_begins_with_what_came_out():
    lead = analysis.build(replace(MADE_UP, models={"lime": MADE_UP.models["lime"]})).lead
    assert "0.65 nats" in lead and "accuracy of 70%" in lead
