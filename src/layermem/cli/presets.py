"""`layermem presets`: what there is to train, with what it costs.

It does not know: how costs are counted.
"""

from dataclasses import dataclass

from layermem.cli.screen import screen


@dataclass(frozen=True, kw_only=True)
class Presets:
    """List presets with what they cost as the plain decoder, and the variants."""


def presets(options: Presets, command: str) -> None:
    """Print presets with parameters, tokens and FLOPs, and the variants."""
    from rich.table import Table

    from layermem.efficiency.costs import cost
    from layermem.experiments import presets as registered
    from layermem.experiments.model_sizes import model_sizes
    from layermem.models.registry import lookup, variants
    from layermem.report.cost_tables import short

    table = Table("preset", "parameters", "tokens", "FLOPs", "what it is", box=None)
    plain = lookup("plain")
    for name in registered.names():
        run = registered.lookup(name)
        sizes, length = model_sizes(run)
        tokens = round(run.max_steps * run.optim.batch_size * length)
        of_one = cost(plain.config(**sizes), plain.variant, round(length))
        table.add_row(
            name,
            short(of_one.parameters, 3),
            short(tokens, 3),
            f"{of_one.training * tokens / round(length):.1e}",
            registered.description(name),
        )
    console = screen()
    console.print(table)
    console.print(f"\nvariants: {', '.join(variants())} (parameters and FLOPs above: plain)")
