"""The quickstart: both are trained, the table is printed, the page stands alone."""

import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from launchers import InThisProcess, use

from layermem_bench import cli
from layermem_bench.cli import quickstart_page as quickstart
from layermem_bench.config.result_files import read_result
from layermem_bench.run.folder import RunFolder
from layermem_bench.studies.result import StudyResult


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("quickstart") / "out"
    asked = ["quickstart", "--out", str(out), "--examples", "128", "--epochs", "1", "--test", "12"]
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        use(InThisProcess(), patch)
        cli.main(asked)
    return asked, out, shown.getvalue()


def run_of(out, variant):
    """Return the run folder of a variant."""
    return RunFolder(out / "quickstart" / f"{variant}-s0")


def test_it_trains_prints_and_writes_a_page(done):
    asked, out, shown = done
    assert "plain decoder" in shown and "LIMe" in shown and "%" in shown
    results = [json.loads(run_of(out, v).result.read_text()) for v in ("plain", "lime")]
    assert [r["count"] for r in results] == [12, 12]
    # The same data and order: the first batch is one.
    first = [run_of(out, variant).rows()[0] for variant in ("plain", "lime")]
    assert first[0]["tokens"] == first[1]["tokens"]
    text = (out / "index.html").read_text()
    for said in ("How they learn", "What it costs", results[1]["run_id"]):
        assert said in text
    # Right answers, four curves, the routers.
    assert text.count("<svg") == 6 and len(text) < 1_000_000
    assert not re.search(r'(src|href)="?(https?:)?//', text), "the page asks the network"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    # What is trained is not trained again.
    before = run_of(out, "lime").metrics.stat().st_mtime_ns
    cli.main(asked)
    assert run_of(out, "lime").metrics.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("lime", "plain", "said"),
    [(0.47, 0.31, "LIMe has"), (0.31, 0.47, "decoder has"), (0.47, 0.46, "neither is seen")],
)
def test_what_is_said_follows_from_the_figures(done, lime, plain, said):
    share = {"lime": lime, "plain": plain}
    result = read_result(StudyResult, done[1] / "studies" / "quickstart")
    runs = []
    for run in result.runs:
        ends = share[run.arm] - 0.02, share[run.arm] + 0.02
        runs.append(
            replace(run, solved=replace(run.solved, accuracy=share[run.arm], interval=ends))
        )
    sentence = quickstart.sentence(replace(result, runs=tuple(runs)))
    assert said in sentence and f"LIMe {lime:.1%}" in sentence
