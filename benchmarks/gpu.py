"""Checks and measurements on a GPU; ``benchmarks/gpu.sh`` runs them in one command.

Routing is compared with the naive form first; unless it passes, nothing is measured. Then come
training steps, eager and compiled, with their peaks of memory, and decoded tokens, eager and as
CUDA graphs. All columns of a row are measured in turn. Those that there was no time to prepare are
named, and each row is written as soon as it is measured: the same command goes on with what is
missing. ``python docs/gpu_figures.py`` writes the figures into docs/results/costs.md.
"""

import argparse
import copy
import gc
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from gpu_record import NO_TIME, Record, default_path, identify_machine
from measure import build_model, format_cells, summarize
from transformers import StaticCache
from transformers.utils import logging

from layermem.models import memories
from layermem.models.inputs import CACHE
from layermem.ops.shared_buffer import Routes, using_naive
from layermem_bench.config.computing import room_to_compile
from layermem_bench.costs.measuring import read_clock, read_memory

# The first is what others are compared with; the last ones are left out where time is short.
COLUMNS = ("plain", "lime", "llama", "concatenating", "recipe", "mudd", "recipe+mudd")
SIZES_1B = {
    "vocab_size": 50257,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "tie_word_embeddings": True,
}
SIZES_150M = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
SIZES_DEEP = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "num_hidden_layers": 64,
    "num_attention_heads": 16,
}
SIZES_SMOKE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
# name: (config fields, batch, tokens). The sizes of 150M are assumed: the paper has none.
SHAPES = {
    "150M": (SIZES_150M, 8, 2048),
    "1B, 8 kv heads": ({**SIZES_1B, "num_key_value_heads": 8}, 4, 2048),
    "1B, 32 kv heads": ({**SIZES_1B, "num_key_value_heads": 32}, 4, 2048),
    "64 layers": (SIZES_DEEP, 4, 1024),
}
PROMPT = 256
# Relative errors by the norm that are allowed, if the naive form in this precision has less.
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
UNITS = {"s": ("ms", 1e3), "bytes": ("GB", 1e-9)}


class Benchmark:
    """What is measured, on one device; a smoke run has one tiny shape, which says nothing."""

    def __init__(self, device, *, repeats=7, smoke=False, columns=COLUMNS):
        self.device, self.repeats, self.smoke, self.columns = device, repeats, smoke, columns

    def rows(self):
        """Return {section: {row: a function that returns {section: figures}}}, in order."""
        shapes = ("150M", "1B, 8 kv heads", "1B, 32 kv heads")
        deep = ("64 layers", "1B, 8 kv heads")
        if self.smoke:
            shapes = deep = shapes[:1]
        compiled = {name: partial(self.measure_steps, name, 50, compiles=True) for name in shapes}
        eager = {name: partial(self.measure_steps, name, 20) for name in (*deep, shapes[-1])}
        # After a capture that failed, a process can draw no numbers on the GPU: they come last.
        tokens = {
            f"{name}, {'CUDA graph' if captures else 'eager'}": partial(
                self.measure_tokens, name, 20, captures=captures
            )
            for captures in (False, True)
            for name in deep
        }
        checks = {
            f"{dtype}, {'compiled' if compiles else 'eager'}": partial(self.check, dtype, compiles)
            for dtype in LIMITS
            for compiles in (False, True)
        }
        return {"check": checks, "training": eager, "compiled": compiled, "decoding": tokens}

    def check(self, dtype, compiles):
        """Compare loss and gradients with those of the naive form in float64."""
        figures = {}
        for column in ("lime", "recipe"):
            model = build_model(column, SIZES_SMOKE, self.device).to(dtype)
            ids = torch.randint(64, (2, 33), device=self.device)
            with using_naive():
                exact = _compute(copy.deepcopy(model).double(), ids)
                naive = _errors(_compute(model, ids), exact)
            begun = []

            def begin(*args, begun=begun, begin=memories.begin, **options):
                begun.append(begin(*args, **options))
                return begun[-1]

            with mock.patch.object(memories, "begin", begin):
                got = _errors(_compute(self.compile(model) if compiles else model, ids), exact)
            if not compiles and not isinstance(begun[0], Routes):
                raise AssertionError(f"{column} in {dtype} has no shared buffer on {self.device}")
            for error, of_naive in zip(got, naive, strict=True):
                # Not ``error > limit``, which is false for NaN.
                if not error <= max(2 * of_naive, LIMITS[dtype]):
                    raise AssertionError(f"relative error {error:.1e} of {column} in {dtype}")
            figures[column] = max(got)
        return {"check": {"unit": "relative error", "figures": figures}}

    def compile(self, model):
        """Compile a model as a whole; a smoke run generates no code."""
        backend = {"backend": "eager"} if self.smoke else {}
        return torch.compile(model, fullgraph=True, **backend)

    def measure_steps(self, shape, seconds, *, compiles=False):
        """Measure forward and backward in bfloat16, and by how much they raise the peak."""
        fields, batch, tokens = self.shape(shape)
        ids = torch.randint(fields["vocab_size"], (batch, tokens), device=self.device)

        def prepare(model):
            run = self.compile(model) if compiles else model

            def step():
                try:
                    run(ids, labels=ids, use_cache=False).loss.backward()
                finally:
                    # After an error they would take room from the next column.
                    model.zero_grad()

            return step

        times, peaks = self.measure(fields, seconds, prepare)
        if compiles:
            return {"compiled": times, "compiled memory": peaks}
        return {"training": times, "memory": peaks}

    def measure_tokens(self, shape, seconds, *, captures):
        """Measure a token of one sequence with a static cache, in bfloat16."""
        fields, *_ = self.shape(shape)
        count = 2 if self.smoke else 50
        prompt = torch.randint(fields["vocab_size"], (1, PROMPT), device=self.device)

        @torch.no_grad()
        def prepare(model):
            model.eval()
            # Room for the rounds, two trials, and what ``capture`` runs.
            length = PROMPT + 4 + count * (self.repeats + 2)
            cache = StaticCache(config=model.config, max_cache_len=length)
            model(prompt, **{CACHE: cache}, use_cache=True, logits_to_keep=1)
            token, positions = prompt[:, -1:].clone(), prompt.new_full((1, 1), PROMPT)

            @torch.no_grad()
            def decode():
                model(token, position_ids=positions, **{CACHE: cache}, use_cache=True)

            run = capture(decode) if captures and self.device == "cuda" else decode
            return lambda: [run() for _ in range(count)]

        times, _ = self.measure(fields, seconds, prepare, count)
        return {"decoding": times}

    def shape(self, name):
        """Return (config fields, batch, tokens)."""
        fields, batch, tokens = (SIZES_SMOKE, 2, 16) if self.smoke else SHAPES[name]
        return {**fields, "max_position_embeddings": 4096}, batch, tokens

    def measure(self, fields, seconds, prepare, count=1):
        """Return figures of time and of peak memory; a column that cannot run is named.

        ``prepare`` makes of a model what computes ``count`` units. After ``seconds`` no further
        column is prepared.
        """
        runs, peaks, failed = {}, {}, {}
        begun = time.monotonic()
        # Compiled code looks at transformers' list of all models that were built.
        models = {name: build_model(name, fields, self.device) for name in self.columns}
        for column, model in models.items():
            if time.monotonic() - begun > seconds:
                failed[column] = NO_TIME
                continue
            try:
                run = prepare(model.to(torch.bfloat16))
                # Compiles, and allocates what later steps find.
                run()
                before = read_memory(self.device, "now")
                run()
                read_clock(self.device)
                # At the sizes of a smoke run nothing may have grown.
                peaks[column] = max(1, read_memory(self.device, "peak") - before)
                runs[column] = run
            except Exception as error:  # the other columns still run
                failed[column] = describe_error(error)
            free_memory()
        rounds = {column: [] for column in runs}
        for _ in range(self.repeats):
            for column, run in runs.items():
                start = read_clock(self.device)
                run()
                rounds[column].append((read_clock(self.device) - start) / count)
        return self.figures("s", rounds, failed), self.figures("bytes", peaks, failed)

    def figures(self, unit, columns, failed):
        """Return the figures of a row."""
        if not columns:
            return {"unit": unit, "figures": {}, "ratios": {}, "failed": failed}
        base = next(iter(columns))
        return {"unit": unit, "base": base, **summarize(columns, base), "failed": failed}


def _compute(model, ids):
    """Return the loss and every gradient, in float64."""
    loss = model(ids, labels=ids, use_cache=False).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [part.detach().double() for part in (loss, *gradients)]


def _errors(got, exact):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(got, exact, strict=True)]


def capture(run):
    """Return a function that replays what ``run`` launches, as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(run=run):
        # A graph does not keep the tensors that it reads, ``run`` does.
        graph.replay()

    return replay


def describe_error(error):
    """Return one line about an exception."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}"


def free_memory():
    """Free what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def describe_figures(row):
    """Return the figures of a row as one line."""
    if isinstance(row, str):
        return f"failed: {row}"
    if row["unit"] in UNITS:
        cells = format_cells(row, UNITS[row["unit"]])
    else:
        cells = {name: f"{figure:.1e}" for name, figure in row["figures"].items()}
    return "; ".join(f"{name} {cell}" for name, cell in {**cells, **row.get("failed", {})}.items())


def run_row(record, section, row, measure):
    """Measure one row, write it to the record and print it."""
    try:
        results = measure()
    except Exception as error:  # the other rows still run
        traceback.print_exc()
        results = {section: describe_error(error)}
    torch.compiler.reset()
    free_memory()
    for name, figures in results.items():
        record.add(name, row, figures)
        print(f"{name}: {row}: {describe_figures(figures)}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=6, help="after which no row is begun")
    options.add_argument("--repeats", type=int, default=7, help="measured rounds")
    options.add_argument("--json", type=Path, help="default: benchmarks/results/DEVICE_CODE.json")
    options.add_argument("--columns", nargs="+", default=COLUMNS, help="models, as in a study")
    options.add_argument("--smoke", action="store_true", help="tiny sizes, also on a CPU")
    args = options.parse_args()
    if args.smoke and args.json is None:
        options.error("--smoke needs --json FILE: its figures say nothing")
    if not args.smoke and not torch.cuda.is_available():
        options.error("no CUDA device found; --smoke runs the script without one")
    logging.set_verbosity_error()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = identify_machine(device)
    record = Record(args.json or default_path(machine), machine, smoke=args.smoke)
    print(f"{machine['versions']}: {record.path}", flush=True)
    benchmark = Benchmark(device, repeats=args.repeats, smoke=args.smoke, columns=args.columns)
    deadline, missing = time.monotonic() + 60 * args.minutes, []
    with room_to_compile(len(args.columns)):
        for section, rows in benchmark.rows().items():
            for row, measure in rows.items():
                if not record.has(section, row) and time.monotonic() < deadline:
                    run_row(record, section, row, measure)
                if not record.has(section, row):
                    missing.append(f"{section}, {row}")
            if section == "check" and missing:
                sys.exit(f"nothing is measured, as checks have not passed: {'; '.join(missing)}")
    sys.exit(f"missing: {'; '.join(missing)}" if missing else 0)


if __name__ == "__main__":
    main()
