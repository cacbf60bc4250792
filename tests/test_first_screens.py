"""The first screens say the answer in few words: README, the home of the site, the results."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Pages, and the heading below their first screen.
FIRST = {
    "README.md": "## Two commands",
    "docs/index.md": "## Install",
    "docs/results.md": "## A page for each topic",
}


def first_screen(page):
    start, heading, _ = (ROOT / page).read_text(encoding="utf-8").partition(FIRST[page])
    assert heading
    # What a reader sees of links and pictures.
    return re.sub(r"!?\[(.*?)\]\(\S+\)", r"\1", start)


def prose(text):
    """Return the paragraphs, each in a line, without headings, tables and comments."""
    parts = re.split(r"\n\s*\n", text)
    return [" ".join(part.split()) for part in parts if not re.match(r"[#|<!]", part.strip())]


def sentences(text):
    return re.split(r"(?<=[.?!])\s+(?=[\"A-Z`\[])", text)


@pytest.mark.parametrize("page", FIRST)
def test_no_sentence_of_a_first_screen_is_long(page):
    paragraphs = prose(first_screen(page))
    assert len(paragraphs) > 2
    for paragraph in paragraphs:
        for sentence in sentences(paragraph):
            assert len(sentence.split()) <= 30, sentence


def test_the_results_begin_with_the_answer():
    before, _, after = first_screen("docs/results.md").partition("<!-- answers -->\n")
    table = re.match(r"(?:\|.*\n)*", after)[0]
    words = re.findall(r"[A-Za-z][\w'-]+", f"{before}{table}")
    assert table.count("\n") >= 10 and len(words) < 250, len(words)
    assert prose(before)[0].startswith("Should you use layer memory?")
