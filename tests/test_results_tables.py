"""The tables of docs/results.md are those of the records beside it."""

import importlib.util
import re
from pathlib import Path

import pytest
from recorded import record

from layermem.experiments.comparison import compare_runs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "results_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_what_was_recorded(script):
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.with_tables(page) == page, "run python docs/results_tables.py"


def test_every_record_has_a_place(script):
    places = {m["name"] for m in script._PLACE.finditer(script.PAGE.read_text(encoding="utf-8"))}
    recorded = {path.stem.removesuffix("-costs") for path in script.RECORDS.glob("*.json")}
    assert recorded == places


def test_a_table_is_written_from_its_record(script, tmp_path):
    runs = [
        record(tmp_path / f"{variant}{seed}", variant=variant, seed=seed, right=right)
        for variant, seed, right in (
            *(("plain", 0, 0.3), ("plain", 1, 0.4), ("lime", 0, 0.5)),
            *(("lime", 1, 0.6), ("mudd", 0, 0.3), ("mudd", 1, 0.5)),
        )
    ]
    tried = {arm: {0.01: 1.0, 0.1: 2.0} for arm in ("plain", "lime", "mudd")}
    compare_runs(runs, tmp_path / "out", learning_rates=tried)
    (tmp_path / "out" / "report.json").rename(tmp_path / "made-up.json")
    before = "# Results\n\n<!-- made-up: right answers -->\n| old |\n| --- |\n\nMore.\n"
    page = script.with_tables(before, tmp_path)
    # Two seeds: 12.706 times half their distance; a difference that is always the same has none.
    assert "| `plain` | 0.01 | 35.0% +- 63.5% |  |  |\n" in page
    assert "| `lime` | 0.01 | 55.0% +- 63.5% | +20.0% +- 0.0% |" in page
    assert re.search(r"`mudd` \| 0.01 \| 40.0% \+- 127.1% \| \+5.0% \+- 63.5% \| 0.5\d\d, ", page)
    assert "| the most frequent answer |  | 10.0% |" in page
    assert "| old |" not in page and page.endswith("\n\nMore.\n")
    assert script.with_tables(page, tmp_path) == page
    with pytest.raises(SystemExit, match="no metric 'taste'; there are validation loss"):
        script.metric_table("made-up", "taste", tmp_path)
