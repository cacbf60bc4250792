"""What the variants are at one shape: their seam, costs, and what crosses their layers; a table.

The facts of the package's own variants are recorded in ``facts.json`` beside this file, so that
they are shown without importing torch and the variants; the tests compare them with the variants.

    variant             its name
    seam                the seams that it fills: memory, stream
    parameters, FLOPs   trainable, and of a forward for one token, beyond the plain decoder's
    bytes over depth    that a layer hands to later ones for one token, on average, in bfloat16
    cache bytes         of keys and values for one token, all layers, in bfloat16
    starts plain        fields with which a new model computes what the plain decoder does
    arXiv               number of the paper
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from layermem.models.registry import RegisteredVariant

Facts: TypeAlias = dict[str, Any]
"""The heads of the table's columns to a variant's numbers and texts."""
RECORD = Path(__file__).parent / "facts.json"
"""The recorded facts."""
PRESET = "paper-1b-gqa"
"""The preset whose sizes the recorded facts are of."""
# Of a number in bfloat16.
_BYTES = 2
_TOKENS = 3


def read_facts() -> list[Facts]:
    """Return the recorded facts."""
    return list(json.loads(RECORD.read_text(encoding="utf-8")))


def table_of(facts: Sequence[Facts]) -> list[list[str]]:
    """Return the heads of the table, then its rows."""
    rows = [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in facts]
    return [list(facts[0]), *rows]


def find_facts(sizes: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Facts]:
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
        starts = ", ".join(f"{field}={value}" for field, value in (plain or {}).items()) or "yes"
        facts.append(
            {
                "variant": name,
                "seam": " and ".join(filled_seams(entry.variant)) or "none",
                "parameters": entry.variant.extra_parameters(config),
                "FLOPs": entry.variant.extra_flops(config),
                "bytes over depth": _BYTES * count_handed_on(entry, sizes),
                "cache bytes": _BYTES * count_cached(config, entry.variant),
                "starts plain": "no" if plain is None else starts,
                "arXiv": entry.variant.source or "none",
            }
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
