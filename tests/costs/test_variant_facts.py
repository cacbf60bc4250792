"""Facts of the variants: recorded as they are, shown as a table, and on the page."""

import importlib.util
from pathlib import Path

import pytest

import layermem
from layermem.models.registry import lookup
from layermem_bench import cli
from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.costs.variant_facts import PRESET, find_facts, read_facts
from layermem_bench.presets import get_preset

ROOT = Path(__file__).parents[2]
HOW = "run python docs/family_table.py"
PAIR = "lime+hyper_connections"
SIZES, _ = model_sizes(get_preset(PRESET))


@pytest.fixture(scope="module")
def facts():
    """Facts of the package's variants and of a pair, by name."""
    own = [
        n for n in layermem.list_variants() if lookup(n).config.__module__.startswith("layermem.")
    ]
    return {row["variant"]: row for row in find_facts(SIZES, [*own, PAIR])}


def test_the_recorded_facts_are_those_of_the_variants(facts):
    assert read_facts() == [row for name, row in facts.items() if name != PAIR], HOW
    assert [name for name, row in facts.items() if row["arXiv"] == "none"] == ["plain"]


def test_the_page_has_the_table(capsys):
    spec = importlib.util.spec_from_file_location("family", ROOT / "docs" / "family_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "family.md").read_text("utf-8")
    assert module.facts_table(read_facts()) in page, HOW
    cli.main(["list", "variants"])
    shown = capsys.readouterr().out
    assert all(row["variant"] in shown for row in read_facts()) and "2502.09245" in shown


def test_numbers_by_hand(facts):
    """Width 2048, 16 layers, 8 key-value heads of width 64, two bytes a number."""
    slot = 2 * 8 * 64 * 2
    depth = {name: row["bytes over depth"] for name, row in facts.items()}
    for name in ("plain", "lime", "hyper_connections"):
        assert facts[name]["cache bytes"] == 16 * slot
    assert depth["plain"] == 2048 * 2
    # The last layer's slot is read by no other.
    assert depth["lime"] == 2048 * 2 + slot * 15 // 16
    # Four streams and their mean.
    assert depth["hyper_connections"] == 5 * 2048 * 2
    # The last output and two new sources, each of these with its inverse root mean square.
    assert depth["attention_residuals"] == (3 * 2048 + 2) * 2
    assert facts["lime"]["seam"] == "memory"


def test_a_pair_adds_up(facts):
    lime, hyper, pair = (facts[name] for name in ("lime", "hyper_connections", PAIR))
    assert (pair["seam"], pair["arXiv"]) == ("memory and stream", "2502.09245, 2409.19606")
    assert pair["parameters"] == lime["parameters"] + hyper["parameters"]
