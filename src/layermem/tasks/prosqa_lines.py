"""Lines of ProsQA: each person leads along concepts of their own, and nothing branches.

To learn on that statements are looked up, before graphs in which a way has to be chosen. Worked
example, two lines of 3 steps, person 0 is asked about:

    lines       0 -> 2 -> 3 -> 4        1 -> 5 -> 6 -> 7
    question    Is 0 a 4 or a 7?

Whichever option hangs together with the person is right, directions or not, so that answers say
little: proofs say whether each step was looked up.
"""

import random
from dataclasses import dataclass
from itertools import pairwise

from layermem.tasks.prosqa_graphs import Edge

_STEPS, _LINES = 3, 4
# As many people, and concepts, as have names.
_MAX_LINES, _MAX_CONCEPTS = 17, 38


@dataclass(frozen=True)
class Lines:
    """A graph of lines and a question; people come first, then the concepts of line after line."""

    people: int
    """Lines, each of one person."""
    size: int
    """People and concepts."""
    edges: set[Edge]
    """The statements."""
    question: tuple[int, int, int]
    """Who is asked about, the right option and the wrong one."""


def draw_lines(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> Lines:
    """Draw a graph and a question: as many lines of so many steps (3) as nodes allow (4 lines)."""
    steps = _STEPS if steps is None else steps
    lines = _lines(steps, nodes)
    size = lines * (steps + 1)
    if statements not in (None, lines * steps):
        raise ValueError(
            f"{lines} lines of {steps} steps have {lines * steps} statements, got statements="
            f"{statements}; leave it out, or say null"
        )
    edges, ends = set[Edge](), list[int]()
    for line in range(lines):
        first = lines + line * steps
        concepts = range(first, first + steps)
        edges.update(pairwise((line, *concepts)))
        ends.append(concepts[-1])
    asked, other = draw.sample(range(lines), 2)
    return Lines(lines, size, edges, (asked, ends[asked], ends[other]))


def _lines(steps: int, nodes: int | None) -> int:
    """Return the number of lines; raise where there is none that fits."""
    if steps < 2:
        raise ValueError(
            f"steps must be at least 2, got {steps}: two lines of one step make so few records "
            "that splits would share some"
        )
    most = min(_MAX_LINES, _MAX_CONCEPTS // steps)
    if most < 2:
        raise ValueError(
            f"two lines of {steps} steps need {2 * steps} concepts, and {_MAX_CONCEPTS} have "
            f"names; steps must be at most {_MAX_CONCEPTS // 2}"
        )
    lines, rest = (
        (min(_LINES, most), 0) if nodes is None else (nodes // (steps + 1), nodes % (steps + 1))
    )
    if rest or not 2 <= lines <= most:
        raise ValueError(
            f"nodes must be {steps + 1} (a person and {steps} concepts) for each of 2 to {most} "
            f"lines, got {nodes}"
        )
    return lines
