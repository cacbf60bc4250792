"""What the benchmarks share: shapes, models to compare, interleaved timing, and tables of ratios.

On a CPU a figure is the CPU time of the process on one thread, which does not depend on other
processes; on a GPU it is wall time. The two numbers of a ratio come from the same process. Those of
times come from the same round, and the ratio is the median over the rounds.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from concatenating import build_concatenating
from transformers import LlamaConfig, LlamaForCausalLM

import layermem
from layermem_bench.config.run import Model
from layermem_bench.costs import measuring
from layermem_bench.studies.boards import parse_arms

# name: (config fields, batch, tokens). The mlp is four times as wide as the model, as in the paper.
SHAPES = {
    "4x32": ({"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4}, 64, 128),
    "8x64": ({"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 8}, 16, 128),
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
    "16x512-gqa": (
        {
            "num_hidden_layers": 16,
            "hidden_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
        },
        2,
        512,
    ),
    "16x128": ({"num_hidden_layers": 16, "hidden_size": 128, "num_attention_heads": 8}, 4, 256),
    "32x128": ({"num_hidden_layers": 32, "hidden_size": 128, "num_attention_heads": 8}, 4, 256),
    "64x128": ({"num_hidden_layers": 64, "hidden_size": 128, "num_attention_heads": 8}, 4, 256),
    # So few tokens that the time is that of calls, for which a GPU waits.
    "64x64-calls": ({"num_hidden_layers": 64, "hidden_size": 64, "num_attention_heads": 8}, 1, 8),
}

# Forms that mix, attend or add over depth, each of which has an eager loop of its equations.
_OVER_DEPTH = (
    "lime,lime:router_shares_kv=false,recipe,value_residual,depth_attention,lime_hidden,"
    "lime_hidden:form=dynamic,denseformer,attention_residuals,attention_residuals:residual_form=block,"
    "attention_residuals:residual_form=delta,mudd,mudd:pre_post_norm=true,dca,dca:recent=2,"
    "hyper_connections,hyper_connections:coefficients=static,mhc,mhc:res=identity,"
    "lime+hyper_connections,lime+mudd,value_residual+denseformer"
)
# What docs/results/costs.md and README.md compare, and --variants family stands for.
FAMILY = (
    f"{_OVER_DEPTH},recipe+mudd,"
    'mudd:mixing_layers=2:mixing_ways=["value","residual"]:mixing_sources=[0,16],'
    "midpoint,value_embeddings,laurel,gated_residual:gate_rank=64,lime_half,cla,yoco,fused_kv"
)
# LOWEST: half of the layers of a shape.
STORAGE = "lime_half,lime_half:storage=LOWEST,cla,yoco,fused_kv,fused_kv:fusion=lite"
# What our LIMe is compared with, unless other columns are asked for.
COLUMNS = ("llama", "plain", "concatenating", "lime")
# Forms that have an eager loop of their equations.
WITH_LOOPS = f"{_OVER_DEPTH},recipe_half,cla,yoco,fused_kv,fused_kv:fusion=lite"


def make_parser(document, shapes=tuple(SHAPES)):
    """Return a parser of the options that all benchmarks have."""
    options = argparse.ArgumentParser(description=document.splitlines()[0])
    options.add_argument("--shapes", nargs="+", choices=SHAPES, default=shapes, metavar="SHAPE")
    options.add_argument("--repeats", type=int, default=9, help="measured rounds after a warm-up")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--json", type=Path, help="file to write the figures to")
    return options


def add_variants_option(options):
    """Add the option that replaces the columns by plain and the named variants."""
    options.add_argument(
        "--variants",
        help="compare these with plain instead: NAME[:FIELD=VALUE...][,NAME...], as in a study; "
        "family: the forms that docs/results/costs.md compares; storage: those with smaller caches",
    )


def add_routers_option(options):
    """Add the option that replaces the columns by routers that read all or some layers."""
    options.add_argument(
        "--routers", action="store_true", help="compare full, windowed and pruned routers instead"
    )


def parse_arguments(options):
    """Parse the command line, and set torch to one thread."""
    torch.set_num_threads(1)
    return options.parse_args()


def complete_fields(fields):
    """Return the fields of a shape with the ones that all shapes share."""
    shared = {"vocab_size": 256, "max_position_embeddings": 32768}
    return {**shared, "intermediate_size": 4 * fields["hidden_size"], **fields}


def build_models(fields, device, columns, dtype=torch.float32):
    """Return {column: model}: each of ``columns`` is built by ``build_model``."""
    return {column: build_model(column, fields, device).to(dtype) for column in columns}


def build_model(column, fields, device):
    """Build a model: "llama", "concatenating", or a variant with fields, as in a study.

    "concatenating" is LIMe in the form of the paper's pseudocode, a model of its own, which is
    compared with ours first.
    """
    fields = complete_fields(fields)
    # Weights are drawn on the device itself: on the CPU those of a 1B take a minute.
    with torch.device(device):
        torch.manual_seed(0)
        if column == "llama":
            return LlamaForCausalLM(LlamaConfig(**fields))
        if column == "concatenating":
            return build_concatenating(fields, layermem.build("lime", **fields))
        ((variant, options),) = parse_arms(column).values()
        return layermem.build(variant, **fields, **Model(options=options).variant_fields())


def build_variants(fields, device, names, dtype=torch.float32):
    """Return {column: model} of plain and the named variants."""
    lowest = str(fields["num_hidden_layers"] // 2)
    lists = {"family": FAMILY, "storage": STORAGE.replace("LOWEST", lowest)}
    # Plain may be the only one that is named.
    return build_models(fields, device, parse_arms(f"plain,{lists.get(names, names)}"), dtype)


def build_routers(fields, device):
    """Return {column: model} of plain, LIMe, and LIMe whose routers read fewer layers."""
    models = {}
    for column, (variant, chosen) in {
        "plain": ("plain", {}),
        "lime": ("lime", {}),
        "last 4": ("lime", {"router": "last", "router_window": 4}),
        "first 2": ("lime", {"router": "first", "router_window": 2}),
        "pruned": ("lime", {}),
    }.items():
        torch.manual_seed(0)
        with torch.device(device):
            models[column] = layermem.build(variant, **complete_fields(fields), **chosen)
    # New routers have about the same weight on every layer: half of the layers are left.
    models["pruned"].prune_routers(0.6)
    return models


def training_step(ids):
    """Return what runs forward and backward of a model on ids, and drops its gradients."""

    def step(model):
        model(ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()

    return step


def median_seconds(models, step, repeats, device, count=1):
    """Return {column: median seconds} of ``round_seconds``."""
    rounds = round_seconds(models, step, repeats, device, count)
    return {name: statistics.median(values) for name, values in rounds.items()}


def round_seconds(models, step, repeats, device, count=1):
    """Run the step of every column once in each round; return {column: seconds of each round}.

    ``count``: how many units one step computes; the figure is for one of them.
    """
    steps = {name: partial(step, model) for name, model in models.items()}
    seconds = measuring.time_interleaved(steps, repeats, device)
    return {name: [value / count for value in values] for name, values in seconds.items()}


def describe_machine(device):
    """Return the kind of device and the versions, for captions."""
    return f"{measuring.describe_machine(device)}, transformers {transformers.__version__}"


def summarize(columns, base):
    """Return medians, and median ratios to ``base``; of several rounds, their quartiles too.

    ``columns`` are {column: a number, or a list with the number of every round}; a ratio is one
    within a round.
    """
    figures = {name: float(np.median(values)) for name, values in columns.items()}
    quartiles = {
        name: np.percentile(np.divide(values, columns[base]), (25, 50, 75)).tolist()
        for name, values in columns.items()
    }
    summary = {"figures": figures, "ratios": {name: q[1] for name, q in quartiles.items()}}
    rounds = np.size(columns[base])
    if rounds > 1:
        summary["rounds"] = rounds
        summary["quartiles"] = {name: [low, high] for name, (low, _, high) in quartiles.items()}
    return summary


def format_cells(summary, unit=("ms", 1e3)):
    """Return {column: text} of what ``summarize`` returned."""
    cells = {}
    for name, figure in summary["figures"].items():
        cells[name] = f"{figure * unit[1]:.4g} {unit[0]} {summary['ratios'][name]:6.3f}"
        if "quartiles" in summary:
            cells[name] += " [{:.3f}, {:.3f}]".format(*summary["quartiles"][name])
    return cells


def print_table(title, rows, device, path=None, base="llama", unit=("ms", 1e3)):
    """Print a table of figures and ratios to ``base``, and write the figures as JSON.

    A figure is a number, or a list with the number of every round; then its median is printed, and
    of the ratios within a round the median and the quartiles.
    """
    print(f"{title} ({describe_machine(device)})")
    names = list(next(iter(rows.values())))
    width = max(32, *(len(name) + 2 for name in names))
    first = max(20, *(len(shape) + 2 for shape in rows))
    print("shape".ljust(first) + "".join(name.rjust(width) for name in names))
    result = {"title": title, "machine": describe_machine(device), "figures": {}, "ratios": {}}
    for shape, columns in rows.items():
        summary = summarize(columns, base)
        for key, value in summary.items():
            result.setdefault(key, {})[shape] = value
        cells = (cell.rjust(width) for cell in format_cells(summary, unit).values())
        print(shape.ljust(first) + "".join(cells), flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
