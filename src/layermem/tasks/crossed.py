"""Graphs for ProsQA of which the arrows alone tell who follows: drawn twice, one taken by a lot.

    straight    0 -> c -> n -> x        crossed     0 -> c -> n <- x
                     c -> m <- y                         c -> m -> y

Statements are drawn as pairs, without arrows, such that arrows can be set in two ways: straight
(person 0 leads to x, person 1 to y) and crossed (0 to y, 1 to x). A fair lot then takes one,
another says which person is asked about. So by construction

* nothing that forgets the arrows says which option is right: both are so for the same pairs;
* nor does anything that forgets who is asked about: both are so for the same arrows.

It does not know: words, prompts, grades, what sizes the originals have.
"""

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

from layermem.tasks.graphs import NOWHERE, Edge, draw_sizes


def draw_crossed(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> "Crossed":
    """Draw who is what, and a question; sizes like the originals', or as given."""
    way_steps, people, size, told = draw_sizes(
        draw, steps=steps, nodes=nodes, statements=statements
    )
    return Crossed(people, size, way_steps, told, draw)


class Crossed:
    """Who is what, and a question. Edges lead to higher numbers; people come first."""

    def __init__(
        self, people: int, size: int, steps: int, statements: int, draw: random.Random
    ) -> None:
        self.people, self.size = people, size
        pairs = _Pairs(people, size, steps, draw)
        pairs.fill(statements, draw)
        crossed, asked = draw.randrange(2), draw.randrange(2)
        arrows = pairs.settings[crossed]
        order = _numbered(arrows.edges, people, size, draw)
        self.edges = {(order[a], order[b]) for a, b in arrows.edges}
        right, wrong = pairs.ends[asked ^ crossed], pairs.ends[1 - asked ^ crossed]
        self.question = order[asked], order[right], order[wrong]


class _Arrows:
    """One way to set the arrows, and how far what is from whom."""

    def __init__(self, size: int, ends: Sequence[int], steps: int) -> None:
        self.edges: set[Edge] = set()
        self._ends, self._steps = ends, steps
        # Everything that leads to a node, and that it leads to, itself with it, as bits.
        self._before = [1 << node for node in range(size)]
        self._after = [1 << node for node in range(size)]
        # Steps from either person, and to the end that the person leads to.
        self._from = [
            [0 if node == person else NOWHERE for node in range(size)] for person in (0, 1)
        ]
        self._to = [[0 if node == end else NOWHERE for node in range(size)] for end in ends]

    def allows(self, a: int, b: int) -> bool:
        """Whether a may lead to b: no circle, no shorter way, no way to the other's end."""
        if self._after[b] >> a & 1:
            return False
        for person in (0, 1):
            if self._from[person][a] + 1 + self._to[person][b] < self._steps:
                return False
            if self._before[a] >> person & 1 and self._after[b] >> self._ends[1 - person] & 1:
                return False
        return True

    def add(self, a: int, b: int) -> None:
        """Let a lead to b."""
        self.edges.add((a, b))
        before, after = self._before[a], self._after[b]
        for node in range(len(self._after)):
            if before >> node & 1:
                self._after[node] |= after
            if after >> node & 1:
                self._before[node] |= before
        for person in (0, 1):
            self._nearer(self._from[person], b, self._from[person][a] + 1, forwards=True)
            self._nearer(self._to[person], a, self._to[person][b] + 1, forwards=False)

    def _nearer(self, far: list[int], node: int, steps: int, *, forwards: bool) -> None:
        waiting = [(node, steps)]
        for at, number in waiting:
            if number < far[at]:
                far[at] = number
                pairs = self.edges if forwards else ((b, a) for a, b in self.edges)
                waiting += [(b, number + 1) for a, b in pairs if a == at]


class _Pairs:
    """Statements without arrows, and both settings of them. The first two people are asked about.

    Each person's way leads to the crossing, over a node to one of its two sides, and from there to
    an end; in the other setting both sides lead to that node, so that it is on no way. All ways are
    of one length: else who is farther from the crossing would be farther from an option.
    """

    def __init__(self, people: int, size: int, steps: int, draw: random.Random) -> None:
        self.people, self.size = people, size
        free = iter(range(people, size))
        behind = draw.randint(1, steps - 2)
        sides = [[person] + [next(free) for _ in range(steps - 2 - behind)] for person in (0, 1)]
        tails = [[next(free) for _ in range(behind + 1)] for _ in (0, 1)]
        self.ends = [tail[-1] for tail in tails]
        self.settings = [
            _Arrows(size, self.ends, steps),
            _Arrows(size, self.ends[::-1], steps),
        ]
        for chain in (*sides, *tails):
            for edge in pairwise(chain):
                self._add(edge, edge)
        for person, side in enumerate(sides):
            for end, tail in enumerate(tails):
                a, between, b = side[-1], next(free), tail[0]
                self._add((a, between), (a, between))
                passed, met = (between, b), (b, between)
                self._add(*((passed, met) if person == end else (met, passed)))
        self._attach([*range(2, people), *free], draw)

    def fill(self, statements: int, draw: random.Random) -> None:
        """Add pairs that leave the ways as they are in both settings, up to a number."""
        pairs = list(combinations(range(self.size), 2))
        draw.shuffle(pairs)
        for pair in pairs:
            if len(self.settings[0].edges) >= statements:
                return
            self._join(*pair, draw)

    def _attach(self, nodes: Sequence[int], draw: random.Random) -> None:
        """Let every node that is not on the ways follow from another, and every person be one."""
        others = [node for node in nodes if node >= self.people]
        known = [node for node in range(self.size) if node not in (*self.ends, *others)]
        for node in others:
            edge = draw.choice(known), node
            self._add(edge, edge)
            known.append(node)
        leading = {a for a, _ in self.settings[0].edges}
        for person in range(2, self.people):
            if person not in leading:
                edge = person, draw.choice([node for node in known if node >= self.people])
                self._add(edge, edge)

    def _join(self, a: int, b: int, draw: random.Random) -> None:
        """Add a pair, each setting with an arrow it allows, if both allow one."""
        ways = [(x, y) for x, y in ((a, b), (b, a)) if x not in self.ends and y >= self.people]
        chosen = []
        for setting in self.settings:
            allowed = [way for way in ways if setting.allows(*way)]
            if not allowed or not setting.edges.isdisjoint(((a, b), (b, a))):
                return
            chosen.append(draw.choice(allowed))
        self._add(*chosen)

    def _add(self, *edges: Edge) -> None:
        for setting, edge in zip(self.settings, edges, strict=True):
            setting.add(*edge)


def _numbered(edges: set[Edge], people: int, size: int, draw: random.Random) -> dict[int, int]:
    """Return new numbers: people keep theirs, every edge leads to a higher one, else as drawn."""
    order = {person: person for person in range(people)}
    while len(order) < size:
        waiting = {b for a, b in edges if a not in order}
        node = draw.choice([n for n in range(size) if n not in order and n not in waiting])
        order[node] = len(order)
    return order
