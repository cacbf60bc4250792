"""benchmarks/ladder.py: a ladder of sizes that stops when its time is over, and goes on."""

from types import SimpleNamespace

import pytest
from scripts import load_script

from layermem_bench.config.typed_dicts import read_result
from layermem_bench.studies.result import StudyResult


@pytest.mark.slow
def test_a_ladder_goes_on_where_its_time_was_over(tmp_path, monkeypatch, undrawn):
    """Two sizes, two arms, three rates, two seeds; each look at the clock takes a second."""
    ladder, now = load_script("benchmarks/ladder.py"), iter(range(10_000))
    monkeypatch.setattr(ladder, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setenv("LAYERMEM_CACHE", str(tmp_path / "cache"))
    source, out = tmp_path / "text.jsonl", tmp_path / "out"
    source.write_text("".join(f'{{"text": "{"ladder " * i}"}}\n' for i in range(200)))
    options = f"--source={source} --out={out} --seeds=2 --arms=plain,mudd --sizes toy toy-2".split()

    def go(seconds):
        with pytest.raises(SystemExit) as ended:
            ladder.main([*options, f"--minutes={seconds / 60}"])
        assert not ended.value.code
        return read_result(StudyResult, out / "studies/ladder/study.json")

    begun = go(20)
    assert {run.state for run in begun.runs} == {"ended", "not begun"} and len(begun.boards) == 1
    seen = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    whole = go(10_000)
    assert {run.state for run in whole.runs} == {"ended"} and len(whole.boards) == 2
    assert seen.items() <= {p: p.stat().st_mtime_ns for p in out.rglob("metrics.jsonl")}.items()
