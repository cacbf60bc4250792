"""Facts of the variants: recorded as they are, shown as a table, and on the page."""

from pathlib import Path

import pytest

import layermem
from layermem.models.registry import lookup
from layermem_bench import cli
from layermem_bench.efficiency.model_sizes import model_sizes
from layermem_bench.efficiency.variant_facts import PRESET, find_facts, markdown_table, read_facts
from layermem_bench.presets import get_preset

ROOT = Path(__file__).parents[2]
HOW = "run python docs/family_table.py"
PAIR = "lime+hyper_connections"
SIZES, _ = model_sizes(get_preset(PRESET))


@pytest.fixture(scope="module")
def facts():
    """Facts of the package's variants and of a pair, by name."""
    return {row.name: row for row in find_facts(SIZES, [*own_variants(), PAIR])}


def own_variants():
    return [
        n for n in layermem.list_variants() if lookup(n).config.__module__.startswith("layermem.")
    ]


def test_the_recorded_facts_are_those_of_the_variants(facts):
    assert read_facts() == [row for row in facts.values() if row.name != PAIR], HOW


def test_the_page_has_the_table():
    assert markdown_table(read_facts()) in (ROOT / "docs" / "family.md").read_text("utf-8"), HOW


def test_every_variant_but_the_plain_decoder_names_its_paper(facts):
    assert [name for name, row in facts.items() if not row.source] == ["plain"]


def test_numbers_by_hand(facts):
    """Width 2048, 16 layers, 8 key-value heads of width 64, two bytes a number."""
    slot = 2 * 8 * 64 * 2
    assert {facts[n].cache_bytes for n in ("plain", "lime", "hyper_connections")} == {16 * slot}
    assert facts["plain"].depth_bytes == 2048 * 2
    # The last layer's slot is read by no other.
    assert facts["lime"].depth_bytes == 2048 * 2 + slot * 15 // 16
    # Four streams and their mean.
    assert facts["hyper_connections"].depth_bytes == 5 * 2048 * 2
    # The last output and two new sources, each of these with its inverse root mean square.
    assert facts["attention_residuals"].depth_bytes == (3 * 2048 + 2) * 2
    assert facts["lime"].seams == ("memory",)


def test_a_pair_adds_up(facts):
    lime, hyper, pair = (facts[name] for name in ("lime", "hyper_connections", PAIR))
    assert pair.seams == ("memory", "stream")
    assert pair.extra_parameters == lime.extra_parameters + hyper.extra_parameters
    assert pair.source == "2502.09245, 2409.19606"


def test_the_command_prints_the_facts(capsys):
    cli.main(["list", "variants"])
    shown = capsys.readouterr().out
    assert all(row.name in shown for row in read_facts()) and "2502.09245" in shown
