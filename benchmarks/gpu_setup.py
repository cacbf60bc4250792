"""What the sections of the GPU benchmark share: sizes, models, and columns that may fail alone."""

import gc
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from unittest import mock

import torch
from measure import build_models, forcing, round_seconds, summarize

from layermem.models import memories
from layermem_bench.efficiency.measuring import read_clock

SIZES_1B = {
    "vocab_size": 50257,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "tie_word_embeddings": True,
}
SIZES_150M = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
SIZES_30M = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
}
SIZES_DEEP = {
    "vocab_size": 8192,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
}
SIZES_SMOKE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
DEPTHS = (64, 16, 32, 128)
# name: (config fields, batch, tokens). The sizes of 150M and 30M are assumed: the paper has none.
SHAPES = {
    "1B, 8 kv heads": ({**SIZES_1B, "num_key_value_heads": 8}, 4, 2048),
    "1B, 32 kv heads": ({**SIZES_1B, "num_key_value_heads": 32}, 4, 2048),
    "150M": (SIZES_150M, 8, 2048),
    "30M": (SIZES_30M, 16, 1024),
    **{f"{n} layers": ({**SIZES_DEEP, "num_hidden_layers": n}, 4, 1024) for n in DEPTHS},
}
PEERS = ("llama", "plain", "concatenating")


@dataclass(kw_only=True)
class Setup:
    """How everything is measured."""

    device: str
    """Device of all models."""
    repeats: int
    """Measured rounds after a warm-up."""
    smoke: bool
    """Tiny sizes, whose figures say nothing."""
    refused: dict[str, str] = field(default_factory=dict)
    """Implementations of routing that are not to be measured, and why."""

    def shape(self, name):
        """Return (config fields, batch, tokens)."""
        return (SIZES_SMOKE, 2, 16) if self.smoke else SHAPES[name]

    def draw_ids(self, name, batch=None, tokens=None):
        """Return token ids [batch, tokens], by default of the shape's own sizes."""
        fields, shape_batch, shape_tokens = self.shape(name)
        sizes = (batch or shape_batch, tokens or shape_tokens)
        return torch.randint(fields["vocab_size"], sizes, device=self.device)

    def compile_options(self, mode=None):
        """Return arguments of torch.compile; a smoke run generates no code."""
        if self.smoke:
            return {"fullgraph": True, "backend": "aot_eager"}
        return {"fullgraph": True, **({"mode": mode} if mode else {})}


def build_columns(setup, name, implementations, *, dtype=torch.bfloat16, peers=PEERS):
    """Return {column: (model, implementation of routing)}, and {column: why it is missing}."""
    fields, failed = setup.shape(name)[0], {}
    for implementation in set(implementations) & set(setup.refused):
        failed[f"lime {implementation}"] = setup.refused[implementation]
    allowed = [name for name in implementations if name not in setup.refused]
    try:
        return build_models(fields, setup.device, allowed, dtype, peers), failed
    except ValueError as error:
        if "the two forms of LIMe differ" not in str(error):
            raise
        failed["concatenating"] = describe_error(error)
    peers = [peer for peer in peers if peer != "concatenating"]
    return build_models(fields, setup.device, allowed, dtype, peers), failed


def measure_columns(setup, models, step, *, failed=(), count=1, traced=False):
    """Return the figures of one row; a column that cannot run is named and left out.

    Each column runs alone first, which finds out what does not fit into memory, what compiles, and
    which path routing takes. ``count``: how many units one step computes. ``traced``: the step is
    compiled, so that its path cannot be watched.
    """
    failed, paths, fitting = dict(failed), {}, {}
    for name, (model, implementation) in models.items():
        error, path = try_step(setup, partial_step(step, model), implementation, traced)
        if error is None and (implementation, path) == ("grouped", "tensors"):
            error = "no buffer is begun here: this would be the time of deferred"
        if error is not None:
            failed[name] = error
            continue
        fitting[name] = model, implementation
        if path is not None:
            paths[name] = path
    if not fitting:
        return {"failed": failed, "figures": {}, "ratios": {}, "unit": "s"}
    base = next(name for name in ("llama", "plain", *fitting) if name in fitting)
    rounds = round_seconds(fitting, step, setup.repeats, setup.device, count)
    summary = summarize(rounds, base)
    return {"unit": "s", "base": base, **summary, "failed": failed, "paths": paths}


def partial_step(step, model):
    """Return a function without arguments that runs the step of one model."""
    return lambda: step(model)


def try_step(setup, run, implementation, traced=False):
    """Run something once; return (why it failed or None, the path of routing or None)."""
    error, paths = None, []
    try:
        with forcing(implementation), nullcontext() if traced else watching_paths(paths):
            run()
        read_clock(setup.device)
    except Exception as caught:  # the other columns still run
        error = describe_error(caught)
    if error is not None:
        free_memory()
    return error, paths[0] if paths else None


@contextmanager
def watching_paths(paths):
    """Append to ``paths`` which path each forward of LIMe takes: "tensors", or a buffer's class."""
    begin = memories.begin_buffer

    def watch(*args):
        buffer = begin(*args)
        paths.append("tensors" if buffer is None else type(buffer).__name__)
        return buffer

    with mock.patch.object(memories, "begin_buffer", watch):
        yield


def describe_error(error):
    """Return one line about an exception."""
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
        return "out of memory"
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}"


def free_memory():
    """Free what the last row left, compiled code included."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
