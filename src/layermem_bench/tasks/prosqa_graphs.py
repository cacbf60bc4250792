"""Crossed graphs of ProsQA: only person and directions together tell which option is right.

Statements are drawn as pairs of nodes first, such that there are two ways to direct them. A fair
draw takes one of the two, and another says which person is asked about. Worked example, with paths
of 3 steps, persons 0 and 1, and the options x and y:

    pairs       0 - c - a - x       1 - d - b - y       0 - e - b       1 - f - a
    straight    0 -> c -> a -> x    1 -> d -> b -> y    0 -> e <- b     1 -> f <- a
    crossed     0 -> c <- a -> x    1 -> d <- b -> y    0 -> e -> b     1 -> f -> a

In the straight graph 0 leads to x and 1 to y; in the crossed one 0 leads, over e and b, to y, and 1
to x. So by construction

* nothing that ignores the directions says which option is right: the same pairs have either answer;
* nor does anything that ignores who is asked about: the same directed graph has either answer.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeAlias

from layermem_bench.tasks.problems import require

# How often each number of steps and of people comes in the 800 original validation and test
# records.
_STEP_COUNTS = {3: 326, 4: 350, 5: 105, 6: 19}
_PEOPLE_COUNTS = {2: 326, 3: 169, 4: 44, 5: 10, 6: 1}
# Smallest and largest value, mean and standard deviation there.
_NODES, _STATEMENTS = (14, 28, 22.8, 2.1), (16, 54, 36.0, 5.6)
_MAX_NODES = 40
# Nodes beside those on the paths to the options: two people and two that link both sides.
_OTHER_NODES = 4
_UNREACHABLE = 10**6
Edge: TypeAlias = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Statements and a question about them. A node is a person or a concept; people come first.

    An edge (a, b) is the statement "a is a b"; it leads from a lower to a higher number.
    """

    people: int
    size: int
    """The number of people and concepts."""
    edges: set[Edge]
    question: tuple[int, int, int]
    """Who is asked about, the right option and the wrong one."""


def draw_crossed(
    draw: random.Random, steps: int | None, nodes: int | None, statements: int | None
) -> Graph:
    """Draw a graph and a question; sizes are drawn like the originals', or as given."""
    path_steps, people, size, most = draw_sizes(draw, steps, nodes, statements)
    pairs = UndirectedPairs(people, size, path_steps, draw)
    pairs.fill(most, draw)
    crossed, asked = draw.randrange(2), draw.randrange(2)
    directed = pairs.orientations[crossed].edges
    number = _draw_numbers(directed, people, size, draw)
    # In the straight graph person 0 leads to end 0; in the crossed one to end 1.
    right, wrong = pairs.ends[asked ^ crossed], pairs.ends[1 - asked ^ crossed]
    return Graph(
        people=people,
        size=size,
        edges={(number[a], number[b]) for a, b in directed},
        question=(number[asked], number[right], number[wrong]),
    )


def draw_sizes(
    draw: random.Random, steps: int | None, nodes: int | None, statements: int | None
) -> tuple[int, int, int, int]:
    """Draw steps, people, nodes and statements such that two paths of so many steps have room.

    Where nodes are given, statements are scaled with them: a graph of 12 nodes gets 12 / 22.8 of
    the statements drawn.
    """
    least, longest = min(_STEP_COUNTS), max(_STEP_COUNTS)
    require(steps is None or least <= steps <= longest, f"steps must be {least} to {longest}")
    fewest = 2 * (steps or least) + _OTHER_NODES
    require(
        nodes is None or fewest <= nodes <= _MAX_NODES,
        f"nodes must be {fewest} (two paths, four more) to {_MAX_NODES}, got {nodes}",
    )
    most = _NODES[1] if nodes is None else nodes
    fitting = {n: often for n, often in _STEP_COUNTS.items() if 2 * n + _OTHER_NODES <= most}
    (path_steps,) = [steps] if steps else draw.choices(list(fitting), list(fitting.values()))
    while True:
        (people,) = draw.choices(list(_PEOPLE_COUNTS), list(_PEOPLE_COUNTS.values()))
        size, edges = (
            min(high, max(low, round(draw.gauss(mean, deviation))))
            for low, high, mean, deviation in (_NODES, _STATEMENTS)
        )
        if nodes is not None:
            size, edges = nodes, round(edges * nodes / _NODES[2])
        if people - 2 + 2 * path_steps + _OTHER_NODES <= size:
            return path_steps, people, size, statements or edges


def shortest_path(edges: Sequence[Edge], start: int, end: int) -> list[int]:
    """Return the nodes of a shortest path; of several the one whose last edges come first."""
    steps, queue = {start: 0}, [start]
    for node in queue:
        for after in (b for a, b in edges if a == node and b not in steps):
            steps[after] = steps[node] + 1
            queue.append(after)
    nodes = [end]
    while nodes[0] != start:
        before = steps[nodes[0]] - 1
        nodes.insert(0, next(a for a, b in edges if b == nodes[0] and steps.get(a) == before))
    return nodes


class Orientation:
    """One way to direct the pairs."""

    def __init__(self, size: int, ends: Sequence[int], path_steps: int) -> None:
        self.edges: set[Edge] = set()
        # The end that persons 0 and 1 lead to, and the steps to it.
        self._ends, self._path_steps = ends, path_steps
        # From each node to each, along the edges.
        self._steps = [[0 if a == b else _UNREACHABLE for b in range(size)] for a in range(size)]

    def allows(self, a: int, b: int) -> bool:
        """Return whether a may lead to b: no cycle, no shorter path, none to the other's end."""
        onwards = self._steps[b]
        if onwards[a] < _UNREACHABLE:
            return False
        for person, end in enumerate(self._ends):
            steps = self._steps[person][a] + 1
            if steps + onwards[end] < self._path_steps:
                return False
            if steps + onwards[self._ends[1 - person]] < _UNREACHABLE:
                return False
        return True

    def add(self, a: int, b: int) -> None:
        self.edges.add((a, b))
        for steps in self._steps:
            if steps[a] + 1 < steps[b]:
                steps[:] = map(min, steps, [steps[a] + 1 + more for more in self._steps[b]])


class UndirectedPairs:
    """Pairs of nodes with both orientations of them. The first two people are those asked about.

    In the docstring above, ``approaches`` are what leads away from a person (0 alone, for paths of
    3 steps), ``tails`` are a - x and b - y, and c, d, e and f link every approach with every tail.
    Of each of these four nodes, both edges point the same way in one orientation, and to the node
    in the other, where it is on no path. All paths have the same length: otherwise the person who
    is farther from the links would be farther from an option.
    """

    def __init__(self, people: int, size: int, steps: int, draw: random.Random) -> None:
        self.people, self.size = people, size
        free = iter(range(people, size))
        tail_steps = draw.randint(1, steps - 2)
        approaches = [
            [person] + [next(free) for _ in range(steps - 2 - tail_steps)] for person in (0, 1)
        ]
        tails = [[next(free) for _ in range(tail_steps + 1)] for _ in (0, 1)]
        self.ends = [tail[-1] for tail in tails]
        self.orientations = [
            Orientation(size, self.ends, steps),
            Orientation(size, self.ends[::-1], steps),
        ]
        for chain in (*approaches, *tails):
            for edge in pairwise(chain):
                self._add(edge, edge)
        for person, approach in enumerate(approaches):
            for end, tail in enumerate(tails):
                a, link, b = approach[-1], next(free), tail[0]
                self._add((a, link), (a, link))
                onwards, back = (link, b), (b, link)
                self._add(*((onwards, back) if person == end else (back, onwards)))
        self._attach([*range(2, people), *free], draw)

    def fill(self, statements: int, draw: random.Random) -> None:
        """Add pairs that leave the paths as they are in both orientations, up to a number."""
        pairs = list(combinations(range(self.size), 2))
        draw.shuffle(pairs)
        for pair in pairs:
            if len(self.orientations[0].edges) >= statements:
                return
            self._add_if_allowed(*pair, draw)

    def _attach(self, nodes: Sequence[int], draw: random.Random) -> None:
        """Connect the nodes on no path: each concept gets a source, each person leads on."""
        concepts = [node for node in nodes if node >= self.people]
        connected = [node for node in range(self.size) if node not in (*self.ends, *concepts)]
        for node in concepts:
            edge = draw.choice(connected), node
            self._add(edge, edge)
            connected.append(node)
        leading = {a for a, _ in self.orientations[0].edges}
        for person in range(2, self.people):
            if person not in leading:
                edge = person, draw.choice([node for node in connected if node >= self.people])
                self._add(edge, edge)

    def _add_if_allowed(self, a: int, b: int, draw: random.Random) -> None:
        """Add a pair with a direction that each orientation allows, if both allow one."""
        # Nothing follows from an option, and nothing leads to a person.
        both = ((a, b), (b, a))
        directions = [(x, y) for x, y in both if x not in self.ends and y >= self.people]
        chosen = []
        for orientation in self.orientations:
            allowed = [edge for edge in directions if orientation.allows(*edge)]
            if not allowed or not orientation.edges.isdisjoint(both):
                return
            chosen.append(draw.choice(allowed))
        self._add(*chosen)

    def _add(self, straight: Edge, crossed: Edge) -> None:
        """Add a pair as directed in either orientation."""
        for orientation, edge in zip(self.orientations, (straight, crossed), strict=True):
            orientation.add(*edge)


def _draw_numbers(edges: set[Edge], people: int, size: int, draw: random.Random) -> dict[int, int]:
    """Draw new numbers, so that every edge leads to a higher one and old numbers tell nothing.

    People keep theirs. Then, one after the other, a node is drawn among those whose sources all
    have a number (a random topological order).
    """
    number = {person: person for person in range(people)}
    while len(number) < size:
        blocked = {b for a, b in edges if a not in number}
        node = draw.choice([n for n in range(size) if n not in number and n not in blocked])
        number[node] = len(number)
    return number
