"""Checks and measurements on a GPU; ``benchmarks/gpu.sh`` runs them in one command.

Kernels are compared with the naive implementation first; unless they pass, their columns are left
out. Then come the first row of every section, the second row of every section, and so on, until the
time is up. Each row is written as soon as it is measured; ``--resume`` goes on with the rows that a
file lacks. Progress is on stderr. ``python docs/gpu_figures.py`` writes the figures into
docs/routing.md.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch
from gpu_checks import list_bandwidths, list_checks
from gpu_decoding import list_decoding
from gpu_record import Record, default_path, identify_machine, read_clocks
from gpu_setup import Setup, describe_error, free_memory
from gpu_training import (
    list_captured,
    list_causal,
    list_compiled,
    list_depths,
    list_family,
    list_paths,
    list_peaks,
    list_training,
)
from measure import format_cells
from transformers.utils import logging

# name: a function that returns {row: a function that measures it}.
SECTIONS = {
    "check": list_checks,
    "bandwidth": list_bandwidths,
    "training": list_training,
    "memory": list_peaks,
    "decoding": list_decoding,
    "paths": list_paths,
    "depth": list_depths,
    "compiled": list_compiled,
    "captured": list_captured,
    "causal": list_causal,
    "family": list_family,
}
UNITS = {"s": ("ms", 1e3), "bytes": ("GB", 1e-9), "bytes/s": ("TB/s", 1e-12)}


def main():
    args = parse_arguments()
    logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = identify_machine(device)
    path = args.json or (None if args.smoke else default_path(machine))
    try:
        record = Record(path, machine, smoke=args.smoke)
    except ValueError as error:
        sys.exit(str(error))
    setup = Setup(device=device, repeats=args.repeats, smoke=args.smoke)
    sections = {name: list_rows(setup) for name, list_rows in SECTIONS.items()}
    deadline = time.monotonic() + 60 * args.minutes
    print(machine, file=sys.stderr)
    for name, row in order_rows(sections, args.sections, args.rows):
        if args.resume and row in record.rows(name):
            continue
        if time.monotonic() > deadline:
            break
        setup.refused = find_refused(record, sections)
        run_row(setup, record, name, row, sections[name][row])
    if path is not None:
        print(f"figures: {path}")
    failed = {name: record.failed(name) for name in sections if record.failed(name)}
    for name, rows in failed.items():
        print("\n".join(f"failed: {name}, {row}: {error}" for row, error in rows.items()))
    print(describe_missing(record.missing(sections)))
    sys.exit(bool(failed))


def parse_arguments():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=8.5, help="after which no row is begun")
    options.add_argument("--repeats", type=int, default=7, help="measured rounds after a warm-up")
    options.add_argument("--json", type=Path, help="default: benchmarks/results/DEVICE.json")
    options.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options.add_argument("--rows", type=int, help="of each section but the check, at most")
    options.add_argument("--resume", action="store_true", help="only rows that the file lacks")
    options.add_argument("--smoke", action="store_true", help="tiny sizes, also on a CPU")
    args = options.parse_args()
    if args.repeats < 1:
        options.error(f"--repeats must be at least 1, got {args.repeats}")
    if not args.smoke and not torch.cuda.is_available():
        options.error("no CUDA device found; --smoke runs the script without one")
    if args.resume and args.smoke and args.json is None:
        options.error("--resume needs the file of a smoke run: --json FILE")
    return args


def order_rows(sections, chosen, most=None):
    """Return (section, row) pairs: all checks, then the first row of every section, and so on.

    Rows with CUDA graphs come last: after a capture that failed, a process can draw no numbers on
    the GPU.
    """
    ranked = [
        (_captures(section, row), 0 if section == "check" else 1 + rank, section, row)
        for section in SECTIONS
        if section in chosen
        for rank, row in enumerate(sections[section])
        if section == "check" or most is None or rank < most
    ]
    return [(section, row) for *_, section, row in sorted(ranked, key=lambda entry: entry[:2])]


def _captures(section, row):
    return section == "captured" or "CUDA graph" in row


def find_refused(record, sections):
    """Return {implementation: why it is not measured}: a speed needs a check that has passed."""
    lacking = record.missing({"check": sections["check"]}).get("check", [])
    if not lacking:
        return {}
    reason = f"the check has not passed ({', '.join(lacking)}): run --sections check"
    return {"triton": reason}


def run_row(setup, record, section, row, measure):
    """Measure one row, print it and write it to the record."""
    print(f"{section}: {row} ...", file=sys.stderr, flush=True)
    started, clocks = time.monotonic(), {"before": read_clocks(setup.device)}
    try:
        figures = measure()
    except Exception as error:  # the other rows still run
        traceback.print_exc()
        figures = describe_error(error)
    try:
        free_memory()
    except RuntimeError as error:
        record.add(section, row, describe_error(error), clocks)
        sys.exit(f"{section}, {row}: the GPU takes no more work of this process: run --resume")
    clocks["after"] = read_clocks(setup.device)
    record.add(section, row, figures, clocks)
    print(f"  {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print(f"{section}: {row}: " + describe_figures(figures), flush=True)


def describe_figures(row):
    """Return the figures of a row as one line."""
    if isinstance(row, str):
        return f"failed: {row}"
    if row["unit"] in UNITS:
        cells = format_cells(row, UNITS[row["unit"]])
    else:
        cells = {name: f"{figure:.1e}" for name, figure in row["figures"].items()}
    cells |= row.get("failed", {})
    return "; ".join(f"{name} {cell}" for name, cell in cells.items())


def describe_missing(missing):
    """Return the last line: which rows have no figures."""
    if not missing:
        return "no section is missing"
    parts = [f"{section} ({'; '.join(rows)})" for section, rows in missing.items()]
    return f"missing, for --resume: {', '.join(parts)}"


if __name__ == "__main__":
    main()
