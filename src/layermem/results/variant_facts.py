"""What the variants are at one shape: their seam, costs, and what crosses their layers; a table.

The facts of the package's own variants are recorded in ``variants/facts.json``, so that they are
shown without importing the variants; the tests compare them with the variants.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from layermem.typed_dicts import from_dict

RECORD = Path(__file__).parents[1] / "variants" / "facts.json"
"""The recorded facts."""
COLUMNS = (
    *("variant", "seam", "parameters", "FLOPs", "bytes over depth", "cache bytes"),
    *("starts plain", "arXiv"),
)
"""The heads of the table."""


@dataclass(frozen=True, kw_only=True)
class VariantFacts:
    """One variant at the shape of the preset paper-1b-gqa, with its default fields."""

    name: str
    """The variant."""
    seams: tuple[str, ...]
    """The seams that it fills: "memory", "stream"."""
    extra_parameters: int
    """Trainable parameters beyond the plain decoder's."""
    extra_flops: int
    """Forward FLOPs for one token beyond the plain decoder's."""
    depth_bytes: int
    """Bytes in bfloat16 that a layer hands to later ones for one token, on average."""
    cache_bytes: int
    """Bytes in bfloat16 of keys and values that the cache holds for one token, all layers."""
    plain_fields: str | None
    """Fields with which a new model computes what the plain decoder does; None: there are none."""
    source: str
    """arXiv number of the paper."""

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table, as ``COLUMNS`` names them."""
        return (
            self.name,
            " and ".join(self.seams) or "none",
            f"{self.extra_parameters:,}",
            f"{self.extra_flops:,}",
            f"{self.depth_bytes:,}",
            f"{self.cache_bytes:,}",
            "no" if self.plain_fields is None else self.plain_fields or "yes",
            self.source or "none",
        )


def read_facts(path: Path = RECORD) -> list[VariantFacts]:
    """Return the recorded facts."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [from_dict(VariantFacts, row, "") for row in rows]


def write_facts(facts: Sequence[VariantFacts], path: Path = RECORD) -> None:
    """Record facts."""
    rows = [asdict(row) for row in facts]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def markdown_table(facts: Sequence[VariantFacts]) -> str:
    """Return the table of a page."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.row() for row in facts)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
