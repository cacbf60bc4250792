"""Pages: what is given is shown, escaped, in one file that stands alone, also in a browser."""

import numpy as np
import pytest
from browser import CHROMIUM, TELL, ask

from layermem_bench.pages import figures, page

EVIL = "<script>alert(1)</script> & co"


def test_everything_given_is_shown_and_escaped(tmp_path):
    svg = figures.drawing(figures.curves({"a": ([1, 2], [3, 4])}, across="steps", up="loss"))
    links = [page.Link("r1", "run-1"), page.Link("r2", "run-2")]
    link = page.Link(f"run {EVIL}", 'run-1" onclick="alert(1)')
    rows = [[f"cell {EVIL}"], [link], [links], [links[0]]]
    section = page.Section(
        title=f"title {EVIL}",
        paragraphs=[f"text {EVIL}"],
        tables=[page.Table(header=["h"], rows=rows, caption=f"source {EVIL}")],
        figures=[page.Figure(svg=svg, caption=f'caption {EVIL} "')],
        commands=[f"layermem {EVIL}"],
    )
    runs = page.Table(header=["run"], rows=[["r1"], ["r2"]], marks=["run-1", "run-2"])
    path = tmp_path / "deep" / "page.html"
    sections = [section, page.Section(title="runs", tables=[runs])]
    page.write_page(page.Page(title=EVIL, lead=EVIL, sections=sections), path)
    text = path.read_text()
    assert "<script>alert" not in text and svg in text and "<nav>" not in text
    for shown in ("title", "run", "text", "cell", "source", "caption", "layermem"):
        assert f"{shown} &lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    assert '<td><a href="#run-1">r1</a> <a href="#run-2">r2</a></td>' in text
    assert text.count('id="run-1"') == 1 and ' onclick="' not in text
    assert section.tables[0].texts()[2:] == [["r1 r2"], ["r1"]]
    page.write_page(page.Page(title="t", lead="l", sections=sections * 4), path)
    assert path.read_text().count('<a href="#part-') == 8


def test_a_table_is_columns_over_rows_without_empty_ones():
    columns = {"n": str, "nothing": lambda n: "", "square": lambda n: str(n * n)}
    made = page.Table.over([1, 2], columns, "c")
    assert made.header == ["n", "square"] and made.texts() == [["1", "1"], ["2", "4"]]
    assert page.Table.of_columns({"n": ["1", "2"], "square": ["1", "4"]}, "c") == made


# What the test adds: errors are gathered from the start, switches are used at the end.
GATHER = """<script>
window.errors = [];
const note = (e) => window.errors.push(e.message || String(e.target.outerHTML));
window.addEventListener("error", note, true);
window.addEventListener("securitypolicyviolation", (e) => window.errors.push(e.blockedURI));
</script>"""
POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    'img-src data:">'
)
USE = """<script>
const seen = () => [...document.querySelectorAll(".switch")].map(
  (box) => [...box.querySelectorAll("figure")].map((f) => f.offsetParent !== null));
const before = seen();
for (const box of document.querySelectorAll(".switch")) {
  const choice = box.querySelector("select");
  choice.selectedIndex = 0;
  choice.dispatchEvent(new Event("change"));
}
const dead = [...document.querySelectorAll("a")].map((a) => a.getAttribute("href")).filter(
  (href) => !href.startsWith("#") || !document.getElementById(href.slice(1)));
tell({ before, after: seen(), dead, errors: window.errors, width: innerWidth,
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth });
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1300, 400])
def test_in_a_browser_switches_and_links_work_and_nothing_fails(width, tmp_path):
    drawn = [figures.heatmap(np.full((2, 3), i / 4), across="x", up="y") for i in range(3)]
    options = [(f"layer {i}", page.Figure(svg=svg, caption="")) for i, svg in enumerate(drawn)]
    switches = [
        page.Switch(label="one", options=options),
        page.Switch(label="two", options=options[:2]),
    ]
    wide = [[page.Link("r1", "run-1"), *("a long cell of a wide table",) * 9]]
    tables = [page.Table(header=["", *"bcdefghij"], rows=wide, marks=["run-1"])]
    section = page.Section(
        title="A part", tables=tables, figures=[options[1][1]], switches=switches
    )
    path = tmp_path / "page.html"
    page.write_page(page.Page(title="A page", lead="For a test.", sections=[section]), path)
    text = path.read_text().replace("<head>", f"<head>{POLICY}{GATHER}")
    path.write_text(text.replace("</body>", f"{TELL}{USE}</body>"))
    told = ask(path, width, tmp_path / "profile")
    assert (told["width"], told["errors"], told["dead"], told["wide"]) == (width, [], [], False)
    assert told["before"] == [[False, False, True], [False, True]]
    assert told["after"] == [[True, False, False], [True, False]]
