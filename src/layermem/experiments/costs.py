"""What variants cost beside each other: counted, and measured where asked.

The paper's Tables 8 and 9, and the same along depth and width.

It does not know: how anything is counted or measured, tables, figures.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from layermem.config import Model as ModelSizes
from layermem.config import Run
from layermem.data.tokenizers import load_tokenizer
from layermem.efficiency.costs import COUNTINGS, cost
from layermem.efficiency.measuring import Model, Shape, machine, measure
from layermem.experiments import presets
from layermem.experiments.comparison import arms
from layermem.models.registry import lookup
from layermem.results.costs import Mode, Precision
from layermem.runs import write_whole

_GPT2 = 50257
# The fields that say how large a model is.
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "vocab_size", "tie_word_embeddings"),
)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Count what variants cost, in closed form; --measure: the time and memory of a step too."""

    presets: tyro.conf.Positional[tuple[str, ...]] = ("paper-1b-gqa", "paper-1b-full")
    """Presets whose sizes are taken."""
    variants: str = "plain,lime"
    """Variants; the first is what the others are compared with."""
    tokens: int | None = None
    """Tokens of a sequence; None: the preset's."""
    layers: tuple[int, ...] = ()
    """Depths in place of the preset's."""
    widths: tuple[int, ...] = ()
    """Widths in place of the preset's; heads keep their width, the mlp its ratio."""
    measure: bool = False
    """Whether training steps are run: on a GPU if there is one, else one thread of the CPU."""
    batch: int = 4
    """Sequences of a measured step."""
    repeats: int = 9
    """Measured rounds, after a warm-up."""
    modes: tuple[Mode, ...] = ("eager",)
    """How measured steps are carried out: eager, or torch.compile's modes (the paper: default and
    reduce-overhead)."""
    precision: Precision | None = None
    """Arithmetic of measured steps; None: bfloat16 on a GPU, else float32."""
    out: Path | None = None
    """File for the figures, as JSON; layermem report reads it."""
    figure: Path | None = None
    """File (svg, png, pdf) for curves along --layers or --widths."""

    def __post_init__(self) -> None:
        for name in ("layers", "widths"):
            if bad := [size for size in getattr(self, name) if size < 1]:
                raise ValueError(f"--{name} must be at least 1 each, got {bad[0]}")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"--tokens must be at least 1, got {self.tokens}")
        if not self.presets or not self.modes:
            raise ValueError("name at least one preset and one of --modes")
        if self.figure is not None:
            if max(len(set(self.layers)), len(set(self.widths))) < 2:
                raise ValueError("a figure needs two sizes: --layers 4 8 16, or --widths 64 128")
            if len(arms(self.variants)) < 2:
                raise ValueError("a figure needs two --variants: it shows how much more one costs")


def run(asked: Costs, command: str = "") -> dict[str, Any]:
    """Count, and measure if asked; return what was found, and write it to ``asked.out``.

    ``command``: what asked for it.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = asked.precision or ("float32" if device == "cpu" else "bfloat16")
    points = list(_points(asked))
    result: dict[str, Any] = {
        "asked": json.loads(json.dumps(asdict(asked), default=str)),
        "command": command,
        "machine": machine(device) if asked.measure else None,
        "precision": precision if asked.measure else None,
        "points": [{"preset": name, **count(models, tokens)} for name, models, tokens in points],
    }
    if asked.measure:
        for point, measured in zip(
            result["points"], _measured(asked, points, device, precision), strict=True
        ):
            point["measured"] = measured
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(asked.out, json.dumps(result, indent=1) + "\n")
    return result


def count(models: Mapping[str, Model], tokens: int) -> dict[str, Any]:
    """Return sizes, and closed-form costs of each model on one sequence of ``tokens``."""
    variants = {}
    for name, (variant, fields) in models.items():
        entry = lookup(variant)
        # A config takes any name, and a misspelt option would cost nothing.
        if unknown := fields.keys() - {field.name for field in dataclass_fields(entry.config)}:
            raise ValueError(f"{entry.config.__name__} has no field {', '.join(sorted(unknown))}")
        config = entry.config(**fields)
        variants[name] = {
            how: asdict(cost(config, entry.variant, tokens, how)) for how in COUNTINGS
        }
    return {
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "tokens": tokens,
        "variants": variants,
    }


def sizes(run: Run) -> tuple[dict[str, Any], float]:
    """Return a run's model as fields, the vocabulary too, and the mean tokens of a sequence.

    Nothing is downloaded: a tokenizer that is not on this machine is taken to be GPT-2's size.
    """
    fields, length = run.model.sizes(), float(run.data.block_size)
    name = run.model.pretrained or (run.task.tokenizer if run.task.name else run.data.tokenizer)
    tokenizer = load_tokenizer(name) if name and (name == "bytes" or Path(name).is_dir()) else None
    vocabulary = len(tokenizer) if tokenizer else _GPT2
    if run.task.name and (tokenizer or name is None):
        from layermem.train.problems import measure as measure_problems

        vocabulary, length = measure_problems(run.task, tokenizer)
    fields["vocab_size"] = fields["vocab_size"] or vocabulary
    started = Path(run.model.pretrained or "", "config.json")
    if run.model.pretrained and started.exists():
        saved = json.loads(started.read_text(encoding="utf-8"))
        fields |= saved_fields(run.variant, fields, saved)
    return fields, length


def saved_fields(
    variant: str, fields: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a saved config says of sizes, heads' width and what routers read among them."""
    names = (*fields, *lookup(variant).config.shape_fields)
    return {name: saved[name] for name in names if name in saved}


def resized(
    fields: Mapping[str, Any], layers: int | None = None, width: int | None = None
) -> dict[str, Any]:
    """Return fields at another depth or width: heads keep their width, the mlp its ratio."""
    found = dict(fields)
    if layers is not None:
        found["num_hidden_layers"] = layers
    if width is not None:
        old, heads = fields["hidden_size"], fields["num_attention_heads"]
        kv_heads = fields["num_key_value_heads"] or heads
        if width * heads % old or width * kv_heads % old:
            raise ValueError(
                f"width {width} is no whole number of heads of width {old // heads} in groups of "
                f"{heads // kv_heads}; take a multiple of {old // kv_heads}"
            )
        found |= {
            "hidden_size": width,
            "intermediate_size": fields["intermediate_size"] * width // old,
            "num_attention_heads": width * heads // old,
            "num_key_value_heads": width * kv_heads // old,
        }
    return found


def _points(asked: Costs) -> Iterator[tuple[str, dict[str, Model], int]]:
    """Yield preset, models and tokens of every point asked for."""
    for preset in asked.presets:
        fields, length = sizes(presets.lookup(preset))
        for layers in asked.layers or (None,):
            for width in asked.widths or (None,):
                models: dict[str, Model] = {
                    arm: (
                        variant,
                        resized(fields, layers, width) | ModelSizes(options=own).variant_fields(),
                    )
                    for arm, (variant, own) in arms(asked.variants).items()
                }
                yield preset, models, asked.tokens or round(length)


def _measured(
    asked: Costs,
    points: Sequence[tuple[str, Mapping[str, Model], int]],
    device: str,
    precision: Precision,
) -> Iterator[dict[str, Any]]:
    """Yield what was measured, mode by mode, point by point, showing how far it is."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("measuring", total=len(points) * len(asked.modes))
        for _, models, tokens in points:
            found: dict[str, Any] = {}
            for mode in asked.modes:
                shape = Shape(
                    batch=asked.batch, tokens=tokens, device=device, precision=precision, mode=mode
                )
                measured = measure(models, shape, asked.repeats)
                found[mode] = {name: asdict(one) for name, one in measured.items()}
                progress.advance(bar)
            yield found
