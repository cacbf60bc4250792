"""Wide or deep: a preset's shapes of equally many parameters, ranked for each arm and together.

Two questions, of the rankings at equal parameters: which shape is best for an arm, and which arm in
which shape is best of all.

It does not know: how runs are trained, tables, pages.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from layermem.experiments.arena_boards import read_board
from layermem.experiments.standings import standings
from layermem.results.arena import Ranking, Standing


def shape_rankings(
    boards: Sequence[str], rankings: Sequence[Ranking], seeds: Sequence[int]
) -> Iterator[Ranking]:
    """Rank each preset's shapes, where it is in several: all arms together, then each by itself."""
    at_equal_parameters = {r.board: r for r in rankings if r.condition == "parameters"}
    by_preset: dict[str, dict[str, Ranking]] = {}
    for board in map(read_board, boards):
        if board.shape:
            of_preset = by_preset.setdefault(board.preset, {})
            of_preset[board.shape] = at_equal_parameters[board.study]
    for preset, shapes in by_preset.items():
        if len(shapes) < 2:
            continue
        first = next(iter(shapes.values()))
        arms = sorted((s.arm for s in first.standings), key=lambda arm: arm != first.first)
        of_arms = {
            arm: {shape: _find(ranking, arm) for shape, ranking in shapes.items()} for arm in arms
        }
        together = {
            f"{arm}, {shape}": standing
            for arm, of_arm in of_arms.items()
            for shape, standing in of_arm.items()
        }
        yield _rank(first, f"{preset}, arms and shapes", together, seeds)
        for arm, of_arm in of_arms.items():
            yield _rank(first, f"{preset}, shapes of {arm}", of_arm, seeds)


def _find(ranking: Ranking, arm: str) -> Standing:
    return next(standing for standing in ranking.standings if standing.arm == arm)


def _rank(
    like: Ranking, title: str, entries: Mapping[str, Standing], seeds: Sequence[int]
) -> Ranking:
    """Rank what has been recorded under new names; the first is what others are compared with."""
    return replace(
        like,
        board=title,
        first=next(iter(entries)),
        standings=standings(
            {name: entry.by_seed for name, entry in entries.items()},
            seeds,
            {name: (e.steps, e.width_of_mlp, e.parameters) for name, e in entries.items()},
            higher_is_better=like.is_share,
            notes={name: entry.note for name, entry in entries.items()},
            looks=max(1, len(like.looks)),
        ),
    )
