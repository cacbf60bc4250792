"""Plugins: the module of docs/variants.md, names that clash, errors in plugins, other processes."""

import json
import re
import shlex

import pytest
from forked import run_code
from scripts import ROOT, pass_contract

PAGE = (ROOT / "docs" / "variants.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
# The page's plugin; its task alone, which is quickly imported; and what tests its variant.
PLUGIN = "".join(code for code in BLOCKS if "import mine" not in code)
(TASK,) = (code for code in BLOCKS if "add_task(" in code)
(CHECKS,) = (code for code in BLOCKS if "import mine" in code)


@pytest.fixture(autouse=True)
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN, encoding="utf-8")
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


def test_the_parts_of_the_page_are_listed_and_train(tmp_path):
    # The study is planned only.
    quick = [
        [*words, "--dry-run"] if words[-2:] == ["--seeds", "1"] else words for words in COMMANDS
    ]
    assert sum("--dry-run" in words for words in quick) == 2
    shown = commands(tmp_path, *quick)
    assert {"first_values", "embedding_skip"} <= set(shown.split())
    assert "letters=7" in shown
    rows = (tmp_path / "runs" / "tiny-reversal-first_values-s0" / "metrics.jsonl").read_text()
    assert json.loads(rows.splitlines()[-1])["step"] == 20
    final = tmp_path / "runs" / "tiny-reversal-first_values-s0" / "final"
    assert "\nimport mine\n" in (final / "README.md").read_text(encoding="utf-8")


def test_the_checks_of_the_page_pass(tmp_path):
    status, _, errors = run(tmp_path, CHECKS)
    assert status == 0, errors[-3000:]


@pytest.mark.slow
def test_the_variants_of_the_page_and_of_the_example_pass_the_contract(tmp_path):
    files = tmp_path / "mine.py", ROOT / "examples" / "router_ideas.py"
    pass_contract(["first_values", "embedding_skip", "router_ideas"], files)


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


WRONG = {
    "error": ("import layermem\n1 / 0\n", "ZeroDivisionError", "wrong.py, line 2"),
    "import": ("import no_such_module\n", "no_such_module", "wrong.py, line 1"),
    "syntax": ("def f(:\n", "SyntaxError", "wrong.py, line 1"),
    "preset known": (
        "from layermem_bench.presets import get_preset, preset\n"
        "@preset\ndef tiny_lm():\n    return get_preset('tiny-aet-4')\n",
        "'tiny-lm'",
        "wrong.py, line 2",
    ),
}


@pytest.mark.parametrize("case", [*WRONG, "nosuch", "nosuch.py", "folder/json.py"])
def test_an_error_in_a_plugin_names_its_line_and_a_lost_one_its_name(case, tmp_path):
    name, code, named = case, "", [case]
    if case in WRONG:
        name, (code, *named) = "wrong.py", WRONG[case]
    # A module of this name is loaded already.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "json.py").write_text(TASK)
    (tmp_path / "wrong.py").write_text(code)
    status, _, errors = command(tmp_path, "--plugin", name, "list", "tasks")
    assert status == 1
    assert all(each in errors for each in named) and len(errors.splitlines()) == 1


def test_processes_that_a_command_starts_have_its_plugins(tmp_path):
    """In another folder, as a process of a run may be."""
    code = """
import subprocess, sys
from layermem_base.plugins import add_plugins
add_plugins(["task.py"])
asked = "from layermem_bench.tasks import registry; print(registry.get_task('reversal').options())"
done = subprocess.run([sys.executable, "-c", asked], check=True, cwd="/", capture_output=True)
print(done.stdout.decode())
"""
    status, shown, errors = run(tmp_path, code)
    assert status == 0, errors
    assert "'letters': 5" in shown
