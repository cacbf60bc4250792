"""benchmarks/gpu.py without a GPU: a smoke run, records, columns that fail, the page's figures."""

import gc
import importlib
import json
import weakref
from pathlib import Path
from unittest import mock

import pytest
import torch
from forked import run_script

ROOT = Path(__file__).parents[1]
MACHINE = {"device": "NVIDIA Test", "versions": "torch 2", "code": "abc"}
FIGURES = {"unit": "s", "figures": {"plain": 0.02}, "ratios": {"plain": 1.0}}


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


def test_a_column_that_cannot_run_is_a_result(load, monkeypatch):
    gpu = load("gpu")
    benchmark = gpu.Benchmark("cpu", repeats=2, smoke=True, columns=["llama", "plain", "mudd"])
    monkeypatch.setattr(gpu, "build_model", lambda name, *_: mock.Mock(to=lambda _: name))

    def prepare(name):
        if name == "llama":
            raise torch.OutOfMemoryError("tried to allocate")
        return lambda: sum(range(10_000))

    times, peaks = benchmark.measure({}, 60, prepare)
    for row in (times, peaks):
        assert row["failed"] == {"llama": "out of memory"}
        assert row["base"] == "plain"
        assert [*row["figures"]] == ["plain", "mudd"]
    assert times["rounds"] == 2
    times, _ = benchmark.measure({}, -1, prepare)
    assert set(times["failed"].values()) == {load("gpu_record").NO_TIME}
    assert times["figures"] == {}


def test_a_check_fails_where_no_buffer_is_shared(load, monkeypatch):
    """The speeds would be those of slots that go from layer to layer."""
    gpu = load("gpu")
    benchmark = gpu.Benchmark("cpu", smoke=True)
    monkeypatch.setattr(gpu.memories, "begin", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="no shared buffer"):
        benchmark.check(torch.float32, False)


def test_a_record_keeps_earlier_rows_of_the_same_machine(load, tmp_path):
    gpu_record, path = load("gpu_record"), tmp_path / "gpu.json"
    record = gpu_record.Record(path, MACHINE, smoke=False)
    record.add("training", "30M", "RuntimeError: no")
    record.add("training", "150M", FIGURES)
    record.add("training", "1B", {**FIGURES, "failed": {"mudd": gpu_record.NO_TIME}})
    again = gpu_record.Record(path, MACHINE, smoke=False)
    assert [row for row in ("30M", "150M", "1B") if again.has("training", row)] == ["150M"]
    again.add("training", "30M", FIGURES)
    assert again.has("training", "30M")
    assert not again.section("training")["failed"]
    for other in ({"machine": {**MACHINE, "code": "def"}}, {"machine": MACHINE, "smoke": True}):
        with pytest.raises(ValueError, match="--json"):
            gpu_record.Record(path, **{"smoke": False, **other})


def test_the_page_is_what_the_script_writes(load):
    gpu_figures = load("gpu_figures")
    text = gpu_figures.PAGE.read_text(encoding="utf-8")
    figures = gpu_figures.render(gpu_figures.read_records(gpu_figures.RESULTS))
    assert text == gpu_figures.fill_page(text, figures)


def test_figures_reach_their_places(load, tmp_path):
    gpu_figures, gpu = load("gpu_figures"), load("gpu")
    assert gpu.Benchmark("cpu").rows().keys() <= gpu_figures.TITLES.keys()
    path = tmp_path / "device.json"
    record = load("gpu_record").Record(path, MACHINE, smoke=False)
    record.add("training", "150M", {**FIGURES, "failed": {"llama": "out of memory"}})
    with pytest.raises(SystemExit, match="check has not passed"):
        gpu_figures.read_records(tmp_path)
    record.add("check", "float32", {"unit": "relative error", "figures": {"lime": 1e-7}})
    row = {"unit": "s", "figures": {"llama": 0.1}, "ratios": {"llama": 1}}
    record.add("training", "30M", row)
    page = gpu_figures.render(gpu_figures.read_records(tmp_path))
    assert "**Measured on one NVIDIA Test** (torch 2, sources abc)" in page
    assert "|  | plain | llama |" in page
    assert "| 150M | 20 ms (1.000) | out of memory |" in page
    path.write_text(path.read_text().replace('"smoke": false', '"smoke": true'))
    with pytest.raises(SystemExit, match="smoke run"):
        gpu_figures.read_records(tmp_path)


def test_a_graph_keeps_what_it_reads(load):
    """CUDA frees a tensor that Python drops, and a replay would read other numbers."""

    class Decoder:
        def __call__(self):
            pass

    decoder = Decoder()
    kept = weakref.ref(decoder)
    with mock.patch.object(torch, "cuda"):
        replay = load("gpu").capture(decoder)
    del decoder
    gc.collect()
    replay()
    assert kept() is not None
