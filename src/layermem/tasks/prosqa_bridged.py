"""Bridged graphs of ProsQA: two people, each with a concept that follows for that person alone.

They are what ``graphs=bridged`` draws; recorded runs learned from them. Worked example, person 0 is
asked about, the right option is 3 steps away and the wrong one 4:

    paths       0 -> 4 -> 7 -> 9                1 -> 3 -> 5 -> 6 -> 8       ends 9 and 8
    question    Is 0 a 9 or an 8?
    bridge      0 -> 10 and 6 -> 10             node 10 may follow for both people
    undirected  0 - 10 - 6 - 8                  the wrong end is 3 steps away as well
    filling     4 -> 6 is never added           8 would follow for person 0
                1 -> 5 is never added           the path of person 1 would be shorter

Without the bridge, the option that is nearer if directions are ignored would usually be right. The
likelier end of a random walk still is (docs/tasks.md), which is why ``prosqa_crossed`` exists.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

from layermem.tasks.prosqa_graphs import (
    UNREACHABLE,
    Edge,
    check_sizes,
    distances,
    draw_counts,
    draw_path_steps,
    undirected,
)

# Graphs of one size that are drawn before another size is, and how many sizes are tried.
_GRAPHS_PER_SIZE, _SIZES = 200, 200
# The side of a node that may follow for both people.
_BOTH = 2
# How often a concept beside the paths is of side 0, 1 and both.
_SIDE_WEIGHTS = (9, 9, 2)
# A concept beside the paths follows from one of so many nodes before it.
_NEAREST = 6


def draw_bridged(
    draw: random.Random,
    *,
    steps: int | None = None,
    nodes: int | None = None,
    statements: int | None = None,
) -> "BridgedGraph":
    """Draw a graph and a question.

    Steps to an option, nodes and statements are drawn like the originals' (as many statements for
    each node) or as given (fewer statements where there is no room for more, more where a node
    would be unconnected).

    Both people have an option, with the number of steps to it drawn alike, and either is asked
    about with the same chance, so the options differ only in whom they follow for. That leaves the
    distance with directions ignored. Where the right option is 3 steps away, graphs are drawn until
    the wrong one is as near; else until it is nearer or farther, whichever was drawn.
    """
    check_sizes(steps, nodes, statements)
    path_steps = draw_path_steps(draw, steps, nodes)
    asked, balance = draw.randrange(2), draw.random()
    # Drawn once: drawn anew with each graph, the sign that is harder to meet would be rarer.
    wanted_sign = 0 if path_steps[asked] == 3 else 1 if balance < 0.5 else -1
    for _ in range(_SIZES):
        people, size, edges = draw_counts(draw, nodes, statements)
        has_room = people + sum(path_steps) < size
        for _ in range(_GRAPHS_PER_SIZE if has_room else 0):
            graph = BridgedGraph(people, size, path_steps, draw)
            if wanted_sign <= 0:
                graph.add_bridges(draw)
            graph.fill(edges, draw)
            right, wrong = graph.ends[asked], graph.ends[1 - asked]
            steps_to = distances(undirected([*graph.edges]), asked)
            lead = steps_to.get(wrong, UNREACHABLE) - steps_to[right]
            if (lead > 0) - (lead < 0) == wanted_sign:
                graph.question = asked, right, wrong
                return graph
    raise ValueError(
        f"no balanced graph of {nodes or 'any number of'} nodes, {statements or 'any number of'} "
        f"statements and paths of {path_steps[0]} and {path_steps[1]} steps was found; ask for "
        "more nodes"
    )


class BridgedGraph:
    """A graph with two paths. Edges lead to higher numbers; people come first.

    The first two people are those a question may be about. ``sides`` says for which of them a node
    may follow: 0, 1, or 2 for both. ``levels`` says how many steps it is away from that person; no
    edge that is added later makes it fewer. ``ends`` are the last nodes of both paths, the options.
    ``question``: who is asked about, the right option and the wrong one.
    """

    question: tuple[int, int, int]

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.sides)

    def __init__(
        self, people: int, nodes: int, path_steps: Sequence[int], draw: random.Random
    ) -> None:
        self.people = people
        other_people = [draw.randrange(2) for _ in range(people - 2)]
        self.sides = [0, 1, *other_people, *[_BOTH] * (nodes - people)]
        self.levels = [0, 0, *[UNREACHABLE] * (nodes - 2)]
        self.edges: set[Edge] = set()
        paths = self._draw_paths(path_steps, draw)
        self.ends = [path[-1] for path in paths]
        predecessor = {b: a for path in paths for a, b in pairwise(path)}
        for node in range(people, nodes):
            if node in predecessor:
                self.sides[node] = self.sides[predecessor[node]]
            elif node < nodes - 1:
                self.sides[node] = draw.choices((0, 1, _BOTH), _SIDE_WEIGHTS)[0]
            sources = self._possible_sources(node)
            source = predecessor[node] if node in predecessor else draw.choice(sources[-_NEAREST:])
            self._add(source, node)
        # The last node is of both sides, so everybody may lead to it.
        for person in set(range(people)) - {a for a, _ in self.edges}:
            self._add(person, nodes - 1)

    def add_bridges(self, draw: random.Random) -> None:
        """Link each person, by a node that follows for both, to what leads to the other's end."""
        shared = [node for node, side in enumerate(self.sides) if side == _BOTH]
        for person, end in ((0, self.ends[1]), (1, self.ends[0])):
            pairs = [(a, node) for a, b in self.edges if b == end for node in shared if a < node]
            if pairs:
                source, node = draw.choice(sorted(pairs))
                self._add(source, node)
                self._add(person, node)

    def fill(self, statements: int, draw: random.Random) -> None:
        """Add edges that change no node's level, up to a number of statements."""
        pairs = [
            (a, b)
            for b in range(self.people, len(self.sides))
            for a in self._possible_sources(b)
            if (a, b) not in self.edges and self.levels[a] + 1 >= self.levels[b]
        ]
        missing = min(max(0, statements - len(self.edges)), len(pairs))
        self.edges.update(draw.sample(pairs, missing))

    def _draw_paths(self, path_steps: Sequence[int], draw: random.Random) -> list[list[int]]:
        """Draw the nodes of the paths from the first two people to their ends."""
        # The last node is kept free, as one of both sides.
        concepts = range(self.people, len(self.sides) - 1)
        drawn, first = draw.sample(concepts, sum(path_steps)), path_steps[0]
        return [[0, *sorted(drawn[:first])], [1, *sorted(drawn[first:])]]

    def _possible_sources(self, node: int) -> list[int]:
        """Return the nodes that an edge to a node may come from: of its side, never an end."""
        side = self.sides[node]
        return [i for i in range(node) if side in (self.sides[i], _BOTH) and i not in self.ends]

    def _add(self, a: int, b: int) -> None:
        self.edges.add((a, b))
        if self.sides[b] == _BOTH:
            # Of both sides: it never counts as a step on the way to an end.
            self.levels[b] = 0
        else:
            self.levels[b] = min(self.levels[b], self.levels[a] + 1)
