"""The first screens say the answer in few words, and lead to the others' in one click."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Pages, and the heading below their first screen.
FIRST = {
    "README.md": "## Two commands",
    "docs/index.md": "## Install",
    "docs/results.md": "## A page for each topic",
    "docs/recipe.md": "## In short",
    "docs/retrofit.md": "## From a model to an adapter",
    "docs/scale.md": "## Preparing text",
    "docs/results/paper.md": "## The paper's claims, in one table",
}
# Where a stranger's questions are answered: does it help, on my model, which one, how, is it true?
ANSWERS = {
    *("results.md", "results/text.md", "retrofit.md", "results/costs.md"),
    *("recipe.md", "scale.md", "results/paper.md"),
}


def first_screen(page):
    start, heading, _ = (ROOT / page).read_text(encoding="utf-8").partition(FIRST[page])
    assert heading
    # What a reader sees of links, pictures and bold words.
    return re.sub(r"!?\[(.*?)\]\(\S+\)", r"\1", start).replace("**", "")


def prose(text):
    """Return the paragraphs, each in a line, without headings, tables, comments and code."""
    parts = re.split(r"\n\s*\n", re.sub(r"(?s)```.*?```", "", text))
    return [" ".join(part.split()) for part in parts if not re.match(r"[#|<!]", part.strip())]


def sentences(text):
    return re.split(r"(?<=[.?!])\s+(?=[\"A-Z`\[])", text)


@pytest.mark.parametrize("page", FIRST)
def test_no_sentence_of_a_first_screen_is_long(page):
    paragraphs = prose(first_screen(page))
    assert len(paragraphs) >= 2
    for paragraph in paragraphs:
        for sentence in sentences(paragraph):
            assert len(sentence.split()) <= 30, sentence


def test_the_results_begin_with_the_answer():
    before, _, after = first_screen("docs/results.md").partition("<!-- answers -->\n")
    table = re.match(r"(?:\|.*\n)*", after)[0]
    words = re.findall(r"[A-Za-z][\w'-]+", f"{before}{table}")
    assert table.count("\n") >= 10 and len(words) < 250, len(words)
    assert prose(before)[0].startswith("Should you use layer memory?")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_answer_is_one_click_away(page):
    start = (ROOT / page).read_text(encoding="utf-8").partition(FIRST[page])[0]
    links = re.findall(r"\]\(([^)#]+)", start)
    assert {link.removeprefix("docs/") for link in links} >= ANSWERS


def test_how_many_claims_hold_is_said_as_counted():
    said = " ".join(prose(first_screen("docs/results/paper.md"))).lower()
    page = (ROOT / "docs/results/paper.md").read_text(encoding="utf-8")
    table = page.partition("<!-- verdicts -->\n")[2].partition("\n\n")[0]
    _, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    counts = {row[0]: [int(re.search(r"\d+", cell)[0]) for cell in row[1:]] for row in rows}
    sums = [sum(column) for column in zip(*counts.values(), strict=True)]
    told = f"of {sum(sums)} differences {sums[0]} hold, {sums[1]} do not, and {sums[2]} are"
    assert told in said
    quality = counts["quality"]
    assert f"{quality[2]} of its {sum(quality)} differences are within noise" in said
    assert f"of the {quality[0]} that hold" in said
