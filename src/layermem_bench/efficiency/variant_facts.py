"""What the variants are at one shape: their seam, costs, and what crosses their layers; a table.

The facts of the package's own variants are recorded in ``facts.json`` beside this file, so that
they are shown without importing torch and the variants; the tests compare them with the variants.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layermem_bench.config.typed_dicts import from_dict

if TYPE_CHECKING:
    from layermem.models.registry import RegisteredVariant

RECORD = Path(__file__).parent / "facts.json"
"""The recorded facts."""
PRESET = "paper-1b-gqa"
"""The preset whose sizes the recorded facts are of."""
COLUMNS = (
    *("variant", "seam", "parameters", "FLOPs", "bytes over depth", "cache bytes"),
    *("starts plain", "arXiv"),
)
"""The heads of the table."""
# Of a number in bfloat16.
_BYTES = 2
_TOKENS = 3


@dataclass(frozen=True, kw_only=True)
class VariantFacts:
    """One variant at one shape, with its default fields."""

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


def find_facts(sizes: Mapping[str, Any], names: Sequence[str] | None = None) -> list[VariantFacts]:
    """Return the facts of variants at these sizes, of all registered ones if none are named.

    They are counted, or seen in a narrow model.
    """
    from layermem.models.registry import list_variants, lookup
    from layermem.models.seams import filled_seams
    from layermem_bench.config.counting import count_cached

    facts = []
    for name in list_variants() if names is None else names:
        entry = lookup(name)
        config, plain = entry.config(**sizes), entry.variant.plain_fields
        depth = count_handed_on(entry, sizes)
        facts.append(
            VariantFacts(
                name=name,
                seams=filled_seams(entry.variant),
                extra_parameters=entry.variant.extra_parameters(config),
                extra_flops=entry.variant.extra_flops(config),
                depth_bytes=_BYTES * depth,
                cache_bytes=_BYTES * count_cached(config, entry.variant),
                plain_fields=(
                    None if plain is None else ", ".join(f"{k}={v}" for k, v in plain.items())
                ),
                source=entry.variant.source,
            )
        )
    return facts


def count_handed_on(entry: "RegisteredVariant", sizes: Mapping[str, Any]) -> int:
    """Return how many numbers a layer hands on for a token, on average, in a model of such fields.

    They are seen in models whose heads have width 2 and 4: some grow with it, and others, as
    scores, do not.
    """
    heads = sizes["num_attention_heads"]
    width = sizes["hidden_size"] // heads
    two, four = (
        _handed_on(
            entry,
            {**sizes, "hidden_size": narrow * heads, "intermediate_size": 8, "vocab_size": 8},
        )
        for narrow in (2, 4)
    )
    total = two + (four - two) * (width - 2) / 2
    return round(total / _TOKENS / sizes["num_hidden_layers"])


def _handed_on(entry: "RegisteredVariant", sizes: Mapping[str, Any]) -> int:
    """Return how many numbers the layers of a model hand on for all tokens."""
    import torch

    model = entry.decoder(entry.config(**sizes)).eval()
    counts: list[int] = []

    def count(layer: Any, inputs: Any, outputs: Sequence[torch.Tensor]) -> None:
        # Of a history that grows, what is new.
        before = [x.numel() for x in inputs] + [0] * len(outputs)
        after = [x.numel() for x in outputs]
        counts.append(sum(n - m if n > m else n for n, m in zip(after, before, strict=False)))

    for layer in model.layers:
        layer.register_forward_hook(count)
        # With a hook on a memory, layers hand their slots on one by one, not in one buffer.
        memory: Any = layer.self_attn.memory
        memory.register_forward_pre_hook(lambda *_: None)
    with torch.no_grad():
        model(torch.zeros(1, _TOKENS, dtype=torch.long), use_cache=False)
    return sum(counts)
