"""The package as a whole: floor plan, public names, sizes of files, benchmarks."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter

import pytest
from forked import run_script
from scripts import ROOT, load_script

import layermem

SOURCES = ROOT / "src"
# Rooms of the packages, from the ground up.
FLOORS = [
    {"layermem_base.number_ranges"},
    {f"layermem_base.{room}" for room in ("files", "plugins")},
    {"layermem.ops"},
    {"layermem.models"},
    {"layermem.variants"},
    {"layermem.convert", "layermem.generation", "layermem.retrofit", "layermem.testing"},
    {"layermem_bench.config", "layermem_bench.statistics"},
    {"layermem_bench.text", "layermem_bench.tasks"},
    {"layermem_bench.run"},
    {"layermem_bench.costs", "layermem_bench.presets"},
    {"layermem_bench.analysis"},
    {"layermem_bench.evals"},
    {"layermem_bench.studies"},
    {"layermem_bench.pages"},
    {"layermem_bench.paper"},
    {"layermem_bench.cli"},
    {"layermem_bench.__main__"},
    {"layermem.__main__"},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
# What the core may import beside itself and the standard library: what it requires, and what
# transformers requires; and, in single files, what is there whenever they are imported.
CORE = {"torch", "transformers", "safetensors", "huggingface_hub", "numpy", "tokenizers"}
WHERE_ASKED_FOR = {
    "peft_adapters.py": {"peft"},
    "vllm.py": {"vllm"},
    "vllm_backend.py": {"vllm"},
}


def imports(path, package):
    """Return the absolute names a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name):
    """Return the room of a module: its first two names."""
    return ".".join(name.split(".")[:2])


def test_imports_point_downwards():
    for path in sorted(SOURCES.rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        room = room_of(".".join(parts))
        if parts[1] == "__init__":
            continue
        assert room in FLOOR, f"{path}: no such room"
        targets = {room_of(name) for name in imports(path, list(parts[:-1]))} - {room}
        up = [to for to in targets if to in FLOOR and FLOOR[to] >= FLOOR[room]]
        assert not up, f"{path} imports from {up}"


def test_the_core_imports_what_it_requires():
    for path in (SOURCES / "layermem").rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path, ["layermem"])}
        allowed = CORE | WHERE_ASKED_FOR.get(path.name, set())
        allowed |= {"layermem_bench"} if path.name == "__main__.py" else set()
        assert tops - {"layermem", "layermem_base"} - sys.stdlib_module_names <= allowed, path


# filelock and jinja2 are requirements of torch and transformers too.
BENCH = [
    *("accelerate", "datasets", "layermem_bench", "matplotlib", "rich", "scipy", "sklearn"),
    *("tyro", "zstandard"),
]


def run_alone(code):
    """Run code in a new interpreter, which has imported nothing."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_the_core_works_without_what_the_bench_requires(tmp_path):
    code = f"""
import sys
sys.modules.update(dict.fromkeys({BENCH}))
import torch, layermem
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
ids = torch.arange(8)[None]
for name in layermem.list_variants():
    layermem.build(name, **sizes)(ids, labels=ids).loss.backward()
model = layermem.build("lime", **sizes)
model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)
model.save_pretrained({str(tmp_path / "native")!r})
assert type(AutoModelForCausalLM.from_pretrained({str(tmp_path / "native")!r})) is type(model)
host = LlamaForCausalLM(LlamaConfig(intermediate_size=16, **sizes))
layermem.attach(host)
host.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)
host.save_pretrained({str(tmp_path / "attached")!r})
assert layermem.router_parameters(
    AutoModelForCausalLM.from_pretrained({str(tmp_path / "attached")!r})
)
"""
    run_alone(code)


TRAINING_STACK = {
    *("layermem", "torch", "transformers", "huggingface_hub", "datasets", "pyarrow"),
    *("sklearn", "scipy", "matplotlib"),
}


@pytest.mark.parametrize("command", ["--help", "train tiny-lm --help", "list presets"])
def test_what_trains_nothing_answers_without_the_training_stack(command):
    code = f"""
import sys
from layermem_bench.__main__ import main
sys.argv[1:] = {command.split()}
try:
    main()
except SystemExit as left:
    assert not left.code
assert not {TRAINING_STACK} & set(sys.modules)
"""
    run_alone(code)


def test_pages_are_drawn_without_torch():
    rooms = ", ".join(f"layermem_bench.pages.{name}" for name in ("analysis", "eval", "study"))
    run_alone(f"import sys, {rooms}\nassert 'torch' not in sys.modules")


def test_public_names():
    names = """
    LimeConfig LimeForCausalLM LimeModel LimeRouter PlainConfig PlainForCausalLM PlainModel RECIPE
    Seams attach build detach list_variants load_attached load_routers route router_parameters
    save_routers trainable
    """
    assert sorted(layermem.__all__) == names.split()
    assert all(hasattr(layermem, name) for name in layermem.__all__)
    # A mapping has no docstring of its own.
    for name in {*layermem.__all__} - {"RECIPE"}:
        assert getattr(layermem, name).__doc__, f"{name} has no docstring"
    assert "lime" in layermem.list_variants()
    assert re.fullmatch(r"\d+\.\d+\.\d+", layermem.__version__)


def tracked():
    try:
        return load_script("docs/file_map.py").tracked_files()
    except subprocess.CalledProcessError:
        pytest.skip("not a git checkout: which files belong is not known")


# Lines of Python that a room may have. A number may fall; it rises by what another room gives.
ROOMS = {
    "src/layermem": 9_979,
    "src/layermem/ops": 1_348,
    "src/layermem/models": 3_389,
    "src/layermem/variants": 2_991,
    "src/layermem/retrofit": 1_481,
    "src/layermem/convert": 240,
    "src/layermem/generation": 61,
    "src/layermem_base": 306,
    "src/layermem_bench": 16_204,
    "src/layermem_bench/analysis": 1_019,
    "src/layermem_bench/cli": 1_373,
    "src/layermem_bench/config": 914,
    "src/layermem_bench/costs": 729,
    "src/layermem_bench/evals": 1_629,
    "src/layermem_bench/pages": 1_487,
    "src/layermem_bench/paper": 1_260,
    "src/layermem_bench/run": 2_193,
    "src/layermem_bench/studies": 2_634,
    "src/layermem_bench/tasks": 1_626,
    "src/layermem_bench/text": 924,
    "tests": 21_900,
}
FILES = {
    "src/layermem/models/decoder.py": 300,
    "src/layermem/ops/route.py": 260,
    "src/layermem/variants/lime.py": 160,
    "src/layermem_bench/presets.py": 205,
    "src/layermem_bench/statistics.py": 185,
}


def test_rooms_keep_to_their_lines():
    lines = Counter()
    for path in (ROOT / name for name in tracked() if name.endswith(".py")):
        count = len(path.read_text(encoding="utf-8").splitlines())
        name = str(path.relative_to(ROOT))
        lines.update({room: count for room in ROOMS if name.startswith(f"{room}/")})
        lines.update({name: count} if name in FILES else {})
    over = {room: lines[room] for room, most in {**ROOMS, **FILES}.items() if lines[room] > most}
    assert not over
    for package, most in (("layermem", 75), ("layermem_bench", 100)):
        files = [name for name in tracked() if re.fullmatch(rf"src/{package}/.*\.py", name)]
        assert len(files) <= most, package


def test_the_makefile_names_tests_that_are_there():
    names = re.findall(r"tests/[\w/]*\w(?:\.py)?", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert names
    assert [n for n in names if not n.endswith("_") and not (ROOT / n).exists()] == []


def test_files_stay_small():
    for name in tracked():
        size = (ROOT / name).stat().st_size
        assert size < 500_000, f"{name} has {size} bytes"


@pytest.mark.parametrize(
    "command",
    [
        ["decode_step.py", "--shapes=4x32", "--repeats=1"],
        ["training_step.py", "--shapes=4x32", "--repeats=1"],
        ["beside_loops.py", "--shapes=4x32", "--repeats=1", "--variants=mudd"],
        pytest.param(["attached.py", "--shapes=4x32", "--repeats=1"], marks=pytest.mark.slow),
        ["memory.py", "--shapes=4x32", "--variants=lime"],
        ["gpu.py", "--smoke", "--repeats=1", "--minutes=60", "--columns", "plain", "lime"],
        ["traffic.py"],
        ["power.py", "--tables=20"],
        ["prosqa_shortcuts.py", "--records=40", "--folds=2"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.slow
def test_a_benchmark_runs(command, tmp_path):
    script, *options = command
    json = ["--json", str(tmp_path / "figures.json")] if "--repeats=1" in options else []
    status, *said = run_script(ROOT / "benchmarks" / script, [*options, *json], folder=tmp_path)
    assert status == 0, said
    assert not json or (tmp_path / "figures.json").stat().st_size


def test_the_page_of_gpus_is_what_its_script_writes(monkeypatch):
    for folder in ("benchmarks", "docs"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    script = importlib.import_module("gpu_figures")
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.fill_page(text, script.render(script.read_records(script.RESULTS)))
