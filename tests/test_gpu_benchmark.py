"""benchmarks/gpu.py without a GPU: a smoke run, records, columns that fail, the page's figures."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from forked import run_script

ROOT = Path(__file__).parents[1]


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a file of benchmarks/ or docs/."""
    for folder in ("benchmarks", "docs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module


@pytest.mark.slow
def test_a_smoke_run_measures_every_section(tmp_path):
    path, columns = tmp_path / "smoke.json", ["plain", "lime"]
    options = ["--smoke", "--repeats=2", "--minutes=60", f"--json={path}", "--columns", *columns]
    script = ROOT / "benchmarks" / "gpu.py"
    status, output, errors = run_script(script, options, folder=tmp_path)
    assert status == 0, (output, errors)
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"]
    assert {name: len(section["rows"]) for name, section in sections.items()} == {
        **{"check": 4, "training": 1, "memory": 1},
        **{"compiled": 1, "compiled memory": 1, "decoding": 2},
    }
    for name, section in sections.items():
        assert not section["failed"]
        for row in section["rows"].values() if name != "check" else ():
            assert [*row["figures"]] == columns
            assert not row["failed"]


def test_a_check_fails_where_no_buffer_is_shared(load, monkeypatch):
    """The speeds would be those of slots that go from layer to layer."""
    gpu = load("gpu")
    benchmark = gpu.Benchmark("cpu", smoke=True)
    monkeypatch.setattr(gpu.memories, "begin", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="no shared buffer"):
        benchmark.check(torch.float32, False)


def test_the_page_is_what_the_script_writes(load):
    gpu_figures = load("gpu_figures")
    text = gpu_figures.PAGE.read_text(encoding="utf-8")
    figures = gpu_figures.render(gpu_figures.read_records(gpu_figures.RESULTS))
    assert text == gpu_figures.fill_page(text, figures)
