"""Draws the arena: a table for each board and condition, from an ``ArenaResult`` alone.

It does not know: torch, run folders, how anything was trained or measured.
"""

from layermem.report import learning_rates
from layermem.report.artefacts import format_mean, format_number, format_pairs
from layermem.report.numbers import format_p, in_bytes, looks_note
from layermem.report.page import Page, Section, Table
from layermem.report.prices import Prices, prices
from layermem.results.arena import ArenaResult, Condition, Ranking, Standing
from layermem.results.artefact import Unit

TITLES: dict[Condition, str] = {
    "tokens": "equal tokens",
    "time": "equal training time",
    "parameters": "equal parameters",
}
"""What conditions are called."""
_HOW: dict[Condition, str] = {
    "tokens": "Every arm has the same tokens in the same order.",
    "time": "An arm whose step takes longer than the first arm's has so many fewer of them, in a "
    "whole schedule of that length.",
    "parameters": "The mlp of an arm with more parameters than the plain decoder is narrower, to "
    "within 0.5% of its parameters.",
}
_SHAPES = (
    "One preset in several shapes, LAYERSxWIDTH, of equally many parameters: all arms and shapes "
    "together, then the shapes of each arm. Each arm in each shape has a learning rate of its own."
)


def build(result: ArenaResult) -> Page:
    """Return the page."""
    boards = dict.fromkeys(ranking.board for ranking in result.rankings)
    lost = [run for run in result.runs if run.state not in ("ended", "diverged")]
    lead = f"{len(boards)} boards, {len(result.seeds)} seeds, {len(result.runs)} runs"
    sections = [
        Section(
            title=board,
            tables=[
                *(table(ranking, result) for ranking in result.rankings if ranking.board == board),
                _steps_table(result, board),
                *([learning_rates.table(tried)] if (tried := result.tried.get(board)) else []),
            ],
        )
        for board in boards
    ]
    if result.shapes:
        tables = [table(ranking, result) for ranking in result.shapes]
        sections.append(Section(title="Wide or deep", paragraphs=[_SHAPES], tables=tables))
    return Page(
        title="The arena: variants on equal terms",
        lead=f"{lead}, {len(lost)} of them failed or not ended." if lost else f"{lead}.",
        sections=[*sections, _runs(result), Section(title="Again", commands=[result.command])],
    )


def table(ranking: Ranking, result: ArenaResult) -> Table:
    """Return the table of one of the result's rankings: a board, or shapes, and a condition."""
    unit: Unit = "share" if ranking.is_share else "number"
    # At equal parameters models are not those that were measured.
    taken = Prices()
    if ranking.condition != "parameters":
        taken = prices(result.steps[ranking.board], result.memory.get(ranking.board))
    first = ranking.first
    header = [f"{ranking.board}, {TITLES[ranking.condition]}", ranking.metric, f"against {first}"]
    header += ["p (Holm)", "against the best", "seeds to settle it", "steps", "mlp", "parameters"]
    return Table(
        header=["", *header, *taken.header],
        rows=[[*_row(each, unit), *taken.of(each.arm)] for each in ranking.standings],
        caption=f"{_HOW[ranking.condition]}{taken.caption} 95% intervals over seeds by Student's "
        "t, differences pair by pair; from a p-value of 0.05 on one is within noise. p-values are "
        f"adjusted by Holm's method: against {first} for the arms compared with it, against the "
        "best for all pairs of arms, as which is best was picked from these numbers."
        f"{looks_note(ranking.looks)}{_unranked(ranking)}",
    )


def _unranked(ranking: Ranking) -> str:
    if any(standing.rank for standing in ranking.standings):
        return ""
    return " No arm is ranked: too few seeds say which is best."


def _row(standing: Standing, unit: Unit) -> list[str]:
    rank = "" if standing.rank is None else str(standing.rank)
    note = f" ({standing.note})" if standing.note else ""
    return [
        rank,
        standing.arm,
        f"{format_mean(standing.mean, unit)}{note}",
        format_mean(standing.difference, unit, sign=True),
        format_p(standing.p),
        "best mean" if standing.rank == 1 else format_p(standing.p_to_best),
        format_pairs(standing.difference, standing.pairs_to_settle),
        f"{standing.steps:,}",
        str(standing.width_of_mlp),
        f"{standing.parameters:,}",
    ]


def _steps_table(result: ArenaResult, board: str) -> Table:
    steps, rates = result.steps[board], result.rates.get(board, {})
    lost = {tried.arm for tried in result.tried.get(board, ()) if tried.chosen is None}
    otherwise = {arm: "none" if arm in lost else "the preset's" for arm in steps.seconds}
    peaks = result.memory[board].peaks if board in result.memory else {}
    # The file of steps may have arms of earlier arenas too.
    here = {
        s.arm for ranking in result.rankings if ranking.board == board for s in ranking.standings
    }
    return Table(
        header=["arm", "seconds of a step", "over the first arm's", "peak memory", "learning rate"],
        rows=[
            [
                arm,
                format_number(seconds, "number"),
                f"{steps.ratios[arm]:.3f}",
                in_bytes(peak) if (peak := peaks.get(arm)) else "",
                f"{rates[arm]:g}" if arm in rates else otherwise[arm],
            ]
            for arm, seconds in steps.seconds.items()
            if arm in here
        ],
        caption=f"{steps.machine}: medians of {steps.rounds} rounds, one step of each arm in each. "
        "Memory is that of model, optimiser and a step, in a process of its own. Learning rates "
        "were chosen at equal tokens on a seed that is in no table.",
    )


def _runs(result: ArenaResult) -> Section:
    rows = [
        [run.name, run.run_id, f"{run.state}: {run.note}" if run.note else run.state, run.folder]
        for run in result.runs
    ]
    return Section(
        title="The runs", tables=[Table(header=["run", "id", "state", "folder"], rows=rows)]
    )
