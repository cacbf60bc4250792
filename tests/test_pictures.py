"""The pictures of the pages are what their commands draw, and each is said in words."""

import re
from pathlib import Path

import matplotlib
import pytest
from pictures import PICTURES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("results/*.md")]


def assert_is(recorded, drawn, how):
    if recorded.partition("\n")[0] == f"<!-- matplotlib {matplotlib.__version__} -->":
        assert recorded == drawn, f"run {how}"
    # Other releases place text differently; what is said of it is the same.
    assert re.findall("<desc>.*?</desc>", recorded) == re.findall("<desc>.*?</desc>", drawn)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_from_its_record(name):
    recorded = (DOCS / name).read_text(encoding="utf-8")
    assert_is(recorded, PICTURES[name](), "python docs/pictures.py")


def test_every_picture_has_a_command_a_page_and_words():
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.svg")}
    # Those of the notebook are drawn by its cells, which tests/real runs.
    by_cells = {path.name for path in DOCS.glob("notebook_*.svg")}
    assert there == {*PICTURES, *by_cells}
    on_pages = set()
    for page in PAGES:
        shown = re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text(encoding="utf-8"))
        needs_one = page.parent.name == "results" and page.name != "tables.md"
        assert shown or not needs_one, f"{page.name}: begin with a picture"
        for words, link in shown:
            file = (page.parent / link).resolve()
            assert len(words.split()) >= 4, f"{file.name}: say what is seen, for who cannot see it"
            assert file.name in by_cells or "prefers-color-scheme:dark" in file.read_text()
            on_pages.add(file.relative_to(DOCS).as_posix())
    assert on_pages == there
