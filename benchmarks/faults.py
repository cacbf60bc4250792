"""Whether the tests find faults: each of faults.txt is made in a copy of the source, then tested.

    python benchmarks/faults.py                  all of them, a quarter of an hour
    python benchmarks/faults.py route loss       those of files whose names hold one of the words

A fault that no test of its row finds, or whose text is not in the file once, ends this with 1.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^(?P<file>\S+): (?P<tests>.+)\n- (?P<right>.+)\n\+ (?P<wrong>.+)$", re.MULTILINE)


class Fault(NamedTuple):
    """One wrong line, and the tests of which one at least must fail."""

    file: str
    tests: str
    right: str
    wrong: str


def read_faults(words: list[str]) -> list[Fault]:
    """Return the faults of files whose names hold one of the words; without words, all."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    faults = [Fault(**row.groupdict()) for row in ROW.finditer(text)]
    return [f for f in faults if not words or any(word in f.file for word in words)]


def outcome(fault: Fault) -> str:
    """Return "found" with the test that fails, or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / fault.file
        text = path.read_text(encoding="utf-8")
        if text.count(fault.right) != 1:
            return f"STALE: its text is there {text.count(fault.right)} times"
        path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--no-header",
        ]
        marks = ["-m", "not slow and not gpu and not network", "--tb=no", "--durations=0"]
        env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run(
            [*command, *marks, *shlex.split(fault.tests)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=env,
        )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return f"found by {failed[1]}"
    return (
        "NOT FOUND" if done.returncode == 0 else f"FAILED: {done.stdout[-300:]}{done.stderr[-300:]}"
    )


def main() -> int:
    """Print a line for each fault; return 1 if one was not found."""
    faults = read_faults(sys.argv[1:])
    lost = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for fault, result in zip(faults, pool.map(outcome, faults), strict=True):
            lost += not result.startswith("found")
            print(f"{fault.file}: {fault.right}\n    {result}", flush=True)
    print(f"{len(faults) - lost} of {len(faults)} faults found")
    return int(lost > 0)


if __name__ == "__main__":
    raise SystemExit(main())
