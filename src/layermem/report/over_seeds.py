"""A table of means over seeds, arm by arm, of whatever was measured of every model.

It does not know: what was measured, pages.
"""

from collections.abc import Mapping, Sequence

from layermem.intervals import Interval, adjusted_p_values, interval, paired
from layermem.report.numbers import format_interval
from layermem.report.page import Table
from layermem.results.arms import Arms


def over_seeds_tables(
    what: str, measured: Mapping[str, Mapping[str, float]], arms: Arms, *, share: bool
) -> list[Table]:
    """Return the table of arms, if there are several seeds.

    ``measured``: name of each row to the number of every model. ``share``: whether numbers are
    shares, written in percent. Every arm but the first has a column of its differences from it,
    seed by seed; their p-values are adjusted for the number of rows and arms.
    """
    if not arms or len(next(iter(arms.values()))) < 2:
        return []
    first, *others = arms
    differences = {
        (row, arm): paired(*(_values(numbers, arms[name]) for name in (arm, first)))
        for row, numbers in measured.items()
        for arm in others
    }
    adjusted = adjusted_p_values(differences)
    rows = [
        [
            row,
            *(format_interval(interval(_values(numbers, arms[arm])), share) for arm in arms),
            *(_difference(differences[row, a], adjusted[row, a], share) for a in others),
        ]
        for row, numbers in measured.items()
    ]
    seeds = len(arms[first])
    return [
        Table(
            header=[what, *arms, *(f"{arm} against {first}" for arm in others)],
            rows=rows,
            caption=f"Means over {seeds} seeds of training with 95% intervals by Student's t; "
            "differences are taken seed by seed, with p-values adjusted by Holm's method for all "
            "of this table.",
        )
    ]


def _values(numbers: Mapping[str, float], models: Sequence[str]) -> list[float]:
    return [numbers[model] for model in models]


def _difference(difference: Interval, p: float, share: bool) -> str:
    return (
        f"{format_interval(difference, share, '+')} (p {'< 0.001' if p < 0.001 else f'= {p:.3f}'})"
    )
