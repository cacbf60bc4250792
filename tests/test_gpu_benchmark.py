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
from tiny import needs_kernels

from layermem.ops import route

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
@needs_kernels
def test_a_smoke_run_measures_every_section(tmp_path):
    """What Inductor generates is for other tests; here it would take most of the time."""
    path = tmp_path / "smoke.json"
    options = ["--smoke", "--repeats=1", "--rows=1", "--minutes=60", f"--json={path}"]
    script = ROOT / "benchmarks" / "gpu.py"
    status, output, errors = run_script(script, options, folder=tmp_path, backend="aot_eager")
    assert status == 0, errors
    assert output.splitlines()[-1].startswith("missing, for --resume: bandwidth (32 kv heads)")
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"]
    assert len(sections) == 11
    failed = {
        (section, column)
        for section, content in sections.items()
        for row in content["rows"].values()
        for column in row.get("failed", {})
    }
    assert not failed


def test_a_column_out_of_memory_is_a_result(load):
    gpu_setup = load("gpu_setup")
    setup = gpu_setup.Setup(device="cpu", repeats=2, smoke=True)

    def step(model):
        if model != "fits":
            raise torch.OutOfMemoryError("tried to allocate")
        sum(range(1000))

    columns = {"llama": ("large", "naive"), "plain": ("fits", "naive"), "b": ("fits", "naive")}
    row = gpu_setup.measure_columns(setup, columns, step)
    assert row["failed"] == {"llama": "out of memory"}
    assert row["base"] == "plain"
    assert [*row["figures"]] == ["plain", "b"]
    assert row["rounds"] == 2
    row = gpu_setup.measure_columns(setup, {"llama": ("large", "naive")}, step)
    assert (row["failed"], row["figures"]) == ({"llama": "out of memory"}, {})


@pytest.mark.parametrize("path", ["GroupBuffer", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_column_is_what_its_name_says(load, dtype, path, monkeypatch):
    """Where no buffer is begun, "grouped" would be the time of another implementation."""
    if path is None:
        monkeypatch.setattr(route, "_is_eager", lambda embeds: False)
    gpu_setup = load("gpu_setup")
    setup = gpu_setup.Setup(device="cpu", repeats=1, smoke=True)
    row = load("gpu_training").measure_step(setup, "30M", ["grouped"], dtype=dtype, peers=["plain"])
    assert ("lime grouped" in row["figures"]) == (path is not None)
    assert ("lime grouped" in row["failed"]) == (path is None)
    assert row["paths"].get("lime grouped") == path


def test_a_record_keeps_earlier_rows_of_the_same_machine(load, tmp_path):
    record_type, path = load("gpu_record").Record, tmp_path / "gpu.json"
    record = record_type(path, MACHINE, smoke=False)
    record.add("training", "30M", "RuntimeError: no", {})
    record.add("training", "150M", FIGURES, {})
    again = record_type(path, MACHINE, smoke=False)
    assert again.rows("training") == {"150M": FIGURES}
    assert again.missing({"training": ["150M", "30M"]}) == {"training": ["30M"]}
    again.add("training", "30M", FIGURES, {})
    assert not again.failed("training")
    for other in ({"machine": {**MACHINE, "code": "def"}}, {"machine": MACHINE, "smoke": True}):
        with pytest.raises(ValueError, match="remove the file, or name another one by --json"):
            record_type(path, **{"smoke": False, **other})


def test_speeds_need_a_check_that_passed(load, tmp_path):
    gpu, record_type = load("gpu"), load("gpu_record").Record
    sections = {"check": {"a": None, "b": None}, "training": {"x": None, "y": None}}
    record = record_type(None, MACHINE, smoke=False)
    assert gpu.order_rows(sections, ["training", "check"], most=1) == [
        *(("check", "a"), ("check", "b"), ("training", "x"))
    ]
    record.add("check", "a", FIGURES, {})
    record.add("check", "b", "AssertionError: two repetitions differ", {})
    assert "has not passed (b)" in gpu.find_refused(record, sections)["triton"]
    record.add("check", "b", FIGURES, {})
    assert gpu.find_refused(record, sections) == {}
    setup = load("gpu_setup").Setup(device="cpu", repeats=1, smoke=True, refused={"triton": "no"})
    models, failed = load("gpu_setup").build_columns(setup, "30M", ["triton"], peers=["plain"])
    assert ([*models], failed) == (["plain"], {"lime triton": "no"})


def test_the_page_is_what_the_script_writes(load):
    gpu_figures = load("gpu_figures")
    text = gpu_figures.PAGE.read_text(encoding="utf-8")
    figures = gpu_figures.render(gpu_figures.read_records(gpu_figures.RESULTS))
    assert text == gpu_figures.fill_page(text, figures)


def test_figures_reach_their_places(load, tmp_path):
    gpu_figures, gpu = load("gpu_figures"), load("gpu")
    assert [*gpu_figures.TITLES] == [*gpu.SECTIONS]
    setup = load("gpu_setup").Setup(device="cpu", repeats=1, smoke=True)
    checks = load("gpu_checks").list_checks(setup)
    assert len(checks) == gpu_figures.CHECKS
    path = tmp_path / "device.json"
    record = load("gpu_record").Record(path, MACHINE, smoke=False)
    row = {**FIGURES, "failed": {"llama": "out of memory"}}
    record.add("training", "150M", row, {})
    assert gpu_figures.read_records(tmp_path), "a record without our kernels needs no check of them"
    figures = {"plain": 0.02, "lime triton": 0.02}
    record.add("training", "150M", {**row, "figures": figures, "ratios": figures}, {})
    with pytest.raises(SystemExit, match=r"check has not passed \(0 of 4\)"):
        gpu_figures.read_records(tmp_path)
    record.add("training", "150M", row, {})
    record.add("bandwidth", "8 kv heads", FIGURES, {})
    with pytest.raises(SystemExit, match=r"check has not passed \(0 of 4\)"):
        gpu_figures.read_records(tmp_path)
    record.add(
        "training", "30M", {"unit": "s", "figures": {"llama": 0.1}, "ratios": {"llama": 1}}, {}
    )
    for row in checks:
        record.add("check", row, {"unit": "relative error", "figures": {"triton": 1e-7}}, {})
    page = gpu_figures.render(gpu_figures.read_records(tmp_path))
    assert "**Measured on one NVIDIA Test** (torch 2, sources abc)" in page
    assert "|  | plain | llama |" in page
    assert "| 150M | 20 ms (1.000) | out of memory |" in page
    assert "Not measured: memory, " in page
    path.write_text(path.read_text().replace('"smoke": false', '"smoke": true'))
    with pytest.raises(SystemExit, match="smoke run"):
        gpu_figures.read_records(tmp_path)


def test_a_graph_keeps_what_it_reads(load):
    """CUDA frees a tensor that Python drops, and a replay would read other numbers."""
    decoding = load("gpu_decoding")

    class Decoder:
        def __call__(self):
            pass

    decoder = Decoder()
    kept = weakref.ref(decoder)
    with mock.patch.object(torch, "cuda"), mock.patch.object(decoding, "read_clock"):
        replay = decoding.capture(decoder)
    del decoder
    gc.collect()
    replay()
    assert kept() is not None


def test_a_failed_gpu_ends_the_process(load, tmp_path):
    gpu, record_type = load("gpu"), load("gpu_record").Record
    record = record_type(tmp_path / "gpu.json", MACHINE, smoke=False)
    setup = load("gpu_setup").Setup(device="cpu", repeats=1, smoke=True)
    broken = mock.patch.object(gpu, "free_memory", side_effect=RuntimeError("illegal access"))
    with broken, pytest.raises(SystemExit, match="run --resume"):
        gpu.run_row(setup, record, "training", "150M", lambda: FIGURES)
    assert record.failed("training") == {"150M": "RuntimeError: illegal access"}


def test_rows_with_graphs_come_last(load):
    sections = {"captured": {"a": None}, "decoding": {"b, CUDA graph": None, "b, eager": None}}
    rows = load("gpu").order_rows(sections, [*sections])
    assert rows == [("decoding", "b, eager"), ("decoding", "b, CUDA graph"), ("captured", "a")]
