"""Test the maps of weights over depth: rows, columns and blanks, and what is said of them."""

import numpy as np

from layermem_bench.report.depth import mixtures_section, tabulate
from layermem_bench.results.analysis import DepthMixture


def a_mixture(place, sources, readers=("query", "key"), spread=0.5):
    size = len(readers), len(sources)
    values = np.arange(1.0, 1 + size[0] * size[1]).reshape(size)
    return DepthMixture(
        place=place,
        readers=readers,
        sources=sources,
        mean=tuple(map(tuple, (-values).tolist())),
        deviation=tuple(map(tuple, (spread * values).tolist())),
    )


MIXTURES = [
    a_mixture("layer 1, attention", ("embedding", "layer 0")),
    a_mixture("layer 2, attention", ("layer 1", "embedding")),
    a_mixture("final norm", ("embedding", "layer 0", "layer 1"), readers=("residual",)),
]


def test_a_reader_has_the_places_where_it_reads():
    places, sources, matrix = tabulate(MIXTURES, "key", deviation=False)
    assert places == ["layer 1, attention", "layer 2, attention"]
    assert sources == ["embedding", "layer 0", "layer 1"]
    np.testing.assert_array_equal(matrix, [[-3, -4, np.nan], [-4, np.nan, -3]])
    _, _, matrix = tabulate(MIXTURES, "residual", deviation=True)
    np.testing.assert_array_equal(matrix, [[0.5, 1, 1.5]])


def test_the_section_has_a_map_for_each_reader():
    section = mixtures_section("mudd", MIXTURES)
    assert section.title == "What mudd mixes" and "depend on the token" in section.paragraphs[0]
    assert [switch.label for switch in section.switches] == ["Mean weights of", "Deviation of"]
    for switch in section.switches:
        assert [name for name, _ in switch.options] == ["query", "key", "residual"]
        assert all("<svg" in figure.svg for _, figure in switch.options)


def test_constant_weights_have_one_map():
    constant = [a_mixture("layer 0, mlp", ("embedding", "layer 0"), ("residual",), spread=0)]
    section = mixtures_section("denseformer", constant)
    assert "the same for all tokens" in section.paragraphs[0] and len(section.switches) == 1
