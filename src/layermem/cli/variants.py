"""`layermem variants`: the architectures, what they cost and what crosses their layers.

It does not know: how the facts are found.
"""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from layermem.cli.screen import screen


@dataclass(frozen=True, kw_only=True)
class Variants:
    """List the variants with what they add to the plain decoder at the shape of paper-1b-gqa."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON in place of a table."""


def variants(options: Variants, command: str) -> None:
    """Print the recorded facts of the variants; find those of variants from elsewhere."""
    from rich.table import Table

    from layermem.results.variant_facts import COLUMNS, read_facts

    facts = read_facts()
    registry = sys.modules.get("layermem.models.registry")
    if registry is not None and (others := set(registry.variants()) - {row.name for row in facts}):
        from layermem.experiments.variant_facts import find_facts

        facts = [*facts, *find_facts(sorted(others))]
    if options.json:
        sys.stdout.write(json.dumps([asdict(row) for row in facts], indent=1) + "\n")
        return
    table = Table(*COLUMNS, box=None)
    for row in facts:
        table.add_row(*row.row())
    console = screen()
    console.print(table)
    console.print(
        "\nat the shape of the preset paper-1b-gqa, default fields: parameters and forward FLOPs a "
        "token beyond the plain decoder's; bytes in bfloat16 that a layer hands to later ones, and "
        "that the cache holds, for one token; starts plain: with which fields, exactly. Two "
        "variants of different seams make a pair: lime+hyper_connections",
        highlight=False,
    )
