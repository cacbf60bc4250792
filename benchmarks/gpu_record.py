"""The record of the GPU benchmark: one JSON file, written again after each row.

{"benchmark": "gpu", "smoke": false, "machine": {"device": ..., "code": ...},
 "sections": {"training": {
     "rows": {"150M": {"unit": "s", "figures": {"plain": ...}, "failed": {"llama": ...}}},
     "failed": {"30M": "RuntimeError: ..."}}}}
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import torch
from measure import describe_machine

import layermem

RESULTS = Path(__file__).parent / "results"
NO_TIME = "no time"


class Record:
    """The figures so far; those of an earlier run on the same machine and code are kept."""

    def __init__(self, path, machine, *, smoke):
        self.path = path
        self.content = {"benchmark": "gpu", "smoke": smoke, "machine": machine, "sections": {}}
        if path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            for key in ("benchmark", "smoke", "machine"):
                if before.get(key) != self.content[key]:
                    raise ValueError(
                        f"{path} has figures of {key} {before.get(key)!r}, and this is "
                        f"{self.content[key]!r}: remove the file, or name another one by --json"
                    )
            self.content = before

    def section(self, name):
        """Return {"rows": {row: figures}, "failed": {row: error}} of a section."""
        return self.content["sections"].setdefault(name, {"rows": {}, "failed": {}})

    def has(self, section, row):
        """Whether a row has figures, and no column that there was no time for."""
        figures = self.section(section)["rows"].get(row)
        return figures is not None and NO_TIME not in figures.get("failed", {}).values()

    def add(self, section, row, figures):
        """Add the figures of a row, or its error if ``figures`` is text, and write the file."""
        for kept in self.section(section).values():
            kept.pop(row, None)
        self.section(section)["failed" if isinstance(figures, str) else "rows"][row] = figures
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content, indent=1, allow_nan=False) + "\n"
        partial = self.path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.path)


def identify_machine(device):
    """Return what has to be the same for figures to stand in one file."""
    machine = {"device": platform.machine(), "versions": describe_machine(device)}
    if device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
        machine["memory"] = torch.cuda.get_device_properties(0).total_memory
        if shutil.which("nvidia-smi"):
            ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            asked = subprocess.run(ask, capture_output=True, text=True)
            machine["driver"] = asked.stdout.partition("\n")[0].strip()
    # What is copied to a GPU need not be a checkout.
    digest, package = hashlib.sha256(), Path(layermem.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return {**machine, "code": digest.hexdigest()[:12]}


def default_path(machine):
    """Return benchmarks/results/DEVICE_CODE.json."""
    device = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    return RESULTS / f"{device}_{machine['code']}.json"
