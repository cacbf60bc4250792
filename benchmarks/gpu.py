"""Checks and measurements of routing on a GPU; ``benchmarks/gpu.sh`` runs them in one command.

Needs torch, transformers, triton and this checkout. The sections are: correctness compared with the
naive implementation in float64; bandwidth of a copy and of the kernels; a training step eager,
compiled, and compiled with CUDA graphs; peak memory; decoding with CUDA graphs; depth. A section
that fails is reported, and none begins when the time is up. Weights are bfloat16, and ratios are to
the plain decoder.
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
from measure import describe_machine, median_seconds
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from transformers.utils import logging

import layermem
from layermem.ops.route import route, store, using

SIZES_1B = {"vocab_size": 50257, "hidden_size": 2048, "intermediate_size": 8192}
SIZES_1B |= {"num_hidden_layers": 16, "num_attention_heads": 32, "tie_word_embeddings": True}
# name: (config fields, batch, tokens). The sizes of 150M and 30M are assumed: the paper has none.
SHAPES = {
    "1B, 8 kv heads": ({**SIZES_1B, "num_key_value_heads": 8}, 4, 2048),
    "1B, 32 kv heads": ({**SIZES_1B, "num_key_value_heads": 32}, 4, 2048),
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
SIZES_DEEP = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 4096}
SIZES_DEEP |= {"num_attention_heads": 16, "num_key_value_heads": 16}
SIZES_SMOKE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--minutes", type=float, default=8.5, help="time after which no shape is begun"
    )
    options.add_argument("--repeats", type=int, default=7, help="measured rounds after a warm-up")
    options.add_argument("--json", type=Path, help="default: benchmarks/results/<device>.json")
    options.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    options.add_argument("--smoke", action="store_true", help="tiny sizes, also on a CPU")
    args = options.parse_args()
    if not args.smoke and not torch.cuda.is_available():
        sys.exit("no CUDA device found; --smoke runs the script without one")
    logging.set_verbosity_error()
    benchmark = Benchmark(args)
    for name in args.sections:
        benchmark.run_section(name, SECTIONS[name])
    benchmark.write()
    sys.exit(bool(benchmark.failed))


class Benchmark:
    """What the sections share: sizes, device, deadline, models, and the figures so far."""

    def __init__(self, args):
        self.smoke, self.repeats = args.smoke, args.repeats
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.deadline = time.perf_counter() + 60 * args.minutes
        self.machine = describe_machine(self.device)
        name = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.path = args.json or Path(__file__).parent / "results" / f"{slug}.json"
        self.figures, self.failed = {}, []
        print(self.machine)

    def run_section(self, name, section):
        print(f"\n{name}", flush=True)
        started = time.perf_counter()
        try:
            self.figures[name] = section(self)
        except Exception as error:  # the other sections still run
            traceback.print_exc()
            self.failed.append(name)
            self.figures[name] = {"failed": str(error).splitlines()[0][:300]}
        print(f"  ({time.perf_counter() - started:.0f} s)")
        self.write()

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": self.machine, "failed": self.failed, **self.figures}
        self.path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def has_time(self, name):
        left = self.deadline - time.perf_counter()
        if left < 0:
            print(f"  {name}: skipped, the time is up")
        return left >= 0

    def shapes(self):
        return {"tiny": (SIZES_SMOKE, 2, 16)} if self.smoke else SHAPES

    def models(self, fields, *, llama=True):
        """Return {column: (model, implementation of routing)}."""

        def build_on_device(build):
            torch.manual_seed(0)
            return build().to(self.device, torch.bfloat16)

        plain = build_on_device(lambda: layermem.build("plain", **fields))
        lime = build_on_device(lambda: layermem.build("lime", **fields))
        models = {"plain": (plain, "deferred")}
        if llama:
            llama_model = build_on_device(lambda: LlamaForCausalLM(LlamaConfig(**fields)))
            models = {"llama": (llama_model, "deferred"), **models}
        return models | {"lime deferred": (lime, "deferred"), "lime triton": (lime, "triton")}

    def time(self, models, step, count=1):
        return median_seconds(models, step, self.repeats, self.device, count)

    def print_row(self, name, figures, unit=("ms", 1e3), base="plain"):
        cells = (
            f"{column} {value * unit[1]:.4g} {unit[0]} ({value / figures[base]:.3f})"
            for column, value in figures.items()
        )
        print(f"  {name:24s} " + "  ".join(cells), flush=True)
        return {"figures": figures, "ratios": {k: v / figures[base] for k, v in figures.items()}}


def check(benchmark):
    """Compare forward and gradients with naive in float64, and two repetitions bit for bit."""
    worst = {}
    shapes = [(2, 2, 3, 5, 6), (5, 1, 8, 33, 16)]
    if not benchmark.smoke:
        shapes += [
            (16, 2, 8, 300, 64),
            (16, 1, 32, 130, 64),
            (130, 1, 4, 17, 24),
            (3, 2, 17, 65, 80),
        ]
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)):
        for shape in shapes:
            for stored in (True, False):
                slots, weight, grads = _inputs(shape, dtype, benchmark.device)
                exact = [tuple(x.double() for x in slot) for slot in slots]
                expected = _forward_and_gradients(
                    "naive", exact, weight.double(), [g.double() for g in grads], stored
                )
                got = _forward_and_gradients("triton", slots, weight, grads, stored)
                again = _forward_and_gradients("triton", slots, weight, grads, stored)
                if not all(torch.equal(a, b) for a, b in zip(got, again, strict=True)):
                    raise AssertionError(f"two repetitions differ at {shape} in {dtype}")
                errors = [
                    ((a.double() - b).norm() / b.norm()).item()
                    for a, b in zip(got, expected, strict=True)
                ]
                if not max(errors) <= limit:
                    raise AssertionError(f"error {max(errors):.1e} at {shape} in {dtype}")
                worst[str(dtype)] = max(worst.get(str(dtype), 0), *errors)
    print("  largest relative error: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items()))
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


def _forward_and_gradients(name, slots, weight, grads, stored):
    leaves = [x.detach().requires_grad_() for slot in slots for x in slot]
    weight = weight.detach().requires_grad_()
    with using(name):
        pairs = list(zip(leaves[::2], leaves[1::2], strict=True))
        out = route([store(*pair) for pair in pairs] if stored else pairs, weight)
    return [*out, *torch.autograd.grad(out, [weight, *leaves], grads)]


def bandwidth(benchmark):
    """Measure bytes per second of a copy and of each kernel, by the bytes it has to move at 1B."""
    from layermem.ops.route import triton as kernels

    def seconds(work):
        work()
        times = []
        for _ in range(benchmark.repeats):
            if benchmark.device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                work()
            if benchmark.device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / 10)
        return statistics.median(times)

    size = 2**20 if benchmark.smoke else 2**31
    source = torch.randn(size // 2, device=benchmark.device).bfloat16()
    target = torch.empty_like(source)
    figures = {"copy": 2 * source.nbytes / seconds(partial(target.copy_, source))}
    del source, target
    for heads in (2,) if benchmark.smoke else (8, 32):
        shape = (4, 1, heads, 64, 16) if benchmark.smoke else (16, 4, heads, 2048, 64)
        slots, weight, grads = _inputs(shape, torch.bfloat16, benchmark.device)
        grads = kernels._backend.flatten(grads)
        columns = weight.unflatten(1, (-1, heads)).permute(1, 2, 0).contiguous()
        slot, n_slots = 2 * grads[0].nbytes, shape[0]
        works = {
            "gather": (partial(kernels._gather, weight, slots), n_slots + 1),
            "spread": (partial(kernels._spread, columns, grads), n_slots + 1),
            "gram": (partial(kernels._gram, grads, slots), n_slots + 1),
        }
        for name, (work, transfers) in works.items():
            figures[f"{name}, {heads} heads"] = transfers * slot / seconds(work)
    for name, value in figures.items():
        print(f"  {name:20s} {value / 1e12:6.2f} TB/s  {value / figures['copy']:5.1%} of the copy")
    return figures


def _training(benchmark, mode=None):
    """Measure a training step of each shape, compiled with the options ``mode`` if given."""
    figures = {}
    for name, (fields, batch, tokens) in benchmark.shapes().items():
        # Compiling takes minutes: only some shapes, and without LLaMA.
        if not benchmark.has_time(name) or (mode and name not in ("1B, 8 kv heads", "30M", "tiny")):
            continue
        models = benchmark.models(fields, llama=not mode)
        if mode:
            models = {
                column: (torch.compile(model, **mode), implementation)
                for column, (model, implementation) in models.items()
                if column != "lime deferred"
            }
        ids = torch.randint(fields["vocab_size"], (batch, tokens), device=benchmark.device)

        def step(model, ids=ids):
            if mode and benchmark.device == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        figures[name] = benchmark.print_row(name, benchmark.time(models, step))
        del models, step
        _free_memory()
    return figures


def training(benchmark):
    """Measure forward and backward, eager."""
    return _training(benchmark)


def compiled(benchmark):
    """Measure forward and backward, compiled."""
    return _training(benchmark, {"fullgraph": True})


def captured(benchmark):
    """Measure forward and backward, compiled with CUDA graphs."""
    return _training(benchmark, {"fullgraph": True, "mode": "reduce-overhead"})


def memory(benchmark):
    """Measure the peak of a step beyond the weights, and what a forward leaves allocated."""
    figures = {}
    if benchmark.device != "cuda":
        return figures
    for name, (fields, batch, tokens) in benchmark.shapes().items():
        if not benchmark.has_time(name):
            continue
        ids = torch.randint(fields["vocab_size"], (batch, tokens), device=benchmark.device)
        models, left, peak = benchmark.models(fields), {}, {}
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
        figures[f"{name}: left"] = benchmark.print_row(f"{name}: left", left, ("GB", 1e-9))
        figures[f"{name}: peak"] = benchmark.print_row(f"{name}: peak", peak, ("GB", 1e-9))
        del models
        _free_memory()
    return figures


def decoding(benchmark):
    """Measure a token decoded with a static cache and a CUDA graph."""
    figures, count = {}, 4 if benchmark.smoke else 50
    name, (fields, _, _) = next(iter(benchmark.shapes().items()))
    for batch in (1, 2) if benchmark.smoke else (1, 32):
        if not benchmark.has_time(f"batch {batch}"):
            continue
        models = benchmark.models(fields)
        steps = {}
        for column, (model, implementation) in models.items():
            with using(implementation), torch.no_grad():
                steps[column] = (
                    _make_token_decoder(benchmark, model, batch, count),
                    implementation,
                )

        def decode_tokens(decode_token):
            for _ in range(count):
                decode_token()

        figures[f"batch {batch}"] = benchmark.print_row(
            f"{name}, batch {batch}", benchmark.time(steps, decode_tokens, count)
        )
        del models, steps
        _free_memory()
    return figures


@torch.no_grad()
def _make_token_decoder(benchmark, model, batch, count):
    """Return a function that decodes the next token."""
    model.eval()
    # A static cache has room for all rounds, each of which continues where the last one ended.
    length = 256 + 4 + count * (benchmark.repeats + 1)
    cache = StaticCache(config=model.config, max_cache_len=length)
    prompt = torch.randint(32, (batch, 256), device=benchmark.device)
    model(prompt, past_key_values=cache, use_cache=True)
    token = prompt[:, -1:].clone()
    positions = torch.full((batch, 1), 256, device=benchmark.device)

    def decode_token():
        return model(token, position_ids=positions, past_key_values=cache, use_cache=True).logits

    if benchmark.device != "cuda":
        return torch.no_grad()(decode_token)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            decode_token()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_token()
    return graph.replay


def depth(benchmark):
    """Measure a training step by depth, at width 1024."""
    figures = {}
    for layers in (2, 3) if benchmark.smoke else DEPTHS:
        if not benchmark.has_time(f"{layers} layers"):
            continue
        fields = {**(SIZES_SMOKE if benchmark.smoke else SIZES_DEEP), "num_hidden_layers": layers}
        models = benchmark.models(fields, llama=False)
        shape = (2, 8) if benchmark.smoke else (4, 1024)
        ids = torch.randint(fields["vocab_size"], shape, device=benchmark.device)

        def step(model, ids=ids):
            model(ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        figures[str(layers)] = benchmark.print_row(f"{layers} layers", benchmark.time(models, step))
        del models, step
        _free_memory()
    return figures


def _free_memory():
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
