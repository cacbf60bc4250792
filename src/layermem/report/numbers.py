"""How numbers are written in tables.

It does not know: what is counted, where tables are shown.
"""


def with_unit(number: float, digits: int = 6) -> str:
    """Write a large number with its unit: 1.08B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"
