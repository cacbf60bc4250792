"""How numbers are written in tables.

It does not know: what is counted, where tables are shown.
"""


def with_unit(number: float, digits: int = 6) -> str:
    """Write a large number with its unit: 1.08B."""
    return _shortened(number, digits, "B")


def in_bytes(number: float, digits: int = 4) -> str:
    """Write a number of bytes: 8.21GB."""
    return f"{_shortened(number, digits, 'G')}B"


def _shortened(number: float, digits: int, billion: str) -> str:
    for unit, size in (("T", 1e12), (billion, 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{digits}g}{unit}"
    return f"{number:.{digits}g}"
