"""The site in a browser, opened from the disk: its search answers, no page scrolls sideways."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import CHROMIUM, TELL, ask

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="MkDocs is not installed: make docs"),
]
# Asks the search for a word, as a reader would, and says what it found.
SEARCH = """<script>
setTimeout(() => {
  const field = document.querySelector("[data-md-component=search-query]");
  field.focus();
  field.value = "glossary";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.dispatchEvent(new Event("keyup", { bubbles: true }));
}, 2000);
setTimeout(() => {
  const found = [...document.querySelectorAll(".md-search-result__item h1")];
  tell(found.map((title) => title.textContent.trim()));
}, 15000);
</script>"""
# Says whether the page, and which of its tables, are wider than their boxes without scrolling.
WIDTHS = """<script>
setTimeout(() => {
  const page = document.documentElement;
  const cut = [...document.querySelectorAll("table")].filter((table) => {
    const box = table.closest(".md-typeset__scrollwrap");
    return box === null || getComputedStyle(box).overflowX !== "auto";
  });
  tell({ width: innerWidth, wide: page.scrollWidth > page.clientWidth, cut: cut.length });
}, 3000);
</script>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def told(page, script, width, tmp_path):
    """Return what a script says of a page of the site that is opened from the disk."""
    text = page.read_text(encoding="utf-8")
    changed = page.with_name(f"asked-{page.name}")
    changed.write_text(text.replace("</body>", f"{TELL}{script}</body>"), encoding="utf-8")
    return ask(changed, width, tmp_path / "profile")


def test_the_search_answers_from_the_disk(site, tmp_path):
    assert "Glossary" in told(site / "index.html", SEARCH, 1300, tmp_path)


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize(
    "name",
    ["index", "results", "results/text", "results/paper", "recipe", "retrofit", "scale"]
    + ["which_tool", "notebook"],
)
def test_tables_scroll_in_their_boxes(site, name, width, tmp_path):
    found = told(site / f"{name}.html", WIDTHS, width, tmp_path)
    assert found == {"width": width, "wide": False, "cut": 0}
