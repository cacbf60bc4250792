"""What docs/variants.md shows passes the contract and trains, as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "variants.md").read_text(encoding="utf-8"), re.DOTALL
)
# The compiler alone takes longer than all the rest.
LEFT_OUT = "not compiled"


def named(code):
    """Return the name that the declaration in some code gives."""
    return re.findall(r'^declare\("(\w+)"', code, re.MULTILINE)[0]


@pytest.fixture
def package(tmp_path):
    """A folder on the path with both variants, and one module that imports them."""
    for code in SHOWN:
        (tmp_path / f"{named(code)}.py").write_text(code, encoding="utf-8")
    imports = "".join(f"import {named(code)}\n" for code in SHOWN)
    (tmp_path / "more_variants.py").write_text(imports, encoding="utf-8")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_two_are_shown_and_neither_is_long():
    assert list(map(named, SHOWN)) == ["neighbour", "depth_average"]
    for code in SHOWN:
        assert len(code.splitlines()) <= 90


def test_what_the_page_shows_passes_the_contract(package):
    chosen = f"({' or '.join(map(named, SHOWN))}) and {LEFT_OUT}"
    command = [sys.executable, "-m", "pytest", "-p", "more_variants", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "-k", chosen, str(ROOT / "tests" / "test_contract.py")],
        capture_output=True,
        text=True,
        env=package,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 2 * 12, done.stdout


def test_what_the_page_shows_trains_and_is_counted(package, tmp_path):
    code = f"""
import more_variants
from layermem.cli import main
for name in {list(map(named, SHOWN))}:
    main(["train", "tiny-aet-4", "--variant", name, "--out", name, "--max-steps", "2",
          "--task.examples", "200", "--task.validation", "4", "--task.test", "4"])
main(["costs", "tiny-lm", "--variants", "plain,neighbour,depth_average"])
main(["presets"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=package, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("neighbour") >= 2 and (tmp_path / "depth_average" / "final").exists()
