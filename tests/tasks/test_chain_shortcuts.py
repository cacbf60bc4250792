"""Shortcuts for chains solve the levels that docs/tasks.md says, and no deeper one."""

import pytest

from layermem_bench.tasks.chains import FOR_SIGNS, FOR_VALUES, generate, try_shortcut


def shares(name, problems):
    """Return the share that a shortcut has right, by level."""
    right = {}
    for problem in problems:
        for level, ok in zip(problem.levels, try_shortcut(name, problem), strict=True):
            right.setdefault(level, []).append(ok)
    return {level: sum(oks) / len(oks) for level, oks in right.items()}


# Levels that a shortcut solves, and the most that it has right of all answers.
SOLVED = {
    "the sign of its own statement": ({1}, 0.60),
    "all minus signs counted": (set(), 0.52),
    "minus signs up to its own statement counted": (set(), 0.56),
    "the sign of the first statement": (set(), 0.56),
    "the sign of the last statement": (set(), 0.56),
    "its own statement and the one it refers to": ({1, 2}, 0.69),
}


def test_a_shortcut_solves_no_deeper_level():
    problems = generate(count=800, seed=0)
    assert FOR_SIGNS.keys() == SOLVED.keys()
    for name, (solved, most) in SOLVED.items():
        by_level = shares(name, problems)
        for level, share in by_level.items():
            if level in solved:
                assert share == 1
            elif level > 2:
                # Four standard deviations of 1,600 guesses.
                assert abs(share - 0.5) < 0.05, name
        assert sum(by_level.values()) / 6 < most


# Levels that a shortcut solves where values are handed on.
SOLVED_VALUES = {
    "its own statement": {1},
    "its own statement and the one it refers to": {1, 2},
    "the value that stands first": set(),
    "the value that stands last": set(),
    "the last value up to its own statement": {1},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "ask", "names"),
    [
        ("shuffled", "end", "random"),
        ("levels", "end", "random"),
        ("interleaved", "end", "random"),
        ("levels", "statements", "random"),
        ("interleaved", "statements", "random"),
        ("levels", "statements", "places"),
    ],
)
def test_a_shortcut_solves_no_deeper_value(order, ask, names):
    options = {"depth": 4, "chains": 4, "values": 9, "order": order, "ask": ask, "names": names}
    problems = generate(count=800, seed=0, **options)
    assert FOR_VALUES.keys() == SOLVED_VALUES.keys()
    found = [
        (name, level, share)
        for name in FOR_VALUES
        for level, share in shares(name, problems).items()
    ]
    for name, level, share in found:
        if level in SOLVED_VALUES[name]:
            assert share == 1
        elif name.startswith("its own"):
            # What is given is a variable, which is no answer.
            assert share == 0
        elif name != "the last value up to its own statement" or order != "interleaved":
            # Four standard deviations of 3,200 guesses.
            assert abs(share - 0.25) < 0.031
        else:
            # A value that stands just before is likelier, because some chains go on at once.
            assert share < {2: 0.50, 3: 0.34, 4: 0.29}[level]


def test_of_a_single_chain_minus_signs_are_enough_at_its_end():
    """Why there are two chains by default."""
    problems = generate(count=400, seed=0, chains=1)
    by_level = shares("all minus signs counted", problems)
    assert by_level[6] == 1
    assert all(abs(by_level[level] - 0.5) < 0.1 for level in range(1, 6))
