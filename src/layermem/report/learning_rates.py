"""Draws learning rates that were tried, and says where a better one may lie beyond them.

It does not know: torch, how a rate is chosen.
"""

from collections.abc import Sequence

from layermem.report.outcomes import format_number
from layermem.report.page import Table
from layermem.results.learning_rates import TriedRates


def table(tried: Sequence[TriedRates], of: str = "") -> Table:
    """Return a table of each arm's loss at each learning rate; ``of``: what they were tried on."""
    rates = list(dict.fromkeys(rate for of_arm in tried for rate in of_arm.rates))
    with_decay = " and weight decay" if any(of_arm.decay is not None for of_arm in tried) else ""
    title = f"{of}: " if of else ""
    return Table(
        header=[
            f"{title}validation loss at learning rate",
            *(f"{rate:g}" for rate in rates),
            "chosen",
        ],
        rows=[
            [
                _name_with_decay(of_arm),
                *(_format_loss(of_arm, rate) for rate in rates),
                "" if of_arm.chosen is None else f"{of_arm.chosen:g}",
            ]
            for of_arm in tried
        ],
        caption=f"Each arm's learning rate{with_decay} was chosen on a seed that is in no other "
        "table. A run that diverged says where in its diverged.json, in a folder rates."
        f"{_beyond(tried)}",
    )


def end_of_range(tried: TriedRates) -> str:
    """Return "lowest" or "highest" where that rate of those tried was chosen, else nothing."""
    if tried.chosen is None or len(tried.rates) < 2:
        return ""
    ends = {min(tried.rates): "lowest", max(tried.rates): "highest"}
    return ends.get(tried.chosen, "")


def format_choice(tried: TriedRates) -> str:
    """Write the learning rate that was chosen, and whether it is at an end of those tried."""
    end = end_of_range(tried)
    chosen = "" if tried.chosen is None else f"{tried.chosen:g}"
    return f"{chosen} (the {end})" if end else chosen


def _beyond(tried: Sequence[TriedRates]) -> str:
    at_an_end = [f"{each.arm} took the {end}" for each in tried if (end := end_of_range(each))]
    if not at_an_end:
        return ""
    return f" A better learning rate may lie beyond those tried: {', '.join(at_an_end)}."


def _name_with_decay(tried: TriedRates) -> str:
    return tried.arm if tried.decay is None else f"{tried.arm}, weight decay {tried.decay:g}"


def _format_loss(tried: TriedRates, rate: float) -> str:
    if rate not in tried.rates:
        return ""
    loss = tried.losses[tried.rates.index(rate)]
    return "diverged" if loss is None else format_number(loss, False)
