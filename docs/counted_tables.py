"""Write the tables of README.md and docs that are counted, or recorded by the benchmarks.

    python docs/counted_tables.py

To be run after a variant has been added or has changed what it costs. What a step and a token of
the family take is read from the records of the benchmarks, which ``--variants family`` of each
writes; losses from studies' records; who ships what from docs/adoption.toml.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from layermem.generation.vllm import SERVED
from layermem_bench.config.computing import get_device
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.costs.closed_forms import count_family
from layermem_bench.costs.model_sizes import model_sizes, runs_of_arms
from layermem_bench.costs.plan import plan
from layermem_bench.pages.page import format_duration, in_bytes
from layermem_bench.presets import get_preset
from layermem_bench.studies.boards import parse_arms
from layermem_bench.studies.comparing import lines_of
from layermem_bench.studies.result import StudyResult

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "benchmarks" / "results"
DEVICE, GPUS, UTILISATION = get_device("h100"), 8, 0.4
ARMS = "plain,lime"
# Of each preset the steps; of the first those that the page's scripts ask for, 10B tokens.
STEPS = {"paper-150m": 4_768, "paper-1b-gqa": get_preset("paper-1b-gqa").max_steps}
SHAPE = "32x128"
# Of each record: the part of a row's name after the shape, and its column's head.
COLUMNS = {
    "training_step": {"": "training step"},
    "memory": {" alive": "kept for the backward", " peak": "peak of a step"},
    "decode_step": {" prompt": "prompt of 64", " token": "token"},
}
# Shapes of the benchmarks, as the tables name them.
SHAPES = {
    "4x32": "4 x 32",
    "8x384-gqa": "8 x 384, 2 kv heads",
    "8x384": "8 x 384, 6 kv heads",
    "16x512-gqa": "16 x 512, 2 kv heads",
    "32x128": "32 x 128",
    "64x128": "64 x 128",
}

# What README.md shows of the family: forms, and what a layer reads beside the last one's output.
OVERVIEW = {
    "lime": "keys and values of all earlier layers, by learned sums",
    "recipe": "the same, keys and values apart, from a better start",
    "recipe+mudd": "that, and MUDD",
    "value_residual": "the first layer's values",
    "value_embeddings": "values of the token, from a table",
    "denseformer": "all earlier outputs, by constant sums",
    "mudd": "all earlier outputs, by sums of the token for query, key, value, residual",
    "attention_residuals": "all earlier outputs, by attention over depth",
    "hyper_connections": "several residual streams, mixed by learned weights",
    "mhc": "the same, mixing without gain",
    "midpoint": "upper keys and values from mid depth",
    "yoco": "upper half: keys and values of one layer",
    "cla": "pairs of layers share keys and values",
    "lime_half": "LIMe, and every second layer borrows",
}
# The studies whose differences from the plain decoder README.md shows, by form.
LOSSES = ("quiet-books-asked", "quiet-books-streams")
# Where a form is told of, if it has no heading of its own name in docs/family.md.
PLACES = {
    "lime": "mechanism.md",
    "recipe": "recipe.md",
    "recipe+mudd": "recipe.md",
    "lime_half": "mechanism.md#layers-that-store-nothing",
    "yoco": "family.md#cla-yoco-fused_kv",
    "cla": "family.md#cla-yoco-fused_kv",
}


def main() -> None:
    for name, tables in tables_of_pages().items():
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        for table in tables:
            text = replace_table(text, table)
        page.write_text(text, encoding="utf-8")


def tables_of_pages() -> dict[str, list[str]]:
    """Return each page's tables."""
    return {
        "../README.md": [overview_table()],
        "scale.md": [plans_table()],
        "recipe.md": [recipe_table()],
        "family.md": [family_table(), adoption_table()],
        "results/costs.md": [family_costs_table(), *storage_tables(), *llama_tables()],
    }


def plans_table() -> str:
    """Return what training would take on the GPUs of one machine."""
    rows = [["on eight H100s", "tokens", "memory of a GPU", "step", "time"]]
    for preset, steps in STEPS.items():
        for arm, run in runs_of_arms(get_preset(preset), parse_arms(ARMS)).items():
            planned = plan(replace(run, max_steps=steps), DEVICE, GPUS, UTILISATION)
            tokens = steps * run.optim.batch_size * run.data.block_size
            rows.append(
                [
                    f"{preset}, {arm}",
                    f"{tokens / 1e9:.1f}B",
                    in_bytes(sum(planned.memory.values())),
                    f"{planned.step:.2f} s",
                    format_duration(planned.seconds),
                ]
            )
    return _markdown(rows)


def family_table() -> str:
    """Return what the package's variants add at one shape."""
    rows = count_family(model_sizes(get_preset("paper-1b-gqa"))[0])
    return _markdown([list(rows[0]), *(list(row.values()) for row in rows)])


def adoption_table() -> str:
    """Return which released models have a wiring of the family."""
    models = tomllib.loads((DOCS / "adoption.toml").read_text(encoding="utf-8"))["model"]
    rows = [["released model", "wiring", "here", "seen in", "as of"]]
    for of in models:
        rows.append([of["name"], of["wiring"], f"`{of['here']}`", of["seen"], str(of["date"])])
    return _markdown(rows)


def overview_table() -> str:
    """Return README's table: paper, adoption and price of each form."""
    costs = [_recorded_costs()[head] for head in ("training step", "token")]
    losses = _recorded_losses()
    sizes = model_sizes(get_preset("paper-1b-gqa"))[0]
    counted = {row["variant"]: row for row in count_family(sizes)}
    rows = [
        [
            "wiring",
            "a layer also reads",
            "paper",
            "shipped in, or alike",
            "loss",
            "step",
            "token",
            "cache",
            "vLLM",
        ],
    ]
    for form, reads in OVERVIEW.items():
        of = counted[form.replace("recipe+", "").replace("recipe", "lime")]
        cached = [int(row["cache bytes"].replace(",", "")) for row in (of, counted["plain"])]
        paper = f"[{of['arXiv']}](https://arxiv.org/abs/{of['arXiv']})"
        rows.append(
            [
                f"[`{form}`](docs/{PLACES.get(form, f'family.md#{form}')})",
                reads,
                paper if of["arXiv"] != "none" else "",
                of["shipped in"].replace("none", ""),
                losses.get(form, ""),
                *(f"{of_forms[form]:.2f}" if form in of_forms else "" for of_forms in costs),
                f"{cached[0] / cached[1]:.2g}",
                "yes" if form in (*SERVED, "recipe") else "",
            ]
        )
    return _markdown(rows)


def family_costs_table() -> str:
    """Return what the forms take as ratios to the plain decoder, as recorded."""
    columns = _recorded_costs()
    forms = [form for form in next(iter(columns.values())) if form != "plain"]
    rows = [["form", *columns]]
    for form in forms:
        rows.append([f"`{form}`", *(f"{of_forms[form]:.2f}" for of_forms in columns.values())])
    return _markdown(rows)


def _recorded_losses() -> dict[str, str]:
    """Return each form's mean difference in loss from the plain decoder, as recorded."""
    losses = {}
    for name in LOSSES:
        result = read_result(StudyResult, DOCS / "records" / f"{name}.json")
        (board,) = result.boards
        for line in lines_of(result, board, board.conditions[0], board.metric):
            if line.difference is not None:
                losses[line.arm.partition(":")[0]] = f"{line.difference.mean:+.3f}"
    return losses


def recipe_table() -> str:
    """Return what a training step of the recipe and its rivals takes."""
    shapes = {"8x384-gqa": "8 layers of width 384, 2 key-value heads"}
    shapes["32x128"] = "32 layers of width 128, 8 key-value heads"
    rows = [["training step", *shapes.values()]]
    for form in ("lime", "recipe", "value_residual", "mudd", "recipe+mudd"):
        cells = [_with_quartiles("recipe_training_step", shape, form) for shape in shapes]
        rows.append([f"`{form}`", *cells])
    return _markdown(rows)


def storage_tables() -> list[str]:
    """Return what forms with smaller caches take, as ratios to the plain decoder."""
    columns = {"prompt of 2048": "prompt of 2,048", "token after 128": "token after 128"}
    columns |= {f"token after {n}": f"after {n:,}" for n in (2048, 16384)}
    made = []
    shapes = {"8x384-gqa": (8, "width 384, 2 key-value heads")}
    shapes["32x128"] = 32, "width 128, 8 key-value heads"
    for shape, (layers, sizes) in shapes.items():
        rows = [[f"{layers} layers of {sizes}", *columns.values()]]
        lowest = f"lime_half:storage={layers // 2}"
        for form in ("lime_half", lowest, "cla", "yoco", "fused_kv", "fused_kv:fusion=lite"):
            cells = []
            for part in columns:
                file = "storage_decode_step" + "_long" * part.endswith("16384")
                cells.append(_with_quartiles(file, f"{shape} {part}", form))
            rows.append([f"`{form}`", *cells])
        made.append(_markdown(rows))
    return made


def llama_tables() -> list[str]:
    """Return what plain, LIMe and the concatenating form take, as ratios to LLaMA."""
    decoded = {" prompt": ", prompt", " token": ", token"}
    decoded |= {f"{key} x8": f"{said}, batch 8" for key, said in decoded.items()}
    kept = {" alive": ", kept", " peak": ", peak"}
    made = []
    for title, file, lime, suffixes in (
        ("training step", "training_step", "lime", {"": ""}),
        ("decoding", "decode_step", "lime", decoded),
        ("memory", "memory", "lime grouped", kept),
    ):
        ratios = _record(file)["ratios"]
        rows = [[title, "plain", "LIMe", "concatenating"]]
        for shape, said in SHAPES.items():
            for suffix, part in suffixes.items():
                if of := ratios.get(shape + suffix):
                    cells = [f"{of[column]:.3f}" for column in ("plain", lime, "concatenating")]
                    rows.append([f"{said}{part}", *cells])
        made.append(_markdown(rows))
    return made


def _with_quartiles(file: str, row: str, form: str) -> str:
    record = _record(file)
    low, high = record["quartiles"][row][form]
    return f"{record['ratios'][row][form]:.2f} [{low:.2f}, {high:.2f}]"


@cache
def _record(name: str) -> Mapping[str, Any]:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _recorded_costs() -> dict[str, Mapping[str, float]]:
    """Return each column of costs: the ratio of each form to the plain decoder."""
    columns: dict[str, Mapping[str, float]] = {}
    for name, heads in COLUMNS.items():
        ratios = _record(f"family_{name}")["ratios"]
        columns |= {head: ratios[SHAPE + suffix] for suffix, head in heads.items()}
    return columns


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replace_table(text: str, table: str) -> str:
    """Return the text with ``table`` in the place of the one that begins with the same cell."""
    start = table[: table.index(" |", 2) + 2]
    page, count = re.subn(rf"(?m)^{re.escape(start)}.*\n(\|.*\n)*", lambda _: f"{table}\n", text)
    if count != 1:
        raise SystemExit(f"the page must have one table that begins with {start!r}, got {count}")
    return page


if __name__ == "__main__":
    main()
