"""Graphs that ProsQA's questions are about: who is what, drawn like the originals', and walked.

It does not know: words, prompts, grades.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

# How often each comes in the 800 original validation and test records.
_STEPS = {3: 326, 4: 350, 5: 105, 6: 19}
_N_NAMES = {2: 326, 3: 169, 4: 44, 5: 10, 6: 1}
_NODES, _STATEMENTS = (14, 28, 22.8, 2.1), (16, 54, 36.0, 5.6)
_FEWEST_STEPS, _MOST_NODES = 3, 40
# Nodes beside those on the ways: two people, and two for bridges.
_BESIDE = 4
# Graphs of one size that do not come out as wanted, after which the size is drawn anew; how often.
_PATIENCE, _SIZES = 200, 200
# Farther than anything.
NOWHERE = 10**6
Edge: TypeAlias = tuple[int, int]


def draw_graph(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> "Graph":
    """Draw who is what, and a question.

    Steps to an option, nodes and statements: drawn like the originals' (as many statements for each
    node), or as given (statements fewer where there are no more, more where a node would be alone).

    Two people each have a concept that nothing follows from, as many steps away as drawn for each
    alike; either is asked about with the same chance. So the options differ in one thing alone: who
    they follow for. One shortcut would be left, the way with arrows forgotten: bridges make it as
    long to the wrong option where it is 3 to the right one, else shorter as often as longer.
    """
    _check(steps, nodes, statements)
    ways, asked, balance = _ways(draw, steps, nodes), draw.randrange(2), draw.random()
    # Drawn once: were it drawn anew with the graph, the lead that is harder to meet would be rarer.
    lead = 0 if ways[asked] == 3 else 1 if balance < 0.5 else -1
    for _ in range(_SIZES):
        people, size, told = _sizes(draw, nodes, statements)
        for _ in range(_PATIENCE if people + sum(ways) < size else 0):
            graph = Graph(people, size, ways, draw)
            if lead <= 0:
                graph.bridge(draw)
            graph.fill(told, draw)
            target, wrong = graph.ends[asked], graph.ends[1 - asked]
            around = distances([*graph.edges, *((b, a) for a, b in graph.edges)], asked)
            found = around.get(wrong, NOWHERE) - around[target]
            if (found > 0) - (found < 0) == lead:
                graph.question = asked, target, wrong
                return graph
    raise ValueError(
        f"no balanced graph of {nodes or 'any number of'} nodes, {statements or 'any number of'} "
        f"statements and ways of {ways[0]} and {ways[1]} steps was found; ask for more nodes"
    )


class Graph:
    """Who is what. Edges lead to higher numbers; people come first.

    The first two people are those a question may be about. The side of a node is the one of them
    it may follow for: 0, 1, or 2 for both. ``levels`` holds how many steps it is away from them; no
    edge makes it fewer. ``question``: who is asked about, and the right and the wrong option.
    """

    question: tuple[int, int, int]

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.sides)

    def __init__(self, people: int, nodes: int, steps: Sequence[int], draw: random.Random) -> None:
        self.people = people
        self.sides = [
            0,
            1,
            *(draw.randrange(2) for _ in range(people - 2)),
            *[2] * (nodes - people),
        ]
        self.levels = [0, 0, *[NOWHERE] * (nodes - 2)]
        self.edges: set[Edge] = set()
        chains = self._chains(steps, draw)
        self.ends = [chain[-1] for chain in chains]
        before = {b: a for chain in chains for a, b in pairwise(chain)}
        for node in range(people, nodes):
            if node in before:
                self.sides[node] = self.sides[before[node]]
            elif node < nodes - 1:
                self.sides[node] = draw.choices((0, 1, 2), (9, 9, 2))[0]
            known = self._known(node)
            self._join(before[node] if node in before else draw.choice(known[-6:]), node)
        for person in set(range(people)) - {a for a, _ in self.edges}:
            self._join(person, nodes - 1)

    def bridge(self, draw: random.Random) -> None:
        """Let each person and what leads to the other's end have a consequence in common."""
        shared = [node for node, side in enumerate(self.sides) if side == 2]
        for person, end in ((0, self.ends[1]), (1, self.ends[0])):
            pairs = [(a, node) for a, b in self.edges if b == end for node in shared if a < node]
            if pairs:
                parent, node = draw.choice(sorted(pairs))
                self._join(parent, node)
                self._join(person, node)

    def fill(self, statements: int, draw: random.Random) -> None:
        """Add edges that change nobody's level, up to a number."""
        pairs = [
            (a, b)
            for b in range(self.people, len(self.sides))
            for a in self._known(b)
            if (a, b) not in self.edges and self.levels[a] + 1 >= self.levels[b]
        ]
        missing = min(max(0, statements - len(self.edges)), len(pairs))
        self.edges.update(draw.sample(pairs, missing))

    def _chains(self, steps: Sequence[int], draw: random.Random) -> list[list[int]]:
        """Draw the nodes on the way from the first two people to their ends."""
        free = range(self.people, len(self.sides) - 1)
        taken = draw.sample(free, sum(steps))
        return [[0, *sorted(taken[: steps[0]])], [1, *sorted(taken[steps[0] :])]]

    def _known(self, node: int) -> list[int]:
        """Return what a node may follow from."""
        side = self.sides[node]
        return [i for i in range(node) if side in (self.sides[i], 2) and i not in self.ends]

    def _join(self, a: int, b: int) -> None:
        self.edges.add((a, b))
        if self.sides[b] != 2:
            self.levels[b] = min(self.levels[b], self.levels[a] + 1)
        else:
            self.levels[b] = 0


def way(edges: Sequence[Edge], start: int, end: int) -> list[int]:
    """Return the nodes of a shortest way."""
    far, nodes = distances(edges, start), [end]
    while nodes[0] != start:
        nodes.insert(0, next(a for a, b in edges if b == nodes[0] and far.get(a) == far[b] - 1))
    return nodes


def draw_sizes(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> tuple[int, int, int, int]:
    """Draw steps, people, nodes and statements such that two ways of so many steps have room."""
    _check(steps, nodes, statements)
    most = _NODES[1] if nodes is None else nodes
    fitting = {n: often for n, often in _STEPS.items() if 2 * n + _BESIDE <= most}
    (way_steps,) = [steps] if steps else draw.choices(list(fitting), list(fitting.values()))
    while True:
        people, size, told = _sizes(draw, nodes, statements)
        if people - 2 + 2 * way_steps + _BESIDE <= size:
            return way_steps, people, size, told


def _sizes(draw: random.Random, nodes: int | None, statements: int | None) -> tuple[int, int, int]:
    """Draw numbers of people, nodes and statements."""
    (people,) = draw.choices(list(_N_NAMES), list(_N_NAMES.values()))
    size, told = (_around(draw, *drawn) for drawn in (_NODES, _STATEMENTS))
    if nodes is not None:
        size, told = nodes, round(told * nodes / _NODES[2])
    return people, size, statements or told


def _ways(draw: random.Random, steps: int | None, nodes: int | None) -> list[int]:
    """Draw the steps to either option, such as the nodes are enough for."""
    if steps is not None:
        return [steps, steps]
    most = (_NODES[1] if nodes is None else nodes) - _BESIDE
    while sum(ways := draw.choices(list(_STEPS), list(_STEPS.values()), k=2)) > most:
        pass
    return ways


def _check(steps: int | None, nodes: int | None, statements: int | None) -> None:
    fewest = 2 * (steps or _FEWEST_STEPS) + _BESIDE
    if steps is not None and not _FEWEST_STEPS <= steps <= max(_STEPS):
        raise ValueError(
            f"steps must be {_FEWEST_STEPS} to {max(_STEPS)}, got {steps}: fewer give the answer "
            "away with the arrows forgotten"
        )
    if nodes is not None and not fewest <= nodes <= _MOST_NODES:
        raise ValueError(
            f"nodes must be {fewest} (two ways of {steps or _FEWEST_STEPS} steps, two people, two "
            f"more) to {_MOST_NODES} (as many as have names), got {nodes}"
        )
    if statements is not None and statements < 1:
        raise ValueError(f"statements must be at least 1, got {statements}")


def _around(draw: random.Random, low: int, high: int, mean: float, deviation: float) -> int:
    return min(high, max(low, round(draw.gauss(mean, deviation))))


def distances(edges: Sequence[Edge], start: int) -> dict[int, int]:
    """Return how many edges away every node is that can be reached."""
    following: dict[int, list[int]] = {}
    for a, b in edges:
        following.setdefault(a, []).append(b)
    found, waiting = {start: 0}, [start]
    for node in waiting:
        for other in following.get(node, ()):
            if other not in found:
                found[other] = found[node] + 1
                waiting.append(other)
    return found
