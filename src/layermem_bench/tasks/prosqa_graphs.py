"""Graphs of ProsQA: their sizes and paths; lines, and bridged graphs, which have shortcuts.

``graphs=lines``: each person leads along concepts of their own. To learn on that statements are
looked up, before graphs in which a way has to be chosen. Worked example, two lines of 3 steps,
person 0 is asked about:

    lines       0 -> 2 -> 3 -> 4        1 -> 5 -> 6 -> 7
    question    Is 0 a 4 or a 7?

Whichever option hangs together with the person is right, directions or not, so that answers say
little: proofs say whether each step was looked up.

``graphs=bridged``: two people, each with a concept that follows for that person alone. Worked
example, person 0 is asked about, the right option is 3 steps away and the wrong one 4:

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
from dataclasses import dataclass
from itertools import pairwise
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
# Stands for the distance to a node that cannot be reached.
UNREACHABLE = 10**6
# Lines: as usual; and at most as many people, and concepts, as have names.
_LINE_STEPS, _LINES, _MAX_LINES, _MAX_CONCEPTS = 3, 4, 17, 38
# Bridged graphs of one size that are drawn before another size is, and how many sizes are tried.
_GRAPHS_PER_SIZE, _SIZES = 200, 200
# The side of a node that may follow for both people.
_BOTH = 2
# How often a concept beside the paths of a bridged graph is of side 0, 1 and both.
_SIDE_WEIGHTS = (9, 9, 2)
# Such a concept follows from one of so many nodes before it.
_NEAREST = 6
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


def _check_sizes(steps: int | None, nodes: int | None, statements: int | None) -> None:
    least, most = min(_STEP_COUNTS), max(_STEP_COUNTS)
    require(
        steps is None or least <= steps <= most,
        f"steps must be {least} to {most}, got {steps}: with fewer, the distance to the options "
        "tells the answer even if directions are ignored",
    )
    fewest = 2 * (steps or least) + _OTHER_NODES
    require(
        nodes is None or fewest <= nodes <= _MAX_NODES,
        f"nodes must be {fewest} (two paths of {steps or least} steps, two people, two more) to "
        f"{_MAX_NODES} (as many as have names), got {nodes}",
    )
    require(
        statements is None or statements >= 1, f"statements must be at least 1, got {statements}"
    )


def draw_sizes(
    draw: random.Random, steps: int | None, nodes: int | None, statements: int | None
) -> tuple[int, int, int, int]:
    """Draw steps, people, nodes and statements such that two paths of so many steps have room."""
    _check_sizes(steps, nodes, statements)
    most = _NODES[1] if nodes is None else nodes
    fitting = {n: often for n, often in _STEP_COUNTS.items() if 2 * n + _OTHER_NODES <= most}
    (path_steps,) = [steps] if steps else draw.choices(list(fitting), list(fitting.values()))
    while True:
        people, size, edges = _draw_counts(draw, nodes, statements)
        if people - 2 + 2 * path_steps + _OTHER_NODES <= size:
            return path_steps, people, size, edges


def _draw_counts(
    draw: random.Random, nodes: int | None, statements: int | None
) -> tuple[int, int, int]:
    """Draw numbers of people, nodes and statements; those that are given stay as they are.

    Where nodes are given, statements are scaled with them: a graph of 12 nodes gets 12 / 22.8 of
    the statements drawn.
    """
    (people,) = draw.choices(list(_PEOPLE_COUNTS), list(_PEOPLE_COUNTS.values()))
    size, edges = (
        min(high, max(low, round(draw.gauss(mean, deviation))))
        for low, high, mean, deviation in (_NODES, _STATEMENTS)
    )
    if nodes is not None:
        size, edges = nodes, round(edges * nodes / _NODES[2])
    return people, size, statements or edges


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
    return [*edges, *((b, a) for a, b in edges)]


def shortest_path(edges: Sequence[Edge], start: int, end: int) -> list[int]:
    """Return the nodes of a shortest path; of several the one whose last edges come first."""
    steps, nodes = distances(edges, start), [end]
    while nodes[0] != start:
        before = steps[nodes[0]] - 1
        nodes.insert(0, next(a for a, b in edges if b == nodes[0] and steps.get(a) == before))
    return nodes


def draw_lines(
    draw: random.Random, steps: int | None, nodes: int | None, statements: int | None
) -> Graph:
    """Draw a graph and a question: as many lines of so many steps (3) as nodes allow (4 lines)."""
    steps = _LINE_STEPS if steps is None else steps
    lines = _count_lines(steps, nodes)
    require(
        statements in (None, lines * steps),
        f"{lines} lines of {steps} steps have {lines * steps} statements, got {statements}; leave "
        "statements out, or say null",
    )
    nodes_of = [
        (line, *range(lines + line * steps, lines + (line + 1) * steps)) for line in range(lines)
    ]
    asked, other = draw.sample(range(lines), 2)
    return Graph(
        people=lines,
        size=lines * (steps + 1),
        edges={edge for line in nodes_of for edge in pairwise(line)},
        question=(asked, nodes_of[asked][-1], nodes_of[other][-1]),
    )


def _count_lines(steps: int, nodes: int | None) -> int:
    require(
        steps >= 2, f"steps must be at least 2, got {steps}: with one, splits would share records"
    )
    most = min(_MAX_LINES, _MAX_CONCEPTS // steps)
    require(
        most >= 2,
        f"two lines of {steps} steps need {2 * steps} concepts, and {_MAX_CONCEPTS} have names; "
        f"steps must be at most {_MAX_CONCEPTS // 2}",
    )
    lines, rest = (min(_LINES, most), 0) if nodes is None else divmod(nodes, steps + 1)
    require(
        rest == 0 and 2 <= lines <= most,
        f"nodes must be {steps + 1} (a person and {steps} concepts) for each of 2 to {most} lines, "
        f"got {nodes}",
    )
    return lines


def draw_bridged(
    draw: random.Random, steps: int | None, nodes: int | None, statements: int | None
) -> Graph:
    """Draw a graph and a question.

    Steps to an option, nodes and statements are drawn like the originals' (as many statements for
    each node) or as given (fewer statements where there is no room for more, more where a node
    would be unconnected).

    Both people have an option, with the number of steps to it drawn alike, and either is asked
    about with the same chance, so the options differ only in whom they follow for. That leaves the
    distance with directions ignored. Where the right option is 3 steps away, graphs are drawn until
    the wrong one is as near; else until it is nearer or farther, whichever was drawn.
    """
    _check_sizes(steps, nodes, statements)
    path_steps = _draw_path_steps(draw, steps, nodes)
    asked, balance = draw.randrange(2), draw.random()
    # Drawn once: drawn anew with each graph, the sign that is harder to meet would be rarer.
    wanted_sign = 0 if path_steps[asked] == 3 else 1 if balance < 0.5 else -1
    for _ in range(_SIZES):
        people, size, edges = _draw_counts(draw, nodes, statements)
        has_room = people + sum(path_steps) < size
        for _ in range(_GRAPHS_PER_SIZE if has_room else 0):
            graph = _BridgedGraph(people, size, path_steps, draw)
            if wanted_sign <= 0:
                graph.add_bridges(draw)
            graph.fill(edges, draw)
            right, wrong = graph.ends[asked], graph.ends[1 - asked]
            steps_to = distances(undirected([*graph.edges]), asked)
            lead = steps_to.get(wrong, UNREACHABLE) - steps_to[right]
            if (lead > 0) - (lead < 0) == wanted_sign:
                question = asked, right, wrong
                return Graph(people=people, size=size, edges=graph.edges, question=question)
    raise ValueError(
        f"no balanced graph of {nodes or 'any number of'} nodes, {statements or 'any number of'} "
        f"statements and paths of {path_steps[0]} and {path_steps[1]} steps was found; ask for "
        "more nodes"
    )


def _draw_path_steps(draw: random.Random, steps: int | None, nodes: int | None) -> list[int]:
    """Draw the steps to each of the two options, so that the nodes suffice for both paths."""
    if steps is not None:
        return [steps, steps]
    most = (_NODES[1] if nodes is None else nodes) - _OTHER_NODES
    while sum(drawn := draw.choices(list(_STEP_COUNTS), list(_STEP_COUNTS.values()), k=2)) > most:
        pass
    return drawn


class _BridgedGraph:
    """A graph with two paths. Edges lead to higher numbers; people come first.

    The first two people are those a question may be about. ``sides`` says for which of them a node
    may follow: 0, 1, or 2 for both. ``levels`` says how many steps it is away from that person; no
    edge that is added later makes it fewer. ``ends`` are the last nodes of both paths, the options.
    """

    def __init__(
        self, people: int, nodes: int, path_steps: Sequence[int], draw: random.Random
    ) -> None:
        self.people = people
        other_people = [draw.randrange(2) for _ in range(people - 2)]
        self.sides = [0, 1, *other_people, *[_BOTH] * (nodes - people)]
        self.levels = [0, 0, *[UNREACHABLE] * (nodes - 2)]
        self.edges: set[Edge] = set()
        # The last node is kept free, as one of both sides.
        drawn, first = draw.sample(range(people, nodes - 1), sum(path_steps)), path_steps[0]
        paths = [[0, *sorted(drawn[:first])], [1, *sorted(drawn[first:])]]
        self.ends = [path[-1] for path in paths]
        predecessor = {b: a for path in paths for a, b in pairwise(path)}
        for node in range(people, nodes):
            if node in predecessor:
                source = predecessor[node]
                self.sides[node] = self.sides[source]
            else:
                if node < nodes - 1:
                    self.sides[node] = draw.choices((0, 1, _BOTH), _SIDE_WEIGHTS)[0]
                source = draw.choice(self._possible_sources(node)[-_NEAREST:])
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
