"""Plugins: the module of the page, names that clash, errors in plugins, other processes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from forked import run_code

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
# The code of a plugin of one task, which is quickly imported.
TASK = BLOCKS[1]


@pytest.fixture(autouse=True)
def mine(tmp_path):
    (tmp_path / "mine.py").write_text("".join(BLOCKS), encoding="utf-8")
    (tmp_path / "task.py").write_text(TASK, encoding="utf-8")


def run(folder, code, *arguments, **variables):
    """Run code in a process of its own, as what a plugin makes known stays known."""
    return run_code(code, *arguments, folder=folder, **{"COLUMNS": "200", **variables})


def command(folder, *arguments, **variables):
    code = "import sys; from layermem_bench.cli import main; main(sys.argv[1:])"
    return run(folder, code, *arguments, **variables)


def commands(folder, *lines):
    """Run several commands in one process, and return what they print."""
    code = f"from layermem_bench.cli import main\nfor line in {lines!r}:\n    main(line)"
    status, shown, errors = run(folder, code)
    assert status == 0, errors[-3000:]
    return shown


def test_the_page_shows_three_short_parts():
    assert len(BLOCKS) == 3
    assert all(len(block.splitlines()) < 60 for block in BLOCKS)


def test_the_parts_of_the_page_are_listed_and_train(tmp_path):
    quick = [words for words in COMMANDS if "study" not in words]
    assert len(quick) == len(COMMANDS) - 2
    shown = commands(tmp_path, *quick)
    assert {"first_values", "reversal", "first-values"} <= set(shown.split())
    assert "letters=7" in shown
    rows = (tmp_path / "runs" / "tiny-reversal-first_values-s0" / "metrics.jsonl").read_text()
    assert json.loads(rows.splitlines()[-1])["step"] == 20
    final = tmp_path / "runs" / "tiny-reversal-first_values-s0" / "final"
    assert "\nimport mine\n" in (final / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_of_the_page_trains_in_processes_of_its_own(tmp_path):
    planned, trained = [words for words in COMMANDS if "study" in words]
    # Two rates and three seeds of two arms; then one seed is asked for, of shorter runs.
    assert "10 runs" in commands(tmp_path, planned)
    mine = tmp_path / "mine.py"
    text = mine.read_text(encoding="utf-8")
    for long, short in (
        ("max_steps=200", "max_steps=10"),
        (", rates=(3e-3, 1e-2)", ""),
        ("examples=5000", "examples=500"),
    ):
        assert text.count(long) == 1
        text = text.replace(long, short)
    mine.write_text(text, encoding="utf-8")
    commands(tmp_path, trained)
    result = json.loads((tmp_path / "runs" / "studies" / "first-values" / "study.json").read_text())
    (board,) = result["boards"]
    arms = [arm["name"] for arm in board["conditions"][0]["arms"]]
    assert arms == ["plain", "first_values"]
    assert len(list((tmp_path / "runs" / "tiny-reversal").glob("**/final"))) == 2


@pytest.mark.slow
def test_the_variant_of_the_page_passes_the_contract(tmp_path):
    chosen = "first_values and not compiled"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    done = subprocess.run(
        [*command, str(ROOT / "tests" / "test_contract.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LAYERMEM_PLUGINS": str(tmp_path / "mine.py")},
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 12


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--plugin", "task.py", "list", "tasks"], {}),
        (["list", "tasks", "--plugin=task"], {}),
        (["list", "tasks"], {"LAYERMEM_PLUGINS": "task.py"}),
    ],
    ids=["file", "module", "environment"],
)
def test_a_plugin_is_found(arguments, variables, tmp_path):
    status, shown, errors = command(tmp_path, *arguments, **variables)
    assert status == 0, errors
    assert "letters=5" in shown


def test_an_installed_plugin_is_found_by_its_entry_point(tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    metadata = site / "mine-1.0.dist-info"
    metadata.mkdir(parents=True)
    empty.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[layermem.plugins]\nmine = parts_of_mine\n")
    (site / "parts_of_mine.py").write_text(TASK)
    code = "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
    code += "from layermem_bench.cli import main; main(sys.argv[1:])"
    status, shown, errors = run(empty, code, str(site), "list", "tasks")
    assert status == 0, errors
    assert "letters=5" in shown


@pytest.mark.parametrize(
    ("code", "error", "line"),
    [
        ("import layermem\n1 / 0\n", "ZeroDivisionError", "wrong.py, line 2"),
        ("import no_such_module\n", "no_such_module", "wrong.py, line 1"),
        ("def f(:\n", "SyntaxError", "wrong.py, line 1"),
        (
            "from layermem_bench.tasks.registry import add_task, get_task\n"
            "add_task('mqar', get_task('mqar'))\n",
            "'mqar'",
            "wrong.py, line 2",
        ),
        (
            "from layermem_bench.presets import get_preset, preset\n"
            "@preset\ndef tiny_lm():\n    return get_preset('tiny-aet-4')\n",
            "'tiny-lm'",
            "wrong.py, line 2",
        ),
    ],
    ids=["error", "import", "syntax", "task known", "preset known"],
)
def test_an_error_in_a_plugin_names_its_line(code, error, line, tmp_path):
    (tmp_path / "wrong.py").write_text(code)
    status, _, errors = command(tmp_path, "--plugin", "wrong.py", "list", "tasks")
    assert status == 1
    assert error in errors and line in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("name", ["nosuch", "nosuch.py", "folder/json.py"])
def test_a_plugin_that_cannot_be_found_is_named(name, tmp_path):
    # A module of this name is loaded already.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "json.py").write_text(TASK)
    status, _, errors = command(tmp_path, "--plugin", name, "list", "tasks")
    assert status == 1
    assert name in errors and len(errors.splitlines()) == 1


SAVED = """
import layermem, mine
from layermem.models.card import imports_of

sizes = dict(vocab_size=9, hidden_size=8, num_hidden_layers=2, num_attention_heads=1)
for name in ("first_values", "first_values+mudd"):
    layermem.build(name, **sizes).save_pretrained(name)
of_a_script = type("OwnConfig", (mine.FirstValuesConfig,), {"__module__": "__main__"})
for config in (layermem.LimeConfig, of_a_script):
    print(imports_of(config), "---")
"""
# Opens what a card says how to open; an error of one is printed.
OPEN = """
for name in ("first_values", "first_values+mudd"):
    try:
        exec(open(f"{name}/README.md").read().split("```python")[1].split("```")[0].replace(
            "this-folder", name).replace("import mine", INSTEAD))
        print(type(model).__name__)
    except Exception as error:
        print(error)
"""


@pytest.mark.slow
def test_a_saved_model_says_what_to_import(tmp_path):
    status, shown, errors = run(tmp_path, SAVED)
    assert status == 0, errors
    ours, of_a_script, _ = shown.split("---")
    assert ours.count("import") == 1 and "import mine" in of_a_script
    assert "__main__" not in of_a_script
    # The second is named by the environment, in a process that has not imported layermem yet.
    named = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"INSTEAD = ''{OPEN}"],
        **{"capture_output": True, "text": True, "cwd": tmp_path},
        env={**os.environ, "LAYERMEM_PLUGINS": str(tmp_path / "mine.py")},
    )
    imported = run(tmp_path, f"INSTEAD = 'import mine '{OPEN}")
    for shown, errors in (imported[1:], (named.stdout, named.stderr)):
        assert shown.split()[0] == "FirstValuesForCausalLM" and len(shown.split()) == 2, errors
    _, shown, errors = run(tmp_path, f"INSTEAD = ''{OPEN}")
    assert "ForCausalLM" not in shown


def test_processes_that_a_command_starts_have_its_plugins(tmp_path):
    code = """
import multiprocessing
import subprocess
import sys

from layermem_bench.config.run import Task
from layermem_base.plugins import add_plugins
from layermem_bench.tasks.registry import vocabulary_and_length

if __name__ == "__main__":
    add_plugins(["task.py"])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        size, _ = pool.apply(vocabulary_and_length, (Task(name="reversal", examples=5),))
    assert size == 3 + 1 + 26
    task = "registry.get_task('reversal')"
    asked = f"from layermem_bench.tasks import registry; print({task}.options())"
    # In another folder, as a process of a run may be.
    subprocess.run([sys.executable, "-c", asked], check=True, cwd="/")
"""
    (tmp_path / "start.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "start.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert "'letters': 5" in done.stdout
