"""Pages in a browser: no error, nothing asked of the network, switches and links work."""

import numpy as np
import pytest
from browser import CHROMIUM, TELL, ask
from recorded import an_analysis, record

from layermem_bench.report import figures, page, study
from layermem_bench.report.study import given_sections
from layermem_bench.results.files import to_json
from layermem_bench.study.labelled_runs import compare_runs

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


def a_page():
    def figure(i):
        return page.Figure(
            svg=figures.rows(np.full((2, 3), i / 4), across="x", up="y"), caption=f"drawing {i}"
        )

    options = [(f"layer {i}", figure(i)) for i in range(3)]
    section = page.Section(
        title="A part",
        figures=[figure(4)],
        switches=[
            page.Switch(label="one", options=options, first=2),
            page.Switch(label="two", options=options[:2]),
        ],
    )
    return page.Page(title="A page", lead="For a test.", sections=[section])


def used(content, width, tmp_path):
    """Open a page, use its switches, return what was seen."""
    path = tmp_path / "page.html"
    page.write_page(content, path)
    text = path.read_text()
    text = text.replace("<head>", f"<head>{POLICY}{GATHER}")
    path.write_text(text.replace("</body>", f"{TELL}{USE}</body>"))
    report = ask(path, width, tmp_path / "profile")
    assert report["width"] == width
    assert report["errors"] == []
    assert report["dead"] == []
    assert not report["wide"], "the page scrolls sideways"
    return report


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1300, 400])
def test_switches_work_and_nothing_fails(width, tmp_path):
    report = used(a_page(), width, tmp_path)
    assert report["before"] == [[False, False, True], [True, False]]
    assert report["after"] == [[True, False, False], [True, False]]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1300, 400])
def test_the_page_about_runs(width, tmp_path):
    """Two seeds of two variants, one solved nothing yet, and an analysis of two."""
    runs = [
        record(tmp_path / f"{variant}-s{seed}", variant=variant, seed=seed, right=right)
        for variant, right in (("plain", 0.3), ("lime", 0.5))
        for seed in (0, 1)
    ]
    runs.append(record(tmp_path / "lime-s2", seed=2, right=0.5, ended=False))
    (tmp_path / "analysis.json").write_text(to_json(an_analysis(["a", "b"])))
    result = compare_runs(runs, tmp_path / "out", command="layermem report")
    content = study.build(result, given_sections(result, [tmp_path], (), None))
    report = used(content, width, tmp_path)
    # A switch of layouts for each model, one of heads for the one with routers.
    assert report["before"] == [[False, True], [False, True], [True]]
    assert report["after"] == [[True, False], [True, False], [True]]
