"""Record the facts of the variants, and write the tables of docs/family.md: python THIS_FILE.

To be run after a variant has been added or has changed what it costs. What a step and a token take
is read from the records of the benchmarks, which ``--variants family`` of each writes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layermem_bench.costs.model_sizes import model_sizes
from layermem_bench.costs.variant_facts import (
    PRESET,
    RECORD,
    Facts,
    find_facts,
    table_of,
)
from layermem_bench.presets import get_preset

PAGE = Path(__file__).parent / "family.md"
RECORDS = Path(__file__).parents[1] / "benchmarks" / "results"
SHAPE = "32x128"
# Of each record: the part of a row's name after the shape, and its column's head.
_COLUMNS = {
    "family_training_step": {"": "training step"},
    "family_memory": {" alive": "kept for the backward", " peak": "peak of a step"},
    "family_decode_step": {" prompt": "prompt of 64", " token": "token"},
}


def main() -> None:
    facts = find_facts(model_sizes(get_preset(PRESET))[0])
    RECORD.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    for table in (facts_table(facts), costs_table()):
        text = _replace_table(text, table)
    PAGE.write_text(text, encoding="utf-8")


def facts_table(facts: Sequence[Facts]) -> str:
    """Return the facts of the variants as a table."""
    header, *rows = table_of(facts)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def costs_table() -> str:
    """Return what the forms take as ratios to the plain decoder, as recorded."""
    columns: dict[str, Mapping[str, float]] = {}
    for name, heads in _COLUMNS.items():
        ratios = _read_ratios(RECORDS / f"{name}.json")
        columns |= {head: ratios[SHAPE + suffix] for suffix, head in heads.items()}
    forms = [form for form in next(iter(columns.values())) if form != "plain"]
    for head, of_forms in columns.items():
        if {*of_forms} != {*forms, "plain"}:
            raise SystemExit(
                f"the column {head!r} has other forms than the first: {sorted(of_forms)}; record "
                "all of them with --variants family"
            )
    rows = [
        [f"`{form}`", *(f"{of_forms[form]:.2f}" for of_forms in columns.values())] for form in forms
    ]
    lines = [["form", *columns], ["---"] * (len(columns) + 1), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _read_ratios(path: Path) -> Mapping[str, Mapping[str, float]]:
    record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record["ratios"]


def _replace_table(text: str, table: str) -> str:
    """Return the text with ``table`` in the place of the one that begins with the same cell."""
    start = table[: table.index(" |", 2) + 2]
    page, count = re.subn(rf"(?m)^{re.escape(start)}.*\n(\|.*\n)+", lambda _: f"{table}\n", text)
    if count != 1:
        raise SystemExit(f"{PAGE} must have one table that begins with {start!r}, got {count}")
    return page


if __name__ == "__main__":
    main()
