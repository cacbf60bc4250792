"""The quickstart: both are trained, the table is printed, the page stands alone."""

import re
from dataclasses import replace

from launchers import MadeUp, use
from tiny import TINY

import layermem
from layermem_bench import cli
from layermem_bench.cli.quickstart import sentence
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.studies.result import StudyResult


class Saved(MadeUp):
    """Leaves a model without training it."""

    def train(self, run, folder):
        code = super().train(run, folder)
        layermem.build(run.variant, **TINY).save_pretrained(folder.final)
        return code


def test_it_trains_prints_and_writes_a_page(tmp_path, monkeypatch, capsys):
    here, out = use(Saved(right=lambda run: 0.5), monkeypatch), tmp_path / "out"
    asked = ["quickstart", "--out", str(out), "--examples", "640", "--epochs", "2", "--test", "12"]
    cli.main(asked)
    shown = capsys.readouterr().out
    assert "plain" in shown and "lime" in shown and "50.0%" in shown
    plain, lime = here.runs
    # The same seed, data and length.
    assert replace(lime, variant="plain", labels=plain.labels).id == plain.id
    assert (plain.max_steps, plain.task.examples, plain.task.test) == (20, 640, 12)
    text = (out / "index.html").read_text()
    for said in ("How they learn", "What it costs", lime.id, "<svg"):
        assert said in text
    assert not re.search(r'(src|href)="?(https?:)?//', text), "the page asks the network"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and len(text) < 1_000_000
    # What is trained is not trained again.
    cli.main(asked)
    assert len(here.begun) == 2
    result = read_result(StudyResult, out / "studies" / "quickstart")
    assert sentence(result).startswith("One seed") and "LIMe 50% of 20" in sentence(result)
