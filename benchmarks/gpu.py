"""Routing on a GPU: first checked, then measured. One command: ``benchmarks/gpu.sh``.

Needs torch, transformers, triton and this checkout, nothing else. Sections, each skipped where time
is up and reported where it fails: correctness against the naive sum in float64; bandwidth of a copy
and of the kernels; training step eager, compiled, and compiled with CUDA graphs; peak memory;
decoding through CUDA graphs; depth. bfloat16 weights, ratios to our plain decoder.
"""

import argparse
import gc
import json
import math
import re
import statistics
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import torch
from measure import in_turn, machine
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.utils import logging

import layermem
from layermem.ops.route import route, store, using

BILLION = {"vocab_size": 50257, "hidden_size": 2048, "intermediate_size": 8192}
BILLION |= {"num_hidden_layers": 16, "num_attention_heads": 32, "tie_word_embeddings": True}
# name: (fields, batch, tokens). 150M and 30M: sizes assumed, the paper gives none.
SHAPES = {
    "1B, 8 kv heads": ({**BILLION, "num_key_value_heads": 8}, 4, 2048),
    "1B, 32 kv heads": ({**BILLION, "num_key_value_heads": 32}, 4, 2048),
    "150M": (
        {
            "vocab_size": 50257,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
        },
        8,
        2048,
    ),
    "30M": (
        {
            "vocab_size": 8192,
            "hidden_size": 512,
            "intermediate_size": 2048,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
        },
        16,
        1024,
    ),
}
DEPTHS = (16, 32, 64, 128)
DEEP = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096}
DEEP |= {"num_attention_heads": 16, "num_key_value_heads": 16}
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--minutes", type=float, default=8.5, help="when to begin nothing more")
    options.add_argument("--repeats", type=int, default=7, help="counted rounds after a warm-up")
    options.add_argument("--json", type=Path, help="default: benchmarks/results/<device>.json")
    options.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU if need be")
    args = options.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        sys.exit("no CUDA device; --smoke runs through the script without one")
    logging.set_verbosity_error()
    run = Run(args)
    for name in args.sections:
        run.section(name, SECTIONS[name])
    run.write()
    sys.exit(bool(run.failed))


class Run:
    """What the sections share: sizes, the device, the clock, the figures."""

    def __init__(self, args):
        self.smoke, self.repeats = args.smoke, args.repeats
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.deadline = time.perf_counter() + 60 * args.minutes
        self.machine = machine(self.device)
        name = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.path = args.json or Path(__file__).parent / "results" / f"{slug}.json"
        self.figures, self.failed = {}, []
        print(self.machine)

    def section(self, name, work):
        print(f"\n{name}", flush=True)
        started = time.perf_counter()
        try:
            self.figures[name] = work(self)
        except Exception as error:  # the other sections are worth having
            traceback.print_exc()
            self.failed.append(name)
            self.figures[name] = {"failed": str(error).splitlines()[0][:300]}
        print(f"  ({time.perf_counter() - started:.0f} s)")
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": self.machine, "failed": self.failed, **self.figures}
        self.path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def in_time(self, what):
        left = self.deadline - time.perf_counter()
        if left < 0:
            print(f"  {what}: skipped, the time is up")
        return left >= 0

    def shapes(self):
        return {"tiny": (SMALL, 2, 16)} if self.smoke else SHAPES

    def models(self, fields, *, llama=True):
        """Return {column: (model, implementation)}."""

        def on_device(make):
            torch.manual_seed(0)
            return make().to(self.device, torch.bfloat16)

        plain = on_device(lambda: layermem.build("plain", **fields))
        lime = on_device(lambda: layermem.build("lime", **fields))
        found = {"plain": (plain, "deferred")}
        if llama:
            theirs = on_device(lambda: LlamaForCausalLM(LlamaConfig(**fields)))
            found = {"llama": (theirs, "deferred"), **found}
        return found | {"lime deferred": (lime, "deferred"), "lime triton": (lime, "triton")}

    def time(self, models, step, count=1):
        return in_turn(models, step, self.repeats, self.device, count)

    def row(self, name, figures, unit=("ms", 1e3), base="plain"):
        cells = (
            f"{column} {value * unit[1]:.4g} {unit[0]} ({value / figures[base]:.3f})"
            for column, value in figures.items()
        )
        print(f"  {name:24s} " + "  ".join(cells), flush=True)
        return {"figures": figures, "ratios": {k: v / figures[base] for k, v in figures.items()}}


def check(run):
    """Forward and every gradient against the naive sum in float64; two runs, to the last bit."""
    worst = {}
    shapes = [(2, 2, 3, 5, 6), (5, 1, 8, 33, 16)]
    if not run.smoke:
        shapes += [
            (16, 2, 8, 300, 64),
            (16, 1, 32, 130, 64),
            (130, 1, 4, 17, 24),
            (3, 2, 17, 65, 80),
        ]
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)):
        for shape in shapes:
            for stored in (True, False):
                slots, weight, grads = _inputs(shape, dtype, run.device)
                exact = [tuple(x.double() for x in slot) for slot in slots]
                want = _outcome(
                    "naive", exact, weight.double(), [g.double() for g in grads], stored
                )
                got = _outcome("triton", slots, weight, grads, stored)
                again = _outcome("triton", slots, weight, grads, stored)
                if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
                    raise AssertionError(f"two runs differ at {shape} in {dtype}")
                errors = [
                    ((a.double() - b).norm() / b.norm()).item()
                    for a, b in zip(got, want, strict=True)
                ]
                if not max(errors) <= limit:
                    raise AssertionError(f"off by {max(errors):.1e} at {shape} in {dtype}")
                worst[str(dtype)] = max(worst.get(str(dtype), 0), *errors)
    print("  worst error of the norm: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()))
    return worst


def _inputs(shape, dtype, device):
    n_slots, batch, heads, tokens, width = shape
    generator = torch.Generator(device).manual_seed(0)

    def draw(*sizes):
        return torch.randn(*sizes, generator=generator, device=device).to(dtype)

    slots = [
        tuple(draw(batch, tokens, heads, width).transpose(1, 2) for _ in range(2))
        for _ in range(n_slots)
    ]
    weight = draw(heads, n_slots * heads) / math.sqrt(n_slots * heads)
    return slots, weight, [draw(batch, heads, tokens, width) for _ in range(2)]


def _outcome(name, slots, weight, grads, stored):
    leaves = [x.detach().requires_grad_() for slot in slots for x in slot]
    weight = weight.detach().requires_grad_()
    with using(name):
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        out = route([store(*pair) for pair in pairs] if stored else pairs, weight)
    return [*out, *torch.autograd.grad(out, [weight, *leaves], grads)]


def bandwidth(run):
    """Bytes a second of a copy, and of each kernel at the shape of 1B by the bytes it must move."""
    from layermem.ops.route import triton as by_kernels

    def seconds(work):
        work()
        times = []
        for _ in range(run.repeats):
            if run.device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                work()
            if run.device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 10)
        return statistics.median(times)

    size = 2**20 if run.smoke else 2**31
    source = torch.randn(size // 2, device=run.device).bfloat16()
    target = torch.empty_like(source)
    found = {"copy": 2 * source.nbytes / seconds(partial(target.copy_, source))}
    del source, target
    for heads in (2,) if run.smoke else (8, 32):
        shape = (4, 1, heads, 64, 16) if run.smoke else (16, 4, heads, 2048, 64)
        slots, weight, grads = _inputs(shape, torch.bfloat16, run.device)
        grads = by_kernels._backend.flatten(grads)
        columns = weight.unflatten(1, (-1, heads)).permute(1, 2, 0).contiguous()
        slot, n_slots = 2 * grads[0].nbytes, shape[0]
        works = {
            "gather": (partial(by_kernels._gather, weight, slots), n_slots + 1),
            "spread": (partial(by_kernels._spread, columns, grads), n_slots + 1),
            "gram": (partial(by_kernels._gram, grads, slots), n_slots + 1),
        }
        for name, (work, transfers) in works.items():
            found[f"{name}, {heads} heads"] = transfers * slot / seconds(work)
    for name, value in found.items():
        print(f"  {name:20s} {value / 1e12:6.2f} TB/s  {value / found['copy']:5.1%} of the copy")
    return found


def _training(run, mode=None):
    found = {}
    for name, (fields, batch, tokens) in run.shapes().items():
        # What compiles, compiles in minutes: the larger shapes alone, without LLaMA.
        if not run.in_time(name) or (mode and name not in ("1B, 8 kv heads", "30M", "tiny")):
            continue
        models = run.models(fields, llama=not mode)
        if mode:
            models = {
                column: (torch.compile(model, **mode), implementation)
                for column, (model, implementation) in models.items()
                if column != "lime deferred"
            }
        ids = torch.randint(fields["vocab_size"], (batch, tokens), device=run.device)

        def step(model, ids=ids):
            if mode and run.device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        found[name] = run.row(name, run.time(models, step))
        del models, step
        _clear()
    return found


def training(run):
    """Forward and backward, eager."""
    return _training(run)


def compiled(run):
    """The same through torch.compile."""
    return _training(run, {"fullgraph": True})


def captured(run):
    """The same with CUDA graphs."""
    return _training(run, {"fullgraph": True, "mode": "reduce-overhead"})


def memory(run):
    """Peak of a step beyond the weights, and what a forward leaves."""
    found = {}
    if run.device != "cuda":
        return found
    for name, (fields, batch, tokens) in run.shapes().items():
        if not run.in_time(name):
            continue
        ids = torch.randint(fields["vocab_size"], (batch, tokens), device=run.device)
        models, left, peak = run.models(fields), {}, {}
        for column, (model, implementation) in models.items():
            with using(implementation):
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                loss = model(ids, labels=ids, use_cache=False).loss
                left[column] = torch.cuda.memory_allocated() - before
                loss.backward()
                peak[column] = torch.cuda.max_memory_allocated() - before
                del loss
                model.zero_grad()
        found[f"{name}: left"] = run.row(f"{name}: left", left, ("GB", 1e-9))
        found[f"{name}: peak"] = run.row(f"{name}: peak", peak, ("GB", 1e-9))
        del models
        _clear()
    return found


def decoding(run):
    """A token through a static cache, replayed as a CUDA graph."""
    found, count = {}, 4 if run.smoke else 50
    name, (fields, _, _) = next(iter(run.shapes().items()))
    for batch in (1, 2) if run.smoke else (1, 32):
        if not run.in_time(f"batch {batch}"):
            continue
        models = run.models(fields)
        steps = {}
        for column, (model, implementation) in models.items():
            with using(implementation), torch.no_grad():
                steps[column] = (_captured_token(run, model, batch, count), implementation)

        def replay(token):
            for _ in range(count):
                token()

        found[f"batch {batch}"] = run.row(f"{name}, batch {batch}", run.time(steps, replay, count))
        del models, steps
        _clear()
    return found


@torch.no_grad()
def _captured_token(run, model, batch, count):
    """Return a call that decodes the next token."""
    model.eval()
    # Room for every round: a static cache goes on where it stopped.
    length = 256 + 4 + count * (run.repeats + 1)
    cache = StaticCache(config=model.config, max_cache_len=length)
    prompt = torch.randint(32, (batch, 256), device=run.device)
    model(prompt, past_key_values=cache, use_cache=True)
    token = prompt[:, -1:].clone()
    positions = torch.full((batch, 1), 256, device=run.device)

    def one():
        return model(token, position_ids=positions, past_key_values=cache, use_cache=True).logits

    if run.device != "cuda":
        return torch.no_grad()(one)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    return graph.replay


def depth(run):
    """Training step by depth, at width 1024."""
    found = {}
    for layers in (2, 3) if run.smoke else DEPTHS:
        if not run.in_time(f"{layers} layers"):
            continue
        fields = {**(SMALL if run.smoke else DEEP), "num_hidden_layers": layers}
        models = run.models(fields, llama=False)
        shape = (2, 8) if run.smoke else (4, 1024)
        ids = torch.randint(fields["vocab_size"], shape, device=run.device)

        def step(model, ids=ids):
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        found[str(layers)] = run.row(f"{layers} layers", run.time(models, step))
        del models, step
        _clear()
    return found


def _clear():
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


SECTIONS = {
    "check": check,
    "bandwidth": bandwidth,
    "training": training,
    "memory": memory,
    "depth": depth,
    "decoding": decoding,
    "compiled": compiled,
    "captured": captured,
}

if __name__ == "__main__":
    main()
