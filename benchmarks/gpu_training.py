"""Sections of the GPU benchmark about training: time and peak memory of a forward and backward."""

from functools import partial

import torch
from causal_mask import compile_columns, make_step
from gpu_setup import (
    DEPTHS,
    PEERS,
    build_columns,
    free_memory,
    measure_columns,
    partial_step,
    try_step,
)
from measure import FAMILY, build_variants

from layermem.ops import route
from layermem_bench.efficiency.measuring import read_memory

SIZES = ("1B, 8 kv heads", "1B, 32 kv heads", "150M", "30M")
# Compiled in half precision there are no groups.
FAST = ("deferred", "triton")
EAGER = ("grouped", *FAST)


def list_training(setup):
    """Eager, in bfloat16, compared with LLaMA, plain and the concatenating form."""
    return {name: partial(measure_step, setup, name, EAGER) for name in SIZES}


def list_depths(setup):
    """By depth, at width 1024."""
    names = [f"{depth} layers" for depth in DEPTHS]
    return {name: partial(measure_step, setup, name, EAGER, peers=PEERS[1:]) for name in names}


def list_paths(setup):
    """Every implementation of routing, eager and compiled."""
    names = route.implementations()
    measure = partial(measure_step, setup, implementations=names, peers=["plain"])
    every = [name for name in names if name != "naive"]
    compiled = partial(measure, implementations=every, options=setup.compile_options())
    return {
        "1B, 8 kv heads, bfloat16": partial(measure, "1B, 8 kv heads"),
        "150M, float32": partial(measure, "150M", dtype=torch.float32),
        "30M, float32, compiled": partial(compiled, "30M", dtype=torch.float32),
    }


def list_compiled(setup, mode=None):
    """Compiled, in bfloat16, compared with the compiled LLaMA and plain decoder."""
    measure = partial(measure_step, setup, options=setup.compile_options(mode))
    peers = {"150M": PEERS[:2], "1B, 8 kv heads": PEERS[1:2], "30M": PEERS[:2]}
    return {
        name: partial(measure, name, implementations=FAST, peers=kept)
        for name, kept in peers.items()
    }


def list_captured(setup):
    """Compiled with CUDA graphs."""
    return list_compiled(setup, "reduce-overhead")


def measure_step(setup, name, implementations, *, dtype=torch.bfloat16, peers=PEERS, options=None):
    """Measure a training step; ``options``: arguments of torch.compile, None for eager."""
    models, failed = build_columns(setup, name, implementations, dtype=dtype, peers=peers)
    if options is not None:
        models = {
            column: (torch.compile(model, **options), implementation)
            for column, (model, implementation) in models.items()
        }
    step = _make_training_step(setup, name, marks=options is not None)
    return measure_columns(setup, models, step, failed=failed, traced=options is not None)


def _make_training_step(setup, name, marks=False):
    ids = setup.draw_ids(name)

    def step(model):
        if marks and setup.device == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        try:
            model(ids, labels=ids, use_cache=False).loss.backward()
        finally:
            # Gradients of a step that ran out of memory would take room from the next column.
            model.zero_grad()

    return step


def list_causal(setup):
    """Compiled, on long sequences, with and without an explicit mask."""
    return {f"{length} tokens": partial(measure_causal, setup, length) for length in (2048, 512)}


def measure_causal(setup, length):
    """Measure a step of 8,192 tokens in sequences of one length."""
    name, batch = "150M", 8192 // length
    if setup.smoke:
        batch, length = 2, 16
    models, failed = build_columns(setup, name, ["triton"], peers=PEERS[:2])
    if "lime triton" not in models:
        return {"unit": "s", "figures": {}, "ratios": {}, "failed": failed}
    named = {column.partition(" ")[0]: model for column, model in models.items()}
    ids = setup.draw_ids(name, batch, length)
    columns = compile_columns(named, ids, **setup.compile_options())
    return measure_columns(setup, columns, make_step(ids), failed=failed, traced=True)


def list_family(setup):
    """Every form of the family that docs/family.md compares, eager."""
    return {"150M": partial(measure_family, setup, "150M")}


def measure_family(setup, name):
    """Measure a training step of plain and of the family's forms."""
    names = "lime,mhc" if setup.smoke else FAMILY
    models = build_variants(setup.shape(name)[0], setup.device, names, torch.bfloat16)
    return measure_columns(setup, models, _make_training_step(setup, name))


def list_peaks(setup):
    """Peak memory of a step beyond the weights, gradients included."""
    return {name: partial(measure_peaks, setup, name) for name in (*SIZES[:2], "64 layers")}


def measure_peaks(setup, name):
    """Return the bytes by which a step of each column raises the peak."""
    models, failed = build_columns(setup, name, EAGER)
    step, peaks = _make_training_step(setup, name), {}
    for column, (model, implementation) in models.items():
        free_memory()
        before = read_memory(setup.device, "now")
        error, _ = try_step(setup, partial_step(step, model), implementation)
        if error is None:
            # At the sizes of a smoke run nothing may have grown.
            peaks[column] = max(1, read_memory(setup.device, "peak") - before)
        else:
            failed[column] = error
    base = next((column for column in ("llama", *peaks) if column in peaks), None)
    ratios = {column: peak / peaks[base] for column, peak in peaks.items()}
    return {"unit": "bytes", "base": base, "figures": peaks, "ratios": ratios, "failed": failed}
