"""How often a classifier answers ProsQA without reasoning, from 23 features of the two options.

    python benchmarks/prosqa_shortcuts.py --originals prosqa_valid.json

Every record is one example: the features of one option minus those of the other, in an order drawn
at random, and whether the first of the two is right. Classifiers are scored on records that
they were not fitted to (cross-validation): logistic regression over shortcuts, and logistic
regression and gradient-boosted trees over the 23 features. No feature combines the direction of the
statements with the person who is asked about, since following the statements from that person is
what the question asks for. The last column is elimination: trees over how many other people lead to
each option.

Then follow the shares of right answers of each shortcut alone. It chooses an option without
following statements from the person, and has half a point where it sees no difference.
"""

import argparse
import random
import re
from collections import Counter
from pathlib import Path

import networkx
import numpy as np
from scipy.stats import binomtest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from layermem_bench.tasks import prosqa

TINY = {"steps": 3, "nodes": 12, "statements": 15}
DRAWN = {
    "crossed, tiny": TINY,
    "crossed, full": {},
}
# In the order in which the functions below compute them.
FEATURES = {
    "undirected": [
        *(f"walks of {steps} steps from the person" for steps in range(2, 8)),
        "PageRank restarted at the person",
        "distance from the person",
        "resistance distance from the person",
        "neighbours in common with the person",
    ],
    "directed": [
        "people that lead to it",
        "nodes that lead to it",
        "statements that end in it",
        "statements on the ways to it",
        "distance from the nearest person",
        "mean distance from the people that lead to it",
        "longest way to it",
        "PageRank along the statements",
    ],
    "text": [
        "first mention",
        "last mention",
        "number of mentions",
        "words between it and the person",
        "named first in the question",
    ],
}


UNREACHABLE = 10**6


def distances(edges, start):
    """Return the number of steps to every node that can be reached along the edges."""
    graph = networkx.DiGraph(edges)
    return networkx.single_source_shortest_path_length(graph, start)


def undirected(edges):
    return [*edges, *((b, a) for a, b in edges)]


def nearer_option(record):
    steps = distances(undirected(record.edges), record.root)
    return prefer_less(record, lambda option: steps.get(option, UNREACHABLE))


def within_three_steps(record):
    steps = distances(undirected(record.edges), record.root)
    return prefer_less(record, lambda option: steps.get(option, UNREACHABLE) > 3)


def likelier_end(record):
    """PageRank with restart at the person, with probability 0.15 at each of 60 steps."""
    edges = undirected(record.edges)
    degree = Counter(a for a, _ in edges)
    start = [float(i == record.root) for i in range(len(record.idx_to_symbol))]
    rank = start
    for _ in range(60):
        following = [0.15 * share for share in start]
        for a, b in edges:
            following[b] += 0.85 * rank[a] / degree[a]
        rank = following
    return credit(round(rank[record.target] - rank[record.neg_target], 9))


def more_walks(record):
    """Walks of 1 to 6 steps are counted."""
    edges = undirected(record.edges)
    walks = [int(i == record.root) for i in range(len(record.idx_to_symbol))]
    lead = 0
    for _ in range(6):
        following = [0] * len(walks)
        for a, b in edges:
            following[b] += walks[a]
        walks = following
        lead += walks[record.target] - walks[record.neg_target]
    return credit(lead)


def last_mentioned(record):
    words = re.findall(r"\w+", record.question.rpartition(". ")[0])
    place = {word: i for i, word in enumerate(words)}
    return prefer_less(record, lambda i: -place.get(record.idx_to_symbol[i], -1))


def named_first(record):
    question = record.question.rpartition(". ")[2]
    return prefer_less(record, lambda i: question.find(f" {record.idx_to_symbol[i]}"))


def fewer_statements(record):
    """Statements that end in an option are counted."""
    count = Counter(b for _, b in record.edges)
    return prefer_less(record, lambda option: count[option])


def farther_from_all(record):
    return choose_farther(record, people(record))


def people(record):
    return [i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()]


def choose_farther(record, people):
    """Choose the option that is farther, along the directions, from the person nearest to it."""
    steps_from = [distances(record.edges, person) for person in people]

    def nearest(option):
        return min((steps.get(option, UNREACHABLE) for steps in steps_from), default=UNREACHABLE)

    return prefer_less(record, lambda option: -nearest(option))


def prefer_less(record, number):
    """Return the credit of choosing the option with the smaller number."""
    return credit(number(record.neg_target) - number(record.target))


def credit(lead):
    return 0.5 if lead == 0 else float(lead > 0)


SHORTCUTS = {
    "the nearer option, directions ignored": nearer_option,
    "the option within 3 steps, directions ignored": within_three_steps,
    "the likelier end of a walk, directions ignored": likelier_end,
    "the option of more walks, directions ignored": more_walks,
    "the option farther from everybody": farther_from_all,
    "the option mentioned last": last_mentioned,
    "the option with fewer statements": fewer_statements,
    "the option named first": named_first,
}


def pagerank(adjacency, restart):
    """Return the PageRank of every node; a walk restarts with probability 0.15 or at an end."""
    degree = adjacency.sum(1, keepdims=True)
    step = np.where(degree > 0, adjacency / np.maximum(degree, 1), restart)
    return np.linalg.solve(np.eye(len(adjacency)) - 0.85 * step.T, 0.15 * restart)


def undirected_features(record, options):
    """Features that forget the direction of the statements, and know who is asked about."""
    size, root = len(record.idx_to_symbol), record.root
    graph = networkx.Graph(record.edges)
    adjacency = networkx.to_numpy_array(graph, nodelist=range(size))
    start = np.eye(size)[root]
    walks, walk = [], adjacency @ start
    for _ in range(6):
        walk = adjacency @ walk
        walks.append(walk)
    rank = pagerank(adjacency, start)
    distance = networkx.single_source_shortest_path_length(graph, root)
    inverse = np.linalg.pinv(np.diag(adjacency.sum(1)) - adjacency)
    return [
        [
            *(walk[option] for walk in walks),
            rank[option],
            distance.get(option, size),
            inverse[root, root] + inverse[option, option] - 2 * inverse[root, option],
            adjacency[root] @ adjacency[option],
        ]
        for option in options
    ]


def directed_features(record, options):
    """Features that follow the direction of the statements, and forget who is asked about."""
    size = len(record.idx_to_symbol)
    graph = networkx.DiGraph(record.edges)
    people = [i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()]
    adjacency = networkx.to_numpy_array(graph, nodelist=range(size))
    rank = pagerank(adjacency, np.full(size, 1 / size))
    rows = []
    for option in options:
        before = networkx.ancestors(graph, option)
        ways = graph.subgraph({*before, option})
        distance = networkx.single_target_shortest_path_length(ways, option)
        from_people = [distance[i] for i in people if i in before]
        rows.append(
            [
                len(from_people),
                len(before),
                graph.in_degree(option),
                ways.number_of_edges(),
                min(from_people, default=size),
                np.mean(from_people) if from_people else size,
                networkx.dag_longest_path_length(ways),
                rank[option],
            ]
        )
    return rows


def text_features(record, options):
    """Features of where the options are mentioned."""
    body, _, question = record.question.replace(".", "").replace("?", "").rpartition(" Is ")
    words = body.split()
    named = [i for i, word in enumerate(words) if word == record.idx_to_symbol[record.root]]
    rows = []
    for option in options:
        symbol = record.idx_to_symbol[option]
        places = [i for i, word in enumerate(words) if word == symbol] or [-1]
        between = min((abs(i - j) for i in places for j in named), default=len(words))
        first = question.split().index(symbol) == 2
        rows.append([places[0], places[-1], len(places), between, first])
    return rows


def other_people(record, options):
    """Count the people beside the one asked about that lead to each option: elimination."""
    graph = networkx.DiGraph(record.edges)
    others = {i for i, symbol in enumerate(record.idx_to_symbol) if symbol[0].isupper()} - {
        record.root
    }
    return [[len(others & networkx.ancestors(graph, option))] for option in options]


def examples(records, seed):
    """Return the differences of features, a row for each record, and whether the first is right."""
    draw, rows, first_is_right = random.Random(seed), [], []
    for record in records:
        options = [record.target, record.neg_target]
        groups = (undirected_features, directed_features, text_features, other_people)
        right, wrong = np.concatenate([group(record, options) for group in groups], axis=1)
        credits = np.array([shortcut(record) - 0.5 for shortcut in SHORTCUTS.values()])
        sign = draw.choice((1, -1))
        rows.append(np.concatenate([sign * credits, sign * (right - wrong)]))
        first_is_right.append(sign == 1)
    return np.array(rows, dtype=float), np.array(first_is_right)


def score(model, features, right, folds, seed):
    """Return the share of right answers for records a model was not fitted to, as text."""
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    count = int((cross_val_predict(model, features, right, cv=splitter) == right).sum())
    interval = binomtest(count, len(right)).proportion_ci(method="wilson")
    return f"{count / len(right):.1%} ({interval.low:.1%} to {interval.high:.1%})"


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--records", type=int, default=4000, help="records of each drawn set")
    parser.add_argument("--folds", type=int, default=5, help="folds of the cross-validation")
    parser.add_argument("--seed", type=int, default=0, help="seed of records, folds and trees")
    parser.add_argument("--originals", type=Path, help="a file of original records, scored too")
    args = parser.parse_args()

    sets = {"originals": prosqa.load(args.originals)} if args.originals else {}
    for name, options in DRAWN.items():
        sets[name] = prosqa.generate(args.records, args.seed, **options)
    shown = len(SHORTCUTS)
    models = {
        "logistic, shortcuts": (LogisticRegression(), slice(0, shown)),
        "logistic, 23 features": (
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
            slice(shown, -1),
        ),
        "boosted trees, 23 features": (
            HistGradientBoostingClassifier(random_state=args.seed),
            slice(shown, -1),
        ),
        "trees, other people": (
            HistGradientBoostingClassifier(random_state=args.seed),
            slice(-1, None),
        ),
    }
    print("Share of right answers with its 95% interval; a guess is right in 50%")
    print("records".ljust(22) + "".join(name.rjust(30) for name in models))
    for name, records in sets.items():
        rows, right = examples(records, args.seed)
        assert rows.shape[1] == shown + sum(map(len, FEATURES.values())) + 1
        cells = [
            score(model, rows[:, columns], right, args.folds, args.seed)
            for model, columns in models.values()
        ]
        print(f"{name} ({len(records):,})".ljust(22) + "".join(c.rjust(30) for c in cells))
    for name, records in sets.items():
        for shortcut, chooses in SHORTCUTS.items():
            print(f"{name}: {shortcut}: {np.mean([*map(chooses, records)]):.1%}")


if __name__ == "__main__":
    main()
