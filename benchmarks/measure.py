"""What the benchmarks share: shapes, models to compare, interleaved timing, and tables of ratios.

On a CPU a figure is the CPU time of the process on one thread, which does not depend on other
processes; on a GPU it is wall time. The two numbers of a ratio come from the same process. Those of
times come from the same round, and the ratio is the median over the rounds.
"""

import argparse
import json
import statistics
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from concatenating import build_concatenating
from transformers import LlamaConfig, LlamaForCausalLM

import layermem
from layermem.config import Model
from layermem.efficiency import measuring
from layermem.experiments.arms import parse_arms
from layermem.ops import route

# name: (config fields, batch, tokens). The mlp is four times as wide as the model, as in the paper.
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
}

# The forms of the family that docs/family.md compares: what --variants family stands for.
FAMILY = (
    "lime,lime:router_shares_kv=false,value_residual,depth_attention,lime_hidden,"
    "lime_hidden:form=dynamic,denseformer,attention_residuals,attention_residuals:residual_form=block,"
    "attention_residuals:residual_form=delta,mudd,mudd:pre_post_norm=true,dca,dca:recent=2,"
    "hyper_connections,hyper_connections:coefficients=static,mhc,mhc:res=identity,"
    "lime+hyper_connections,lime+mudd,value_residual+denseformer"
)


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
        help="compare these with plain instead: NAME[:FIELD=VALUE...][,NAME...], as in a sweep; "
        "family: the forms that docs/family.md compares",
    )


def parse_arguments(options):
    """Parse the command line, and set torch to one thread."""
    torch.set_num_threads(1)
    return options.parse_args()


def complete_fields(fields):
    """Return the fields of a shape with the ones that all shapes share."""
    return {"vocab_size": 256, "intermediate_size": 4 * fields["hidden_size"], **fields}


def build_models(fields, device, implementations=None):
    """Return {column: (model, implementation of routing)}.

    The columns are LLaMA, the plain decoder, LIMe in the paper's concatenating form, which is a
    model of its own, and our LIMe for each implementation.
    """
    fields = complete_fields(fields)
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**fields)).to(device)
    torch.manual_seed(0)
    plain = layermem.build("plain", **fields).to(device)
    torch.manual_seed(0)
    lime = layermem.build("lime", **fields).to(device)
    if implementations is None:
        # On a CPU, Triton's kernels run in its interpreter, whose time says nothing.
        names = route.implementations()
        implementations = [name for name in names if device != "cpu" or name != "triton"]
    limes = {f"lime {name}": (lime, name) for name in implementations}
    peers = {"llama": llama, "plain": plain, "concatenating": build_concatenating(fields, lime)}
    return {**{name: (model, "naive") for name, model in peers.items()}, **limes}


def build_variants(fields, device, names):
    """Return {column: (model, None)} of plain and the named variants; see ``forcing``."""
    models = {}
    names = FAMILY if names == "family" else names
    for arm, (variant, options) in parse_arms(f"plain,{names}").items():
        torch.manual_seed(0)
        chosen = Model(options=options).variant_fields()
        model = layermem.build(variant, **complete_fields(fields), **chosen).to(device)
        models[arm] = model, None
    return models


def forcing(implementation):
    """Return a context with an implementation of routing; None: the one that is chosen anyway."""
    return nullcontext() if implementation is None else route.using(implementation)


def median_seconds(models, step, repeats, device, count=1):
    """Return {column: median seconds} of ``round_seconds``."""
    rounds = round_seconds(models, step, repeats, device, count)
    return {name: statistics.median(values) for name, values in rounds.items()}


def round_seconds(models, step, repeats, device, count=1):
    """Run the step of every column once in each round; return {column: seconds of each round}.

    ``count``: how many units one step computes; the figure is for one of them.
    """

    def run_step(model, implementation):
        with forcing(implementation):
            step(model)

    steps = {name: partial(run_step, *column) for name, column in models.items()}
    seconds = measuring.time_interleaved(steps, repeats, device)
    return {name: [value / count for value in values] for name, values in seconds.items()}


def describe_machine(device):
    """Return the kind of device and the versions, for captions."""
    return f"{measuring.describe_machine(device)}, transformers {transformers.__version__}"


def print_table(title, rows, device, path=None, base="llama", unit=("ms", 1e3)):
    """Print a table of figures and ratios to ``base``, and write the figures as JSON.

    A figure is a number, or a list with the number of every round; then its median is printed, and
    of the ratios within a round the median and the quartiles.
    """
    print(f"{title} ({describe_machine(device)})")
    names = list(next(iter(rows.values())))
    print("shape".ljust(20) + "".join(name.rjust(32) for name in names))
    result = {"title": title, "machine": describe_machine(device), "figures": {}, "ratios": {}}
    for shape, columns in rows.items():
        figures = {name: float(np.median(values)) for name, values in columns.items()}
        quartiles = {
            name: np.percentile(np.divide(values, columns[base]), (25, 50, 75)).tolist()
            for name, values in columns.items()
        }
        result["figures"][shape] = figures
        result["ratios"][shape] = {name: ratio for name, (_, ratio, _) in quartiles.items()}
        rounds = np.size(columns[base])
        if rounds > 1:
            result.setdefault("rounds", {})[shape] = rounds
            result.setdefault("quartiles", {})[shape] = {
                name: [low, high] for name, (low, _, high) in quartiles.items()
            }
        cells = (
            f"{figures[name] * unit[1]:.4g} {unit[0]} {ratio:6.3f}"
            + (f" [{low:.3f}, {high:.3f}]" if rounds > 1 else "")
            for name, (low, ratio, high) in quartiles.items()
        )
        print(shape.ljust(20) + "".join(cell.rjust(32) for cell in cells), flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
