"""The pictures of the pages are what their commands draw, and each is said in words."""

import re
from pathlib import Path

import matplotlib
import pytest
from pictures import PICTURES, Part, differences

from layermem_bench.results.study import LOSS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *DOCS.glob("*.md"), *DOCS.glob("results/*.md")]


def shown(page):
    """Return (words, file) of each picture of a page."""
    found = re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text(encoding="utf-8"))
    return [(words, (page.parent / link).resolve()) for words, link in found]


def assert_is(recorded, drawn, how):
    if recorded.partition("\n")[0] == f"<!-- matplotlib {matplotlib.__version__} -->":
        assert recorded == drawn, f"run {how}"
    # Other releases place text differently; what is said of it is the same.
    assert re.findall("<desc>.*?</desc>", recorded) == re.findall("<desc>.*?</desc>", drawn)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_from_its_record(name):
    recorded = (DOCS / name).read_text(encoding="utf-8")
    assert_is(recorded, PICTURES[name](), "python docs/pictures.py")


def test_every_picture_has_a_command_and_a_page():
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.svg")}
    # Those of the notebook are drawn by its cells, which tests/real runs.
    by_cells = {path.name for path in DOCS.glob("notebook_*.svg")}
    assert there == {*PICTURES, *by_cells}
    on_pages = {file.relative_to(DOCS).as_posix() for page in PAGES for _, file in shown(page)}
    assert on_pages == there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_are_said_in_words(page):
    for words, file in shown(page):
        assert len(words.split()) >= 4, f"{file.name}: say what is seen, for who cannot see it"
        if not file.name.startswith("notebook_"):
            assert "prefers-color-scheme:dark" in file.read_text(encoding="utf-8")
    if page.parent.name == "results":
        assert shown(page), "begin the page of a topic with a picture"


def test_a_part_without_a_difference_is_refused():
    """Its rows would be missing, and nobody would see it."""
    with pytest.raises(
        SystemExit, match="retrofit-smollm2 has no difference .* name its condition"
    ):
        list(differences(Part(record="retrofit-smollm2", said="x"), LOSS))
