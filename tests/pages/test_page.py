"""Pages: what is given is shown, escaped, in one file that stands alone."""

import re

from layermem_bench.pages import page

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
    assert not re.findall(r'(?:src|href)="(?!data:|#)|url\(|@import', text)
    assert text.index("<svg>1</svg>") < text.index("<details>") < text.index("<svg>2</svg>")
    for what in ("title", "text", "cell", "source", "caption", "fold", "layermem"):
        assert f"{what} &lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    page.write_page(a_page(sections=8), path)
    text = path.read_text()
    links = re.findall(r'<a href="#([^"]+)"', text)
    assert len(links) == 8 and all(f'<section id="{link}">' in text for link in links)


def test_a_table_has_the_columns_that_have_something_in_them():
    rows = [{"": "", "n": "1", "nothing": ""}, {"": "a", "n": "2", "more": "3"}]
    made = page.Table.of(rows, "c")
    assert made == page.Table(
        header=["", "n", "more"], rows=[["", "1", ""], ["a", "2", "3"]], caption="c"
    )
    assert made.without(["n", "absent"]).rows == [["", ""], ["a", "3"]]
    assert page.Table.of([]).rows == []
