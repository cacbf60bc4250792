"""Pages: what is given is shown, escaped, in one file that stands alone, also in a browser."""

import numpy as np
import pytest
from browser import CHROMIUM, TELL, ask

from layermem_bench.pages import figures, page

EVIL = "<script>alert(1)</script> & co"


def a_page(text=EVIL, sections=1, **section):
    part = page.Section(
        title=f"title {text}",
        paragraphs=[f"text {text}"],
        tables=[page.Table(header=["h"], rows=[[f"cell {text}"]], caption=f"source {text}")],
        commands=[f"layermem {text}"],
        **section,
    )
    return page.Page(title=text, lead=text, sections=[part] * sections)


def test_everything_given_is_shown_and_escaped(tmp_path):
    shown = page.Figure(svg="<svg>1</svg>", caption=f'caption {EVIL} "')
    folded = page.Figure(svg="<svg>2</svg>", caption="two", fold=f"fold {EVIL}")
    path = tmp_path / "deep" / "page.html"
    page.write_page(a_page(figures=[shown, folded]), path)
    text = path.read_text()
    assert "<script" not in text and "<nav>" not in text
    assert text.index("<svg>1</svg>") < text.index("<details>") < text.index("<svg>2</svg>")
    for what in ("title", "text", "cell", "source", "caption", "fold", "layermem"):
        assert f"{what} &lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    page.write_page(a_page(sections=8), path)
    assert path.read_text().count('<a href="#part-') == 8


def test_a_table_has_the_columns_that_have_something_in_them():
    rows = [{"": "", "n": "1", "nothing": ""}, {"": "a", "n": "2", "more": "3"}]
    made = page.Table.of(rows, "c")
    assert made == page.Table(
        header=["", "n", "more"], rows=[["", "1", ""], ["a", "2", "3"]], caption="c"
    )
    assert made.without(["n", "absent"]).rows == [["", ""], ["a", "3"]]
    assert page.Table.of([]).rows == []


# What the test adds: nothing may be fetched, errors are gathered from the start.
GATHER = """<meta http-equiv="Content-Security-Policy" content="default-src 'none';
style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"><script>
window.errors = [];
const note = (e) => window.errors.push(e.message || String(e.target.outerHTML));
window.addEventListener("error", note, true);
window.addEventListener("securitypolicyviolation", (e) => window.errors.push(e.blockedURI));
</script>"""
USE = """<script>
const dead = [...document.querySelectorAll("a")].map((a) => a.getAttribute("href")).filter(
  (href) => !href.startsWith("#") || !document.getElementById(href.slice(1)));
tell({ dead, errors: window.errors, width: innerWidth,
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth });
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1300, 400])
def test_in_a_browser_a_page_fits_links_lead_somewhere_and_nothing_fails(width, tmp_path):
    plot = figures.heatmap(np.full((2, 3), 0.5), across="x", up="y")
    path = tmp_path / "page.html"
    long = "a long line of a page " * 20
    page.write_page(a_page(long, sections=8, figures=[figures.drawing(plot)]), path)
    text = path.read_text().replace("<head>", f"<head>{GATHER}")
    path.write_text(text.replace("</body>", f"{TELL}{USE}</body>"))
    told = ask(path, width, tmp_path / "profile")
    assert told == {"width": width, "errors": [], "dead": [], "wide": False}
