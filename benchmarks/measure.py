"""How the benchmarks measure: the models side by side, in turn, medians, ratios.

On a CPU the figure is the process's own time on one thread, which other people's load does not
touch; on a GPU it is the device's wall time. A ratio is taken within one process and one run.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import layermem
from layermem.efficiency import measuring
from layermem.ops.route import implementations, using

# name: (fields, batch, tokens). The mlp is four times as wide, as in the paper.
SHAPES = {
    "4x32": ({"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4}, 64, 128),
    "8x384-gqa": (
        {
            "num_hidden_layers": 8,
            "hidden_size": 384,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
        },
        2,
        512,
    ),
    "8x384": ({"num_hidden_layers": 8, "hidden_size": 384, "num_attention_heads": 6}, 2, 512),
    "32x128": ({"num_hidden_layers": 32, "hidden_size": 128, "num_attention_heads": 8}, 4, 256),
    "64x128": ({"num_hidden_layers": 64, "hidden_size": 128, "num_attention_heads": 8}, 4, 256),
}


def parser(document, shapes=tuple(SHAPES)):
    """Return a parser of what every benchmark takes."""
    options = argparse.ArgumentParser(description=document.splitlines()[0])
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=shapes, metavar="SHAPE")
    options.add_argument("--repeats", type=int, default=9, help="counted rounds after a warm-up")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--json", type=Path, help="write the figures here as well")
    return options


def arguments(options):
    """Parse the command line, and keep to one thread."""
    torch.set_num_threads(1)
    return options.parse_args()


def full(fields):
    """Fill in the fields the shapes leave out."""
    return {"vocab_size": 256, "intermediate_size": 4 * fields["hidden_size"], **fields}


def columns(fields, device, routes=None):
    """Return {column: (model, implementation)}: LLaMA, plain, and LIMe by each implementation."""
    fields = full(fields)
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**fields)).to(device)
    torch.manual_seed(0)
    plain = layermem.build("plain", **fields).to(device)
    torch.manual_seed(0)
    lime = layermem.build("lime", **fields).to(device)
    # Without a GPU, kernels run in the interpreter alone: nothing to measure.
    here = [name for name in implementations() if device != "cpu" or name != "triton"]
    routed = {f"lime {name}": (lime, name) for name in routes or here}
    return {"llama": (llama, "naive"), "plain": (plain, "naive"), **routed}


def in_turn(models, step, repeats, device, count=1):
    """Run every column once per round; return {column: median seconds}, first round dropped.

    ``count``: how many of what the figure is for one step does.
    """

    def work(model, implementation):
        with using(implementation):
            step(model)

    steps = {name: partial(work, *column) for name, column in models.items()}
    seconds = measuring.in_turn(steps, repeats, device)
    return {name: statistics.median(values) / count for name, values in seconds.items()}


def machine(device):
    """Say what ran this."""
    return f"{measuring.machine(device)}, transformers {transformers.__version__}"


def show(title, rows, device, path=None, base="llama", unit=("ms", 1e3)):
    """Print a table of figures and ratios to ``base``, and write the figures as JSON."""
    print(f"{title} ({machine(device)})")
    names = list(next(iter(rows.values())))
    print("shape".ljust(20) + "".join(name.rjust(24) for name in names))
    for shape, figures in rows.items():
        cells = (
            f"{value * unit[1]:.4g} {unit[0]} {value / figures[base]:6.3f}"
            for value in figures.values()
        )
        print(shape.ljust(20) + "".join(cell.rjust(24) for cell in cells), flush=True)
    if path:
        ratios = {s: {n: v / f[base] for n, v in f.items()} for s, f in rows.items()}
        result = {"title": title, "machine": machine(device), "figures": rows, "ratios": ratios}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
