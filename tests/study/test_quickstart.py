"""The quickstart: both are trained, the table is printed, the page stands alone."""

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from launchers import InThisProcess, use

from layermem_bench import cli
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.study import StudyResult
from layermem_bench.study import quickstart


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
    _, out, shown = done
    assert "plain decoder" in shown and "LIMe" in shown and "%" in shown
    results = [json.loads(run_of(out, v).result.read_text()) for v in ("plain", "lime")]
    assert [r["count"] for r in results] == [12, 12]
    # The same data and order: the first batch is one.
    first = [run_of(out, variant).rows()[0] for variant in ("plain", "lime")]
    assert first[0]["tokens"] == first[1]["tokens"]
    text = (out / "index.html").read_text()
    for said in (
        "How they learn",
        "What it costs",
        "first three that LIMe failed",
        "neither is seen ahead",
        results[1]["run_id"],
    ):
        assert said in text
    # Right answers, four curves, the routers.
    assert text.count("<svg") == 6
    assert not re.search(r'(src|href)="?(https?:)?//', text), "the page asks the network"
    assert len(text) < 1_000_000
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', text)
    assert len(re.findall(r"\.(?= [A-Z]|$)", lead)) == 4
    last = re.findall(r"<pre>(.*?)</pre>", text)[-3:]
    assert last == [quickstart.ACTIVATE, *quickstart.FURTHER]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.fixture(scope="module")
def result(done):
    return read_result(StudyResult, done[1] / "studies" / "quickstart")


@pytest.mark.parametrize(
    ("lime", "plain", "first"),
    [(0.47, 0.31, "lime"), (0.31, 0.47, "plain"), (0.47, 0.46, None), (0.4, 0.4, None)],
)
def test_what_is_said_follows_from_the_figures(result, lime, plain, first):
    share = {"lime": lime, "plain": plain}
    runs = [
        replace(
            run,
            solved=replace(
                run.solved,
                accuracy=share[run.arm],
                interval=(share[run.arm] - 0.02, share[run.arm] + 0.02),
            ),
        )
        for run in result.runs
    ]
    assert quickstart.ahead(**{run.arm: run.solved for run in runs}) == first
    said = quickstart.sentence(replace(result, runs=tuple(runs)))
    assert ("LIMe has learnt faster" in said) == (first == "lime")
    assert ("decoder has learnt faster" in said) == (first == "plain")
    assert f"LIMe {lime:.1%}" in said


def test_attempts_at_one_problem_stand_side_by_side(done, result, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(done[1], again)
    moved = replace(
        result,
        runs=tuple(replace(run, folder=str(run_of(again, run.arm).path)) for run in result.runs),
    )
    attempts = run_of(again, "plain").attempts
    attempts.write_text("".join(reversed(attempts.read_text().splitlines(keepends=True))))
    before, after = map(quickstart.attempt_sections, (result, moved))
    assert before == after and any(section.attempts for section in before)


def test_the_last_lines_say_how_to_go_on(monkeypatch, tmp_path):
    from layermem_bench.cli.quickstart import how_to_call

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert how_to_call() == f"{sys.executable} -m layermem"
    program = Path(sys.executable).with_name("layermem")
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    assert how_to_call() == ".venv/bin/layermem"
    monkeypatch.setenv("PATH", str(program.parent))
    assert how_to_call() == "layermem"


def test_what_is_trained_is_not_trained_again(done, capsys):
    asked, out, _ = done
    metrics = run_of(out, "lime").metrics
    before = metrics.stat().st_mtime_ns
    cli.main(asked)
    assert metrics.stat().st_mtime_ns == before
    assert "LIMe" in capsys.readouterr().out


def test_a_missing_result_is_named(done, tmp_path):
    options, out, _ = done
    again = tmp_path / "again"
    shutil.copytree(out, again)
    run_of(again, "lime").result.unlink()
    options = [str(again) if word == str(out) else word for word in options]
    study = again / "studies" / "quickstart" / "study.json"
    before = study.read_text()
    with pytest.raises(SystemExit, match=r"lime-s0 has ended without a result.json"):
        cli.main(options)
    assert study.read_text() == before


def counts_of_rows(folder):
    """Return the problems of each level that the only model of an evaluation was asked."""
    (part,) = read_result(EvalResult, folder).parts
    return {row.name: score.count for row in part.rows for score in row.scores.values()}


def test_a_trained_model_solves_other_problems(done, capsys, tmp_path):
    run = run_of(done[1], "lime").path
    asked = ["eval", str(run), "--tasks", "arithmetic", "--out", str(tmp_path)]
    cli.main([*asked, "--limit", "20", "--batch-size", "8"])
    assert "chance" in capsys.readouterr().out
    assert counts_of_rows(tmp_path) == {"operands: 4": 20, "all": 20}
    cli.main([*asked, "--limit", "5", "--task-options", "operands=3", "--split", "validation"])
    assert counts_of_rows(tmp_path) == {"operands: 3": 5, "all": 5}
    for more, named in (
        (["operand_max=300", "value_max=300"], "the tokenizer has no token for"),
        (["operand=3"], "no option operand"),
        (["held_out=expression"], "trained on problems split by held_out=strict"),
    ):
        with pytest.raises(SystemExit, match=named):
            cli.main([*asked, "--limit", "20", "--task-options", *more])
    with pytest.raises(SystemExit, match="expected a run folder"):
        cli.main(["eval", str(tmp_path), "--tasks", "arithmetic"])
