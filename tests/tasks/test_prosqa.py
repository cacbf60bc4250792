"""ProsQA: generated records are like the originals, solvable, and without shortcuts."""

import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from layermem_bench.tasks import prosqa, prosqa_crossed
from layermem_bench.tasks.problems import Grade
from layermem_bench.tasks.prosqa import CONCEPTS, NAMES, generate, grade, load
from layermem_bench.tasks.prosqa_crossed import UndirectedPairs
from layermem_bench.tasks.prosqa_graphs import distances, draw_sizes, shortest_path
from layermem_bench.tasks.prosqa_records import SHORTCUTS, farther_from_others
from layermem_bench.tasks.registry import get_task

DATA = Path(__file__).parents[3] / "shared" / "data" / "prosqa"
RIGHT = Grade(answer=True, steps=True)


@pytest.fixture(scope="module")
def records():
    return generate(2000, 0)


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
    for record in records:
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
        assert grade(record, record.solution) == RIGHT
        assert set(symbols) <= {*NAMES, *CONCEPTS} and len(set(symbols)) == len(symbols)
        assert all(a < b for a, b in record.edges) and len(set(record.edges)) == len(record.edges)
        # Nothing and nobody stands apart.
        assert {n for edge in record.edges for n in edge} == set(range(len(symbols)))
        # Nothing follows from either option.
        assert not {record.target, record.neg_target} & {a for a, _ in record.edges}


def test_records_are_like_the_originals(described):
    found = described
    expected = {3: 326 / 800, 4: 350 / 800, 5: 105 / 800, 6: 19 / 800}
    assert all(abs(found["steps"][n] - share) < 0.035 for n, share in expected.items())
    fewest, mean, most = found["nodes: fewest, mean, most"]
    assert fewest >= 14 and most <= 28 and mean == pytest.approx(22.8, abs=0.3)
    fewest, mean, most = found["statements: fewest, mean, most"]
    assert fewest >= 16 and most <= 54 and mean == pytest.approx(36.0, abs=0.8)
    assert found["names and concepts"] == [17, 38]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "steps", "statements"),
    [
        ({"nodes": 12, "steps": 3}, {3}, (12, 28)),
        # Both ways are of one length: two of 5 steps have no room.
        ({"nodes": 12, "statements": 15}, {3, 4}, (15, 15)),
        ({"steps": 6}, {6}, (16, 54)),
        # More than there is room for, fewer than keep it together.
        ({"nodes": 10, "statements": 100}, {3}, (13, 21)),
        ({"nodes": 16, "steps": 5, "statements": 1}, {5}, (12, 18)),
    ],
)
def test_records_of_another_size(size, steps, statements):
    records = generate(400, 0, **size)
    found = prosqa.describe(records)
    fewest, _, most = found["statements: fewest, mean, most"]
    assert statements[0] <= fewest <= most <= statements[1]
    if "nodes" in size:
        assert found["nodes: fewest, mean, most"] == [size["nodes"]] * 3
    assert set(found["steps"]) == steps
    for record in records:
        known = follows(record)
        assert record.idx_to_symbol[record.target] in known
        assert record.idx_to_symbol[record.neg_target] not in known
        assert grade(record, record.solution) == RIGHT
    # Three standard deviations of 400 guesses.
    assert all(0.425 <= share <= 0.575 for share in found["right answers by shortcut"].values())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"count": -1}, "count .* got -1"),
        ({"split": "dev"}, "split .* got 'dev'"),
        ({"graphs": "some"}, "graphs .* got 'some'"),
        ({"steps": 2}, "steps must be 3 to 6, got 2"),
        ({"steps": 7}, "steps must be 3 to 6, got 7"),
        ({"nodes": 9}, "nodes must be 10 .*to 40 .*got 9"),
        ({"nodes": 41}, "nodes must be 10 .*to 40 .*got 41"),
        ({"nodes": 12, "steps": 5}, "nodes must be 14 .*got 12"),
        ({"statements": 0}, "statements .* got 0"),
        ({"graphs": "bridged", "steps": 2}, "steps must be 3 to 6, got 2"),
        ({"graphs": "lines", "steps": 1}, "steps must be at least 2, got 1"),
        ({"graphs": "lines", "steps": 20}, "20 steps need 40 concepts, .* at most 19"),
        ({"graphs": "lines", "nodes": 15}, "nodes must be 4 .*2 to 12 lines, got 15"),
        ({"graphs": "lines", "nodes": 4}, "2 to 12 lines, got 4"),
        ({"graphs": "lines", "steps": 2, "nodes": 54}, "2 to 17 lines, got 54"),
        ({"graphs": "lines", "statements": 15}, "12 statements, got 15"),
    ],
    ids=str,
)
def test_what_cannot_be(options, named):
    with pytest.raises(ValueError, match=named):
        generate(**{"count": 1, "seed": 0, **options})


TINY = {"steps": 3, "nodes": 12, "statements": 15}


@pytest.fixture(scope="module")
def described(records):
    return prosqa.describe(records)


@pytest.fixture(scope="module")
def tiny():
    return generate(2000, 0, **TINY)


def test_no_shortcut_is_worth_taking(described, tiny):
    for found in (described, prosqa.describe(tiny)):
        shares = found["right answers by shortcut"]
        assert shares.keys() == SHORTCUTS.keys()
        # Nor is its contrary.
        assert all(0.45 < share < 0.55 for share in shares.values()), shares


def learnt(records):
    """How often a logistic regression over all shortcuts is right of records it has not seen."""
    credits = np.array(
        [[guess(record) - 0.5 for guess in SHORTCUTS.values()] for record in records]
    )
    right = np.random.default_rng(0).integers(0, 2, len(records))
    leads = credits * (2 * right - 1)[:, None]
    return cross_val_score(LogisticRegression(), leads, right, cv=5).mean()


def test_nor_are_all_shortcuts_together(records, tiny):
    assert learnt(records[:1000]) < 0.55
    assert learnt(tiny[:1000]) < 0.55


def test_the_draw_before_has_shortcuts():
    before = generate(300, 0, graphs="bridged", **TINY)
    found = prosqa.describe(before)["right answers by shortcut"]
    assert found["the likelier end of a walk, directions ignored"] > 0.9
    assert learnt(before) > 0.9


def test_the_draw_before_is_as_it_was():
    made = [*generate(60, 3, graphs="bridged"), *generate(60, 3, graphs="bridged", **TINY)]
    made += generate(20, 3, split="test", graphs="bridged", steps=4)
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == "2d65f9c017a33192"


def test_lines_do_not_branch_and_are_told_apart_by_their_steps():
    made = generate(100, 0, graphs="lines", steps=4, nodes=15)
    for record in made:
        assert len(record.idx_to_symbol) == 15 and len(record.edges) == 12
        starts, ends = zip(*record.edges, strict=True)
        assert len({*starts}) == len({*ends}) == 12
        assert len(record.steps) == 4 and record.neg_target not in follows(record)
        assert {*follows(record)} & {record.idx_to_symbol[i] for i in {*ends} - {*starts}} == {
            record.idx_to_symbol[record.target]
        }
        assert grade(record, record.solution) == RIGHT
    assert len({record.idx_to_symbol[record.root] for record in made}) == len(NAMES)
    by_default = generate(1, 0, graphs="lines")[0]
    assert (len(by_default.idx_to_symbol), len(by_default.steps)) == (16, 3)
    assert len(generate(1, 0, graphs="lines", steps=2, nodes=51, statements=34)) == 1


def test_the_same_statements_have_either_answer():
    draw = random.Random(0)
    for _ in range(80):
        steps, people, size, statements = draw_sizes(draw, None, None, None)
        pairs = UndirectedPairs(people, size, steps, draw)
        pairs.fill(statements, draw)
        one, other = (orientation.edges for orientation in pairs.orientations)
        assert {frozenset(edge) for edge in one} == {frozenset(edge) for edge in other}
        assert len(one) == len(other)
        for edges, ends in ((one, pairs.ends), (other, pairs.ends[::-1])):
            for person in (0, 1):
                far = distances(sorted(edges), person)
                assert far[ends[person]] == steps and ends[1 - person] not in far


def test_either_orientation_is_drawn(monkeypatch):
    filled = []

    class Pairs(UndirectedPairs):
        def fill(self, *args):
            super().fill(*args)
            filled.append(self)

    def degrees(edges):
        return sorted((Counter(a for a, _ in edges) | Counter(-b for _, b in edges)).values())

    monkeypatch.setattr(prosqa_crossed, "UndirectedPairs", Pairs)
    drawn = [prosqa_crossed.draw_crossed(random.Random(i), None, None, None) for i in range(40)]
    straight = [
        degrees(graph.edges) == degrees(pairs.orientations[0].edges)
        for graph, pairs in zip(drawn, filled, strict=True)
    ]
    assert 5 < sum(straight) < 35


def test_distances_are_those_of_networkx(records):
    for record in records[:30]:
        graph = networkx.DiGraph(record.edges)
        for node in graph:
            expected = networkx.single_source_shortest_path_length(graph, node)
            assert distances(record.edges, node) == expected
        path = shortest_path(record.edges, record.root, record.target)
        assert path in networkx.all_shortest_paths(graph, record.root, record.target)


def test_the_originals(originals):
    assert len(originals) == 550
    assert all(grade(record, record.solution) == RIGHT for record in originals)
    assert all(record.idx_to_symbol[record.target] in follows(record) for record in originals)
    assert all(
        record.idx_to_symbol[record.neg_target] not in follows(record) for record in originals
    )
    found = prosqa.describe(originals)["right answers by shortcut"]
    assert found["the nearer option, directions ignored"] > 0.85
    assert found["the option named first"] == pytest.approx(0.5, abs=0.05)


def test_the_tokenizer_gives_prompts_back(records, originals, tmp_path):
    from transformers import AutoTokenizer

    get_task("prosqa").tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for record in (*records[:50], *originals):
        text = record.prompt + record.solution
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids


def test_attempts():
    record = generate(1, 0)[0]
    symbols = record.idx_to_symbol
    wrong = f"{symbols[record.root]} is a {symbols[record.neg_target]}."
    proof = " ".join(record.steps)
    other = next(
        f"{symbols[a]} is a {symbols[b]}."
        for a, b in record.edges
        if a != record.root and symbols[a] in NAMES
    )
    attempts = {
        "": Grade(answer=False, steps=False, fault="no answer"),
        proof: Grade(answer=False, steps=False, fault="no answer"),
        f"{proof}\n### {record.answer}": RIGHT,
        f"{proof}\n### {wrong}": Grade(
            answer=False, steps=False, fault="elsewhere", at=len(record.steps)
        ),
        f"\n### {record.answer}": Grade(answer=True, steps=False, fault="elsewhere"),
        f"{' '.join(record.steps[1:])}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="apart", at=1
        ),
        f"{' '.join(record.steps[:-1])}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="elsewhere", at=len(record.steps) - 1
        ),
        # All are stated, the first is about who is asked about, the last ends in the answer.
        f"{record.steps[0]} {' '.join(record.steps[2:])}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="apart", at=2
        ),
        f"{' '.join(record.steps[:-1])} {proof}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="apart", at=len(record.steps)
        ),
        f"{other} {proof}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="apart", at=1
        ),
        f"{record.answer}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="unstated", at=1
        ),
        f"Every {proof}\n### {record.answer}": Grade(
            answer=True, steps=False, fault="unreadable", at=1
        ),
        f"{proof}\n### {record.answer}\n### no": Grade(
            answer=False, steps=False, fault="unreadable", at=len(record.steps) + 1
        ),
        "#": Grade(answer=False, steps=False, fault="elsewhere"),
    }
    for text, expected in attempts.items():
        assert grade(record, text) == expected, text


def test_splits_and_seeds():
    assert generate(5, 1) == generate(5, 1) != generate(5, 2)
    train, test = ({r.question for r in generate(100, 0, split=s)} for s in ("train", "test"))
    assert len(train) == len(test) == 100 and not train & test


def test_a_split_comes_from_a_file_where_one_is_given(tmp_path):
    path = tmp_path / "test.json"
    kept = generate(3, 9)
    path.write_text(json.dumps([{f: getattr(r, f) for f in r.__dataclass_fields__} for r in kept]))
    assert load(path) == kept
    assert prosqa.generate(split="test", count=2, seed=0, test=str(path)) == kept[:2]
    assert prosqa.generate(split="train", count=2, seed=0, test=str(path)) == generate(2, 0)


def test_records_of_a_file_count_once_and_have_proofs_that_follow(tmp_path, caplog):
    def write(records):
        fields = [{f: getattr(r, f) for f in r.__dataclass_fields__} for r in records]
        (tmp_path / "test.json").write_text(json.dumps(fields))
        return {"split": "test", "count": 9, "seed": 0, "test": str(tmp_path / "test.json")}

    first, second = generate(2, 9)
    assert prosqa.generate(**write([first, second, first, first])) == [first, second]
    assert "2 of 4 problems of test=" in caplog.text and "repeat one before" in caplog.text
    turned = replace(second, edges=tuple((b, a) for a, b in second.edges))
    with pytest.raises(ValueError, match=r"proof of the question .* does not follow"):
        prosqa.generate(**write([first, turned]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "list of records, got dict"),
        ("[1]", "record 0.* got 1"),
        ({"steps": None}, "record 0: steps .* got None"),
        ({"question": 3}, "record 0: question .* got 3"),
        ({"question": ""}, "record 0: question.* empty"),
        ({"edges": [[0]]}, r"record 0: .* got \(0,\)"),
        ({"target": 99}, "record 0: 99 "),
        ({"edges": [[0, -1]]}, "record 0: -1 "),
        ({"root": "Tom"}, "record 0: root .* got 'Tom'"),
        ({"answer": ...}, "record 0: answer missing"),
    ],
)
def test_a_malformed_file(change, message, tmp_path):
    path = tmp_path / "records.json"
    if isinstance(change, dict):
        record = generate(1, 0)[0]
        values = {f: getattr(record, f) for f in record.__dataclass_fields__} | change
        change = json.dumps([{name: v for name, v in values.items() if v is not ...}])
    path.write_text(change)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_elimination_walks_from_everybody_else():
    """It is no shortcut, and is said beside them: it follows arrows from each other person."""
    record = replace(
        generate(1, 0)[0],
        idx_to_symbol=("Tom", "Sam", "wumpus", "lempus"),
        edges=((0, 2), (1, 3)),
        root=0,
        target=2,
        neg_target=3,
    )
    assert farther_from_others(record) == 1
    # Sam leads to both, Tom's own way does not count.
    assert farther_from_others(replace(record, edges=((0, 2), (1, 3), (1, 2)))) == 0.5
    assert farther_from_others(replace(record, edges=((0, 2), (1, 2)))) == 0
