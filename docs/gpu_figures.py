"""Write the figures of ``benchmarks/gpu.sh`` into docs/results/costs.md: python THIS_FILE.

They are read from the records benchmarks/results/DEVICE*.json. A record of a smoke run, and one
whose check has not passed, is refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "results" / "costs.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
BEGIN, END = (f"<!-- written by docs/gpu_figures.py: {edge} -->" for edge in ("begin", "end"))
UNITS = {"s": ("ms", 1e3), "bytes": ("GB", 1e-9), "bytes/s": ("TB/s", 1e-12)}
TITLES = {
    "check": "Largest relative error, compared with naive",
    "bandwidth": "Bytes a second of a copy and of each kernel, of 16 slots",
    "training": "Training step, eager, bfloat16",
    "memory": "Peak memory of a step beyond the weights",
    "paths": "Training step by implementation of routing",
    "depth": "Training step by depth, width 1024, eager, bfloat16",
    "compiled": "Training step, compiled, bfloat16",
    "compiled memory": "Peak memory of a compiled step beyond the weights",
    "decoding": "A decoded token, static cache",
}

Record = Mapping[str, Any]


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill_page(text, render(read_records(RESULTS))), encoding="utf-8")


def read_records(folder: Path) -> list[Record]:
    """Return the records of the GPU benchmark in a folder; refuse those that say nothing."""
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    ]
    records = [record for record in records if record.get("benchmark") == "gpu"]
    for record in records:
        device = record["machine"]["device"]
        if record["smoke"]:
            raise SystemExit(f"the record of {device} is of a smoke run, which says nothing")
        check = record["sections"].get("check", {"rows": {}, "failed": {}})
        if check["failed"] or not check["rows"]:
            raise SystemExit(f"the record of {device} has speeds whose check has not passed")
    return records


def fill_page(text: str, figures: str) -> str:
    """Return the page with ``figures`` between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{figures}\n{END}{rest.partition(END)[2]}"


def render(records: Sequence[Record]) -> str:
    """Return what the page says about GPUs."""
    return "\n\n".join(map(_render_record, records))


def _render_record(record: Record) -> str:
    machine, sections = record["machine"], record["sections"]
    named = {"versions": "", "driver": "driver ", "code": "sources "}
    details = ", ".join(f"{word}{machine[k]}" for k, word in named.items() if machine.get(k))
    parts = [
        f"**Measured on one {machine['device']}** ({details}); `benchmarks/gpu.sh`. Medians of "
        "interleaved rounds; in brackets the median ratio within a round to the first column, and "
        "its quartiles."
    ]
    for name, title in TITLES.items():
        section = sections.get(name, {"rows": {}, "failed": {}})
        if section["rows"]:
            parts.append(f"{title}:\n\n{_render_table(section['rows'])}")
        parts += [f"{name}, {row}: {error}." for row, error in section["failed"].items()]
    return "\n\n".join(parts)


def _render_table(rows: Mapping[str, Record]) -> str:
    """Return a table with a row for each row, and the columns that were measured in any of them."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row["figures"]))
    lines = [["", *columns]]
    lines += [[name, *(_render_cell(row, c) for c in columns)] for name, row in rows.items()]
    if len(rows) == 1 < len(columns):
        # The many forms of the family, below each other.
        lines = [list(cells) for cells in zip(*lines, strict=True)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _render_cell(row: Record, column: str) -> str:
    if column not in row["figures"]:
        return str(row.get("failed", {}).get(column, "")).replace("|", "\\|")
    figure = row["figures"][column]
    if row["unit"] not in UNITS:
        return f"{figure:.1e}"
    unit, scale = UNITS[row["unit"]]
    ratio = f"{row['ratios'][column]:.3f}"
    if column in row.get("quartiles", {}):
        low, high = row["quartiles"][column]
        ratio += f", {low:.3f} to {high:.3f}"
    return f"{figure * scale:.4g} {unit} ({ratio})"


if __name__ == "__main__":
    main()
