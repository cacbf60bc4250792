"""What all graphs of ProsQA share: their sizes, drawn like the originals', and shortest paths.

A node is a person or a concept, numbered with people first; an edge (a, b) is the statement "a is a
b". Edges lead from lower to higher numbers.
"""

import random
from collections.abc import Sequence
from typing import TypeAlias

# How often each number of steps and of people comes in the 800 original validation and test
# records.
STEP_COUNTS = {3: 326, 4: 350, 5: 105, 6: 19}
_PEOPLE_COUNTS = {2: 326, 3: 169, 4: 44, 5: 10, 6: 1}
# Smallest and largest value, mean and standard deviation there.
_NODES, _STATEMENTS = (14, 28, 22.8, 2.1), (16, 54, 36.0, 5.6)
_MIN_STEPS, _MAX_NODES = 3, 40
# Nodes beside those on the paths to the options: two people and two that link both sides.
_OTHER_NODES = 4
# Stands for the distance to a node that cannot be reached.
UNREACHABLE = 10**6
Edge: TypeAlias = tuple[int, int]


def check_sizes(steps: int | None, nodes: int | None, statements: int | None) -> None:
    """Raise where no graph has such sizes."""
    min_nodes = 2 * (steps or _MIN_STEPS) + _OTHER_NODES
    if steps is not None and not _MIN_STEPS <= steps <= max(STEP_COUNTS):
        raise ValueError(
            f"steps must be {_MIN_STEPS} to {max(STEP_COUNTS)}, got {steps}: with fewer, the "
            "distance to the options tells the answer even if directions are ignored"
        )
    if nodes is not None and not min_nodes <= nodes <= _MAX_NODES:
        raise ValueError(
            f"nodes must be {min_nodes} (two paths of {steps or _MIN_STEPS} steps, two people, two "
            f"more) to {_MAX_NODES} (as many as have names), got {nodes}"
        )
    if statements is not None and statements < 1:
        raise ValueError(f"statements must be at least 1, got {statements}")


def draw_sizes(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> tuple[int, int, int, int]:
    """Draw steps, people, nodes and statements such that two paths of so many steps have room."""
    check_sizes(steps, nodes, statements)
    most = max_nodes(nodes)
    fitting = {n: often for n, often in STEP_COUNTS.items() if 2 * n + _OTHER_NODES <= most}
    (path_steps,) = [steps] if steps else draw.choices(list(fitting), list(fitting.values()))
    while True:
        people, size, edges = draw_counts(draw, nodes, statements)
        if people - 2 + 2 * path_steps + _OTHER_NODES <= size:
            return path_steps, people, size, edges


def draw_counts(
    draw: random.Random, nodes: int | None, statements: int | None
) -> tuple[int, int, int]:
    """Draw numbers of people, nodes and statements; those that are given stay as they are.

    Where nodes are given, statements are scaled with them: a graph of 12 nodes gets 12 / 22.8 of
    the statements drawn.
    """
    (people,) = draw.choices(list(_PEOPLE_COUNTS), list(_PEOPLE_COUNTS.values()))
    size, edges = (_draw_near(draw, *statistics) for statistics in (_NODES, _STATEMENTS))
    if nodes is not None:
        size, edges = nodes, round(edges * nodes / _NODES[2])
    return people, size, statements or edges


def draw_path_steps(draw: random.Random, steps: int | None, nodes: int | None) -> list[int]:
    """Draw the steps to each of the two options, so that the nodes suffice for both paths."""
    if steps is not None:
        return [steps, steps]
    most = max_nodes(nodes) - _OTHER_NODES
    while sum(drawn := draw.choices(list(STEP_COUNTS), list(STEP_COUNTS.values()), k=2)) > most:
        pass
    return drawn


def max_nodes(nodes: int | None) -> int:
    """Return the number of nodes given, or the largest that is drawn."""
    return _NODES[1] if nodes is None else nodes


def distances(edges: Sequence[Edge], start: int) -> dict[int, int]:
    """Return the number of steps to every node that can be reached, by breadth-first search.

    networkx's ``single_source_shortest_path_length`` returns the same (a test compares them), but
    building its graph for every draw makes generating bridged records 40% slower.
    """
    following: dict[int, list[int]] = {}
    for a, b in edges:
        following.setdefault(a, []).append(b)
    steps, queue = {start: 0}, [start]
    for node in queue:
        for other in following.get(node, ()):
            if other not in steps:
                steps[other] = steps[node] + 1
                queue.append(other)
    return steps


def undirected(edges: Sequence[Edge]) -> list[Edge]:
    """Return every edge in both directions."""
    return [*edges, *((b, a) for a, b in edges)]


def shortest_path(edges: Sequence[Edge], start: int, end: int) -> list[int]:
    """Return the nodes of a shortest path; of several the one whose last edges come first."""
    steps, nodes = distances(edges, start), [end]
    while nodes[0] != start:
        before = steps[nodes[0]] - 1
        nodes.insert(0, next(a for a, b in edges if b == nodes[0] and steps.get(a) == before))
    return nodes


def _draw_near(draw: random.Random, low: int, high: int, mean: float, deviation: float) -> int:
    """Draw from a normal distribution, rounded and kept between two values."""
    return min(high, max(low, round(draw.gauss(mean, deviation))))
