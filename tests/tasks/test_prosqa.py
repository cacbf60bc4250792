"""ProsQA: generated records are like the originals, solvable, and without shortcuts."""

import importlib.util
import json
import random
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import networkx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from layermem_bench.tasks.problems import Grade
from layermem_bench.tasks.prosqa import CONCEPTS, NAMES, generate, grade, load
from layermem_bench.tasks.prosqa_graphs import UndirectedPairs, draw_sizes, shortest_path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "shared" / "data" / "prosqa"
RIGHT = Grade(answer=True, steps=True)
TINY = {"steps": 3, "nodes": 12, "statements": 15}


@pytest.fixture(scope="module")
def shortcuts():
    """The shortcuts of the benchmark."""
    path = ROOT / "benchmarks" / "prosqa_shortcuts.py"
    spec = importlib.util.spec_from_file_location("prosqa_shortcuts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SHORTCUTS


@pytest.fixture(scope="module")
def records():
    return generate(1200, 0)


@pytest.fixture(scope="module")
def originals():
    files = [DATA / "prosqa_valid.json", DATA / "prosqa_test_first250.json"]
    if not all(file.exists() for file in files):
        pytest.skip(f"the original records are not at {DATA}")
    return [record for file in files for record in load(file)]


def follows(record):
    """Everything that follows for the one asked about, by the statements' own words."""
    told = [s.removeprefix("Every ").split(" is a ") for s in record.question.split(". ")[:-1]]
    known = {record.question.rpartition("Is ")[2].split()[0]}
    while new := {b.rstrip(".") for a, b in told if a in known} - known:
        known |= new
    return known


def test_records_are_solvable_and_the_other_option_does_not_follow(records):
    for record in records[:500]:
        symbols = record.idx_to_symbol
        right, wrong = symbols[record.target], symbols[record.neg_target]
        known = follows(record)
        assert right in known and wrong not in known
        asked = record.question.rpartition(". ")[2]
        assert asked in (
            f"Is {symbols[record.root]} a {right} or {wrong}?",
            f"Is {symbols[record.root]} a {wrong} or {right}?",
        )
        assert record.answer == f"{symbols[record.root]} is a {right}."
        assert set(symbols) <= {*NAMES, *CONCEPTS} and len(set(symbols)) == len(symbols)
        assert all(a < b for a, b in record.edges) and len(set(record.edges)) == len(record.edges)
        # Nothing and nobody stands apart, and nothing follows from either option.
        assert {n for edge in record.edges for n in edge} == set(range(len(symbols)))
        assert not {record.target, record.neg_target} & {a for a, _ in record.edges}


def test_records_are_like_the_originals(records):
    steps = Counter(len(record.steps) for record in records)
    for number, often in {3: 326, 4: 350, 5: 105, 6: 19}.items():
        assert steps[number] / len(records) == pytest.approx(often / 800, abs=0.04)
    nodes = [len(record.idx_to_symbol) for record in records]
    assert min(nodes) >= 14 and max(nodes) <= 28 and np.mean(nodes) == pytest.approx(22.8, abs=0.3)
    statements = [len(record.edges) for record in records]
    assert min(statements) >= 16 and max(statements) <= 54
    assert np.mean(statements) == pytest.approx(36.0, abs=0.8)
    used = {symbol for record in records for symbol in record.idx_to_symbol}
    assert used == {*NAMES, *CONCEPTS}


@pytest.mark.parametrize(
    ("size", "steps", "statements"),
    [
        ({"nodes": 12, "steps": 3}, {3}, (12, 28)),
        # Both ways are of one length: two of 5 steps have no room.
        ({"nodes": 12, "statements": 15}, {3, 4}, (15, 15)),
        # More than there is room for, fewer than keep it together.
        ({"nodes": 10, "statements": 100}, {3}, (13, 21)),
        ({"nodes": 16, "steps": 5, "statements": 1}, {5}, (12, 18)),
    ],
)
def test_records_of_another_size(size, steps, statements):
    made = generate(100, 0, **size)
    assert {len(record.steps) for record in made} == steps
    assert {len(record.idx_to_symbol) for record in made} == {size["nodes"]}
    for record in made:
        assert statements[0] <= len(record.edges) <= statements[1]
        known = follows(record)
        assert record.idx_to_symbol[record.target] in known
        assert record.idx_to_symbol[record.neg_target] not in known


@pytest.mark.parametrize("sizes", [{}, TINY], ids=["full", "tiny"])
def test_no_shortcut_is_worth_taking_alone_or_with_others(sizes, shortcuts, records):
    made = generate(1200, 0, **sizes) if sizes else records
    credits = np.array([[guess(record) - 0.5 for guess in shortcuts.values()] for record in made])
    # Nor is its contrary.
    assert (abs(credits.mean(0)) < 0.05).all(), dict(zip(shortcuts, credits.mean(0), strict=True))
    right = np.random.default_rng(0).integers(0, 2, len(made))
    leads = credits * (2 * right - 1)[:, None]
    assert cross_val_score(LogisticRegression(), leads, right, cv=5).mean() < 0.55


def test_the_same_statements_have_either_answer():
    draw = random.Random(0)
    for _ in range(60):
        steps, people, size, statements = draw_sizes(draw, None, None, None)
        pairs = UndirectedPairs(people, size, steps, draw)
        pairs.fill(statements, draw)
        one, other = (orientation.edges for orientation in pairs.orientations)
        assert {frozenset(edge) for edge in one} == {frozenset(edge) for edge in other}
        assert len(one) == len(other)
        for edges, ends in ((one, pairs.ends), (other, pairs.ends[::-1])):
            graph = networkx.DiGraph(edges)
            for person in (0, 1):
                far = networkx.single_source_shortest_path_length(graph, person)
                assert far[ends[person]] == steps and ends[1 - person] not in far


def test_paths_are_shortest_as_networkx_finds_them(records):
    for record in records[:30]:
        graph = networkx.DiGraph(record.edges)
        path = shortest_path(record.edges, record.root, record.target)
        assert path in networkx.all_shortest_paths(graph, record.root, record.target)


def test_the_originals(originals, shortcuts):
    assert len(originals) == 550
    assert all(grade(record, record.solution) == RIGHT for record in originals)
    for record in originals:
        known = follows(record)
        assert record.idx_to_symbol[record.target] in known
        assert record.idx_to_symbol[record.neg_target] not in known
    nearer = shortcuts["the nearer option, directions ignored"]
    assert np.mean([*map(nearer, originals)]) > 0.85


def test_attempts():
    record = generate(1, 0)[0]
    symbols, count = record.idx_to_symbol, len(record.steps)
    wrong = f"{symbols[record.root]} is a {symbols[record.neg_target]}."
    proof, end = " ".join(record.steps), f"\n### {record.answer}"
    other = next(
        f"{symbols[a]} is a {symbols[b]}."
        for a, b in record.edges
        if a != record.root and symbols[a] in NAMES
    )
    attempts = {
        proof: (False, "no answer", 0),
        f"{proof}\n### {wrong}": (False, "elsewhere", count),
        end: (True, "elsewhere", 0),
        f"{' '.join(record.steps[1:])}{end}": (True, "apart", 1),
        f"{' '.join(record.steps[:-1])}{end}": (True, "elsewhere", count - 1),
        # All are stated, the first is about who is asked about, the last ends in the answer.
        f"{record.steps[0]} {' '.join(record.steps[2:])}{end}": (True, "apart", 2),
        f"{' '.join(record.steps[:-1])} {proof}{end}": (True, "apart", count),
        f"{other} {proof}{end}": (True, "apart", 1),
        f"{record.answer}{end}": (True, "unstated", 1),
        f"Every {proof}{end}": (True, "unreadable", 1),
        f"{proof}{end}\n### no": (False, "unreadable", count + 1),
        "#": (False, "elsewhere", 0),
    }
    for text, (answer, fault, at) in attempts.items():
        assert grade(record, text) == Grade(answer=answer, steps=False, fault=fault, at=at), text
    assert grade(record, proof + end) == RIGHT


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("{", "JSON"),
        ("{}", "list"),
        ("[1]", "record 0"),
        ({"steps": None}, "steps"),
        ({"edges": [[0]]}, "record 0"),
        ({"target": 99}, "record 0"),
        ({"answer": ...}, "answer"),
        ({"root": 1}, "proof"),
    ],
)
def test_a_malformed_file_is_refused(change, named, tmp_path):
    path, record = tmp_path / "records.json", generate(1, 0)[0]
    if isinstance(change, dict):
        values = asdict(record) | change
        change = json.dumps([{name: v for name, v in values.items() if v is not ...}])
    path.write_text(change)
    with pytest.raises((ValueError, TypeError), match=named):
        generate(9, 0, split="test", test=str(path))
    path.write_text(json.dumps([asdict(record) | {"more": 1}]))
    assert load(path) == [record] != [replace(record, root=1)]
