"""What arms cost: a row for each, counted in closed form; and what a whole run takes.

    FLOPs of             a multiply-add of linear    a multiply-add of    keys counted for
                         layers and routers          attention            a query
    forward              2                           2                    those it can attend to
    forward_in_paper     1                           2                    all

The paper's (its Table 8) are what fvcore counts on a traced graph. They mix two units, and so
understate the share of the routers. Both count the output head, and neither counts norms, rope,
the softmax and embedding look-ups. A training step counts as three forwards.

Neither torch nor transformers is imported, so that presets are listed at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from layermem_bench.config.counting import (
    Additions,
    Sizes,
    count_cached,
    count_forward_flops,
    count_parameters,
    count_read,
    plain_sizes,
)
from layermem_bench.config.run import Run
from layermem_bench.costs.model_sizes import model_fields, model_sizes, trained_fields

if TYPE_CHECKING:
    from layermem.models.registry import RegisteredVariant
    from layermem_bench.run.folder import RunFolder

# Tokens of the narrow models in which is seen what layers hand on.
_TOKENS = 3


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one arm costs at one size: counted on one sequence of ``tokens``."""

    preset: str
    arm: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    tokens: int
    parameters: int
    forward: float
    """FLOPs."""
    forward_in_paper: float
    """FLOPs as the paper counts them."""
    cached: int
    """Numbers that a cache of keys and values holds for one token."""
    read: int
    """Numbers that one decoded token reads of each token in it."""


def count_cost(
    arm: str, run: Run, fields: Mapping[str, Any] | None = None, tokens: int | None = None
) -> Cost:
    """Count what a run's model costs on one sequence.

    ``fields`` of its config and ``tokens`` of the sequence: None: the run's.
    """
    from layermem.models.registry import check_names, lookup

    entry, tokens = lookup(run.variant), tokens or round(model_sizes(run)[1])
    fields = fields or model_fields(run)
    # A config takes any name, and a misspelt option would cost nothing.
    check_names(entry, fields)
    config = entry.config(**fields)
    return Cost(
        preset=run.preset,
        arm=arm,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        tokens=tokens,
        parameters=count_parameters(config, entry.variant),
        forward=forward_flops(config, entry.variant, tokens),
        forward_in_paper=forward_flops(config, entry.variant, tokens, in_paper=True),
        cached=count_cached(config, entry.variant),
        read=count_read(config, entry.variant),
    )


def costs_of_runs(arms: Mapping[str, tuple[Run, "RunFolder"]]) -> tuple[Cost, ...]:
    """Count what recorded arms cost at their sizes.

    Models of transformers are left out, and arms whose sizes are not known here or whose options
    their variant has no more.
    """
    from huggingface_hub.errors import StrictDataclassError

    rows = []
    for arm, (run, folder) in arms.items():
        fields = trained_fields(run, folder.final) if run.host.model is None else None
        if fields is None:
            continue
        # A task's tokenizer may not be here.
        last, tokens = folder.last_row(), None
        if last.get("tokens"):
            tokens = max(1, round(last["tokens"] / last["step"] / run.optim.batch_size))
        # The config classes raise errors of their own.
        with suppress(ValueError, TypeError, StrictDataclassError):
            rows.append(count_cost(arm, run, fields, tokens))
    return tuple(rows)


def forward_flops(
    config: Sizes, variant: Additions | None, tokens: int, *, in_paper: bool = False
) -> float:
    """Count the FLOPs of one sequence of ``tokens``; ``variant`` None: of the plain decoder."""
    # layermem_bench.config.counting counts two FLOPs a multiply-add and attention to all keys.
    total = count_forward_flops(config, variant, tokens)
    attention = total - count_forward_flops(config, variant, 0)
    if in_paper:
        return tokens * ((total - attention) / 2 + attention)
    return tokens * (total - attention + attention * (tokens + 1) / (2 * tokens))


class RunCost(NamedTuple):
    """What a whole run takes: trainable parameters, tokens, and FLOPs of all training steps."""

    parameters: int
    tokens: float
    flops: float


def run_cost(run: Run, *, as_plain: bool = False) -> RunCost:
    """Return what a run takes, or what it would take as the plain decoder, without importing any.

    A sequence has as many tokens as the mean.
    """
    fields, length = model_sizes(run)
    config, variant, tokens = plain_sizes(fields), None, max(1, round(length))
    if not as_plain:
        from layermem.models.registry import lookup

        entry = lookup(run.variant)
        config, variant = entry.config(**fields | run.model.variant_fields()), entry.variant
    trained_on = run.max_steps * run.optim.batch_size * length
    flops = 3 * forward_flops(config, variant, tokens) * trained_on / tokens
    return RunCost(count_parameters(config, variant), trained_on, flops)


def count_family(fields: Mapping[str, Any], names: Iterable[str] = ()) -> list[dict[str, str]]:
    """Return what variants are at these sizes, of all registered ones if none are named.

    The bytes, of numbers in bfloat16 for one token, are those that a layer hands to later ones, on
    average, and those of the cache.
    """
    from layermem.models.registry import list_variants, lookup
    from layermem.models.seams import filled_seams

    rows = []
    for name in names or list_variants():
        entry = lookup(name)
        config, variant, plain = entry.config(**fields), entry.variant, entry.variant.plain_fields
        starts = ", ".join(f"{field}={value}" for field, value in (plain or {}).items()) or "yes"
        row = {
            "variant": name,
            "seam": " and ".join(filled_seams(variant)) or "none",
            "parameters": f"{variant.extra_parameters(config):,}",
            "FLOPs": f"{variant.extra_flops(config):,}",
            "bytes over depth": f"{2 * count_handed_on(entry, fields):,}",
            "cache bytes": f"{2 * count_cached(config, variant):,}",
            "starts plain": "no" if plain is None else starts,
            "arXiv": variant.source or "none",
            "shipped in": ", ".join(variant.released) or "none",
        }
        rows.append(row)
    return rows


def count_handed_on(entry: "RegisteredVariant", fields: Mapping[str, Any]) -> int:
    """Return how many numbers a layer hands on for a token, on average, in a model of such fields.

    They are seen in models whose heads have width 2 and 4: some grow with it, and others, as
    scores, do not.
    """
    heads = fields["num_attention_heads"]
    small = {**fields, "intermediate_size": 8, "vocab_size": 8}
    two, four = (_handed_on(entry, {**small, "hidden_size": width * heads}) for width in (2, 4))
    total = two + (four - two) * (fields["hidden_size"] // heads - 2) / 2
    return round(total / _TOKENS / fields["num_hidden_layers"])


def _handed_on(entry: "RegisteredVariant", fields: Mapping[str, Any]) -> int:
    """Return how many numbers the layers of a model hand on for all tokens."""
    import torch

    model = entry.decoder(entry.config(**fields)).eval()
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
