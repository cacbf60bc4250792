"""The record of the GPU benchmark: one JSON file for a device, written again after each row.

{"benchmark": "gpu", "smoke": false, "machine": {"device": ..., "code": ...},
 "sections": {"training": {
     "rows": {"150M": {"unit": "s", "figures": {"plain": ...}, "failed": {"llama": ...}}},
     "failed": {"30M": "RuntimeError: ..."},
     "clocks": {"150M": {"before": ..., "after": ...}}}}}
"""

import hashlib
import json
import os
import platform
import re
import subprocess
from pathlib import Path

import torch
from measure import describe_machine

import layermem

RESULTS = Path(__file__).parent / "results"
_CLOCKS = "clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.draw,power.limit,temperature.gpu"


class Record:
    """The figures so far; rows of an earlier run on the same machine and code are kept."""

    def __init__(self, path, machine, *, smoke):
        self.path = path
        self.content = {"benchmark": "gpu", "smoke": smoke, "machine": machine, "sections": {}}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path):
        before = json.loads(path.read_text(encoding="utf-8"))
        for key in ("benchmark", "smoke", "machine"):
            if before.get(key) != self.content[key]:
                raise ValueError(
                    f"{path} has figures of {key} {before.get(key)!r}, and this is "
                    f"{self.content[key]!r}: remove the file, or name another one by --json"
                )
        self.content = before

    def rows(self, section):
        """Return {row: figures} of a section."""
        return self._section(section)["rows"]

    def failed(self, section):
        """Return {row: error} of a section."""
        return self._section(section)["failed"]

    def _section(self, name):
        empty = {"rows": {}, "failed": {}, "clocks": {}}
        return self.content["sections"].setdefault(name, empty)

    def add(self, section, row, figures, clocks):
        """Add the figures of a row, or its error if ``figures`` is text, and write the file."""
        self.rows(section).pop(row, None)
        self.failed(section).pop(row, None)
        kept = self.failed if isinstance(figures, str) else self.rows
        kept(section)[row] = figures
        self._section(section)["clocks"][row] = clocks
        self.write()

    def write(self):
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content, indent=1, allow_nan=False) + "\n"
        partial = self.path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.path)

    def missing(self, names):
        """Return {section: rows without figures} of the sections that lack some."""
        lacks = {
            section: [row for row in rows if row not in self.rows(section)]
            for section, rows in names.items()
        }
        return {section: rows for section, rows in lacks.items() if rows}


def identify_machine(device):
    """Return what has to be the same for figures to stand in one file."""
    machine = {"device": platform.machine(), "versions": describe_machine(device)}
    if device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
        machine["memory"] = torch.cuda.get_device_properties(0).total_memory
        machine["driver"] = _run(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
    machine["code"] = _hash_sources()
    return machine


def _hash_sources():
    """Return a hash of the package's sources: what is copied to a GPU need not be a checkout."""
    digest = hashlib.sha256()
    package = Path(layermem.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def read_clocks(device):
    """Return {name: text} of clocks, power and temperature now; empty where they are not known."""
    if device != "cuda":
        return {}
    values = _run("nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv,noheader")
    return dict(zip(_CLOCKS.split(","), values.split(", "), strict=True)) if values else {}


def default_path(machine):
    """Return benchmarks/results/DEVICE.json."""
    return RESULTS / (re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-") + ".json")


def _run(*command):
    """Return the first line that a command prints; empty if there is no such command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""
