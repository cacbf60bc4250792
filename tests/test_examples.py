"""The examples run as a user starts them, at tiny sizes."""

import re
from pathlib import Path

import pytest
import torch
from forked import run_code, run_script
from scripts import load_script

from layermem.ops.route import naive

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = {
    "train_and_compare.py": ["--seeds=1", "--steps=2", "--problems=4", "--out=runs"],
    "add_memory_to_llama.py": ["--steps=2", "--out=runs"],
    "encoders.py": ["--steps=40", "--out=runs"],
    "squad.py": ["--steps=60", "--model=roberta", "--out=runs"],
    "look_inside.py": ["--sequences=2", "--length=16"],
    "in_your_own_model.py": ["--steps=2"],
    "lime_in_forty_lines.py": [],
}
# Better than a guess, and the same once it is loaded again.
SCORES = r"(?s)without memory: {0} (0\.[7-9]|1).*\nwith memory: {0} (\S+)\n.*loaded .*: {0} \2\n"
OUTPUT = {
    "train_and_compare.py": r"seed 0: plain \d+.\d% solved, LIMe \d+.\d%",
    "add_memory_to_llama.py": r"largest change of a logit before training: \d.\de(\+00|-0[6-9])",
    "encoders.py": SCORES.format("accuracy"),
    "squad.py": SCORES.format("F1"),
    "look_inside.py": r"\[\[1\. +0\. +0\. +0\. +\]",
    "in_your_own_model.py": r"(?s)plain .*lime .*mudd .*lime\+mudd +loss",
    "lime_in_forty_lines.py": r"^loss [56]\.\d+ to [12]\.\d+; last router: 4 x 16 weights\n$",
}


@pytest.fixture
def start(tmp_path):
    """Return a function that runs an example in a folder of its own and returns its output."""

    def run(script, options):
        status, output, errors = run_script(EXAMPLES / script, options, folder=tmp_path)
        assert status == 0, output + errors
        return output

    return run


def test_there_are_scripts_a_notebook_and_a_plugin():
    """The notebook is run in tests/real, on the model that it is about."""
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix)
    assert names == sorted([*TINY, "smollm2_notebook.py", "router_ideas.py", "llama2c.py"])


def test_the_router_in_forty_lines_computes_what_ours_does():
    router = load_script("examples/lime_in_forty_lines.py").Router(2, 3).double()
    slots = torch.randn(3, 4, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    outs = [router([*slots]), naive([*slots], router.weight)]
    grads = [torch.autograd.grad(out.sin().sum(), (slots, router.weight)) for out in outs]
    torch.testing.assert_close((outs[0], *grads[0]), (outs[1], *grads[1]), rtol=0, atol=1e-12)


IDEAS = """
import sys, torch, layermem
sys.path.insert(0, sys.argv[1])
import router_ideas

sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48}
sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
ids = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))

def logits(name, **fields):
    torch.manual_seed(0)
    return layermem.build(name, **sizes, **fields)(ids).logits

recipe = logits("lime", **layermem.RECIPE)
ideas = [logits("router_ideas", idea=idea) for idea in ("none", "by_token", "normed")]
print([torch.allclose(each, recipe, rtol=0, atol=1e-5) for each in ideas])
"""


def test_ideas_for_routers_begin_as_the_recipe(tmp_path):
    # In a process of its own: a plugin's variant would be one of the tests' own.
    status, output, errors = run_code(IDEAS, str(EXAMPLES), folder=tmp_path)
    assert (status, output) == (0, "[True, True, False]\n"), errors


def test_the_page_of_the_notebook_is_made_of_its_cells():
    page = (EXAMPLES.parent / "docs/notebook.md").read_text(encoding="utf-8")
    source = (EXAMPLES / "smollm2_notebook.py").read_text(encoding="utf-8")
    cells = list(load_script("docs/notebook_page.py").cells(source))
    code = [text for prose, text in cells if not prose]
    assert re.findall(r"(?s)```python\n(.*?)\n```", page) == code
    assert all(text in page for _, text in cells)


RUNS = [*TINY, "encoders.py --model=deberta", "squad.py --model=deberta"]
FAST = {*TINY} - {"train_and_compare.py", "add_memory_to_llama.py"}


@pytest.mark.parametrize(
    "run", [run if run in FAST else pytest.param(run, marks=pytest.mark.slow) for run in RUNS]
)
def test_an_example_runs(run, start, tmp_path):
    script, *options = run.split()
    assert re.search(OUTPUT[script], start(script, [*TINY[script], *options]))
    # Nothing is written but where the options say, and what it printed.
    assert {path.name for path in tmp_path.iterdir() if not path.stem.isdigit()} <= {"runs"}


@pytest.mark.slow
def test_what_one_example_saves_another_reads(start):
    start("add_memory_to_llama.py", TINY["add_memory_to_llama.py"])
    output = start("look_inside.py", ["--model=runs", *TINY["look_inside.py"]])
    assert "share that layer i (row) reads" in output
