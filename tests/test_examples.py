"""The examples run as a user starts them, at tiny sizes."""

import importlib.util
import re
from pathlib import Path

import pytest
from forked import run_script

EXAMPLES = Path(__file__).parents[1] / "examples"
DOCS = EXAMPLES.parent / "docs"
TINY = {
    "train_and_compare.py": ["--seeds=1", "--steps=2", "--problems=4", "--out=runs"],
    "add_memory_to_llama.py": ["--steps=2", "--out=runs"],
    "look_inside.py": ["--sequences=2", "--length=16"],
}
OUTPUT = {
    "train_and_compare.py": r"seed 0: plain \d+.\d% solved, LIMe \d+.\d%",
    "add_memory_to_llama.py": r"largest change of a logit before training: \d.\de(\+00|-0[6-9])",
    "look_inside.py": r"\[\[1\. +0\. +0\. +0\. +\]",
}


@pytest.fixture
def start(tmp_path):
    """Return a function that runs an example in a folder of its own and returns its output."""

    def run(script, options):
        status, output, errors = run_script(EXAMPLES / script, options, folder=tmp_path)
        assert status == 0, output + errors
        return output

    return run


def test_there_are_three_and_a_notebook():
    """The notebook is run in tests/real, on the model that it is about."""
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix)
    assert names == sorted([*TINY, "smollm2_notebook.py"])


def test_the_page_of_the_notebook_is_made_of_its_cells():
    page = (DOCS / "notebook.md").read_text(encoding="utf-8")
    source = (EXAMPLES / "smollm2_notebook.py").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("notebook_page", DOCS / "notebook_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cells = list(module.cells(source))
    assert re.findall(r"(?s)```python\n(.*?)\n```", page) == [
        text for prose, text in cells if not prose
    ]
    assert all(text in page for _, text in cells)


@pytest.mark.parametrize(
    "script", ["look_inside.py", *(pytest.param(n, marks=pytest.mark.slow) for n in [*TINY][:2])]
)
def test_an_example_runs(script, start, tmp_path):
    assert re.search(OUTPUT[script], start(script, TINY[script]))
    # Nothing is written but where the options say, and what it printed.
    assert {path.name for path in tmp_path.iterdir() if not path.stem.isdigit()} <= {"runs"}


@pytest.mark.slow
def test_what_one_example_saves_another_reads(start):
    start("add_memory_to_llama.py", TINY["add_memory_to_llama.py"])
    output = start("look_inside.py", ["--model=runs", *TINY["look_inside.py"]])
    assert "share that layer i (row) reads" in output
