"""How numbers are written in tables.

It does not know: what is counted, where tables are shown.
"""

from collections.abc import Sequence

from layermem.intervals import price_of_looks

_NOISE = 0.05


def with_unit(number: float, digits: int = 6) -> str:
    """Write a large number with its unit: 1.08B."""
    return _shortened(number, digits, "B")


def in_bytes(number: float, digits: int = 4) -> str:
    """Write a number of bytes: 8.21GB."""
    return f"{_shortened(number, digits, 'G')}B"


def format_p(p: float | None) -> str:
    """Write a p-value, and whether its difference is within noise; nothing where there is none."""
    if p is None:
        return ""
    return f"{'< 0.001' if p < 0.001 else f'{p:.3f}'}{'' if p < _NOISE else ', within noise'}"


def looks_note(looks: Sequence[Sequence[int]]) -> str:
    """Say at how many seeds a result was looked at, and what that costs; nothing of one look."""
    if len(looks) < 2:
        return ""
    counts = ", then ".join(str(len(seeds)) for seeds in looks)
    return (
        f" Looked at with {counts} seeds: p-values are {price_of_looks(len(looks))} times those of "
        "one look."
    )


def _shortened(number: float, digits: int, billion: str) -> str:
    for unit, size in (("T", 1e12), (billion, 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"
