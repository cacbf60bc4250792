"""What a page shows of an analysis: rows, sections, and the order of its models."""

from dataclasses import replace

import pytest
from recorded import an_analysis

from layermem_bench.analysis.result import DepthMixture
from layermem_bench.pages import analysis

MADE_UP = an_analysis(["a", "b"], lime="lime-id", plain="plain-id")
LIME, PLAIN = MADE_UP.models["lime"], MADE_UP.models["plain"]


def test_the_table_has_a_row_for_each_layer_and_a_column_for_each_number():
    shallow = {kind: replace(v, mean=(0.3,)) for kind, v in PLAIN.entropy.items()}
    models = {**MADE_UP.models, "plain": replace(PLAIN, entropy=shallow)}
    table = analysis.table(replace(MADE_UP, models=models))
    measures = ("entropy", "paper probe", "converged probe")
    columns = [f"{measure}, {name}" for measure in measures for name in models]
    assert table.header == ["layer", *columns]
    assert table.rows == [
        ["0", "0.60", "0.30", "60.0%", "60.0%", "60.0%", "60.0%"],
        ["1", "0.70", "", "70.0%", "70.0%", "70.0%", "70.0%"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_sections_name_what_they_show_and_why_something_is_missing():
    mixture = DepthMixture(
        **{"place": "layer 0, mlp", "readers": ("input", "gate"), "sources": ("embedding", "own")},
        **{"mean": ((1.0, 0.0), (0.5, -0.5)), "deviation": ((0.0, 0.0),) * 2},
    )
    apart = dict.fromkeys(("key", "value"), LIME.routing.heatmap)
    more = {
        "secret": replace(PLAIN, routing_unknown="the weights are secret"),
        "mixing": replace(PLAIN, mixtures=(mixture,)),
        "apart": replace(LIME, routing=replace(LIME.routing, parts=apart)),
    }
    models = {**MADE_UP.models, **more}
    parts = analysis.build(replace(MADE_UP, models=models)).sections
    assert [part.title for part in parts] == [
        *("What was analyzed", "Entropy by layer", "Separability of words", "Layout of words"),
        *(f"What {name} reads" for name in list(models)[:-1]),
        *("What mixing mixes", "What apart reads"),
    ]
    about, layers = parts[0].tables
    assert about.rows[0] == ["lime", "Lime", "2", "16", "9", "lime-id"]
    assert len(layers.rows) == 2
    assert parts[4].tables[0].rows == [["0", "0.0%", "1.00", "0"], ["1", "50.0%", "2.00", "0, 1"]]
    assert [len(part.figures) for part in parts[1:5]] == [2, 4, 10, 2]
    names = [figure.caption.partition(":")[0] for figure in parts[9].figures]
    assert names == ["apart, key", "apart, value", "apart's heads, layer 1"]
    # Of the layers of one model the last is seen at once.
    assert [figure.fold for figure in parts[3].figures[:2]] == ["lime, layer 0", ""]
    told = [part.paragraphs[0] for part in parts[5:8]]
    for text, reason in zip(told, ("No router", "are secret", "without routers"), strict=True):
        assert reason in text
    assert "Chance is 50.0%" in parts[2].paragraphs[0]
    assert parts[8].tables[0].rows == [
        ["layer 0, mlp", "input", "1.00", "0.00"],
        ["layer 0, mlp", "gate", "0.50", "-0.50"],
    ]
