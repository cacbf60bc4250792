"""Pages: what is given is shown, escaped, in one file that stands alone."""

import xml.etree.ElementTree as ElementTree

import numpy as np

from layermem_bench.cli.screen import show
from layermem_bench.report import figures, page

EVIL = "<script>alert(1)</script> & co"


def test_everything_given_is_shown_and_escaped(tmp_path):
    svg = figures.drawing(figures.curves({"a": ([1, 2], [3, 4])}, across="steps", up="loss"))
    link = page.Link(f"run {EVIL}", 'run-1" onclick="alert(1)')
    section = page.Section(
        title=f"title {EVIL}",
        paragraphs=[f"text {EVIL}"],
        tables=[
            page.Table(header=["h"], rows=[[f"cell {EVIL}"], [link]], caption=f"source {EVIL}")
        ],
        figures=[page.Figure(svg=svg, caption=f'caption {EVIL} "')],
        attempts=[
            page.Attempt(
                problem="1 + 1 =",
                expected="2",
                written=[("plain", f"3 {EVIL}", "a wrong result"), ("LIMe", "2", "")],
            )
        ],
        commands=[f"layermem {EVIL}"],
    )
    path = tmp_path / "deep" / "page.html"
    page.write_page(page.Page(title=EVIL, lead=EVIL, sections=[section]), path)
    text = path.read_text()
    assert "<script>alert" not in text and svg in text
    for shown in (
        "title",
        "run",
        "text",
        "cell",
        "source",
        "caption",
        "layermem",
    ):
        assert f"{shown} &lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    assert 'class="wrong">plain: a wrong result' in text and 'class="right">LIMe: right' in text
    assert "3 &lt;script&gt;" in text and 'onclick="' not in text
    assert text.count("<section ") == text.count("</section>") == 1


def test_links_lead_to_the_rows_they_name(tmp_path):
    svg = figures.drawing(figures.curves({"a": ([1, 2], [3, 4])}, across="steps", up="loss"))
    links = [page.Link("r1", "run-1"), page.Link("r2", "run-2")]
    table = page.Table(header=["", "runs"], rows=[["one", links[0]], ["two", links]])
    runs = page.Table(header=["run"], rows=[["r1"], ["r2"]], marks=["run-1", "run-2"])
    figure = page.Figure(svg=svg, caption="Drawn.")
    sections = [
        page.Section(title="numbers", tables=[table], figures=[figure]),
        page.Section(title="runs", tables=[runs]),
    ]
    path = tmp_path / "page.html"
    page.write_page(page.Page(title="t", lead="l", sections=sections), path)
    text = path.read_text()
    assert text.count('href="#run-1"') == 2 and text.count('href="#run-2"') == 1
    assert text.count('id="run-1"') == text.count('id="run-2"') == 1
    assert '<td><a href="#run-1">r1</a> <a href="#run-2">r2</a></td>' in text
    assert table.texts() == [["one", "r1"], ["two", "r1 r2"]]
    assert "<nav>" not in text
    page.write_page(page.Page(title="t", lead="l", sections=sections * 4), path)
    assert path.read_text().count('<a href="#part-') == 8


def test_names_are_names_and_no_markup_or_formula(capsys):
    name = "a_$b_{c$[/bold]<b>"
    show(page.Table(header=[name, "b"], rows=[[name, "[red]2"]]))
    assert capsys.readouterr().out.count(name) == 2
    svg = figures.drawing(figures.curves({name: ([1, 2], [3, 4])}, across="x", up=name))
    assert "a_$b_{c$[/bold]&lt;b&gt;" in svg
    assert "a_$b_{c$" in figures.bars({name: (0.1, 0.2, 0.3)}, up="y", chance=0.1)


def drawn():
    return {
        "curves": figures.drawing(
            figures.curves({"a": ([1, 2], [0.3, 0.4])}, across="x", up="y", scale="share")
        ),
        "bars": figures.bars({"a": (0.1, 0.2, 0.3), "b": (0.0, 0.0, 0.1)}, up="y", chance=0.1),
        "heatmap": figures.heatmap(np.eye(4), across="x", up="y"),
        "large": figures.heatmap(np.eye(40), across="x", up="y"),
    }


def test_drawings_are_xml_in_the_pages_own_ink_and_the_same_each_time():
    again = drawn()
    for name, svg in drawn().items():
        ElementTree.fromstring(svg)
        assert "currentColor" in svg and "#010203" not in svg, name
        assert svg == again[name]


def test_ids_of_two_drawings_do_not_meet():
    import re

    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawn().values()]
    assert sum(map(len, names)) == len(set().union(*names))
    for svg in drawn().values():
        used = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
        assert used <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_long_names_are_whole_on_a_narrow_screen(capsys):
    arms = [f"lime:router_sources={[list(range(40))]}:router_window={window}" for window in (2, 4)]
    arms = [arm.replace(" ", "") for arm in arms]
    assert min(map(len, arms)) > 120  # The width where there is no terminal.
    show(page.Table(header=["arm"], rows=[[arm] for arm in arms]))
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 120
    assert "".join(line.strip() for line in printed[1:]) == "".join(arms)
