"""Draws four ways of going on training a model: a table for each condition, rates, times.

It does not know: torch, run folders, how anything was trained or measured.
"""

from layermem.report.artefacts import format_mean, format_number, format_pairs
from layermem.report.learning_rates import format_choice
from layermem.report.numbers import format_p, in_bytes, looks_note
from layermem.report.page import Page, Section, Table
from layermem.report.prices import prices
from layermem.results.arena import Ranking, Standing
from layermem.results.artefact import Unit
from layermem.results.learning_rates import TriedRates
from layermem.results.retrofit import RetrofitResult

TITLES = {"tokens": "equal tokens", "time": "equal training time"}
"""What the conditions are called."""
_WAYS = {
    "plain": "all weights, no memory",
    "lora": "LoRA on keys and values, no memory",
    "routers": "memory, its routers alone",
    "all": "memory, all weights",
}
_HOW = {
    "tokens": "Every way has the same tokens in the same order.",
    "time": "Every way has as many steps as take the time of the first one's, in a whole schedule "
    "of that length.",
}


def build(result: RetrofitResult) -> Page:
    """Return the page."""
    return Page(
        title=f"Does layer memory pay on {result.model}?",
        lead=f"Four ways of going on training it, {len(result.seeds)} seeds, memory: "
        f"{result.memory}. Before the first step the validation loss is {result.before:.4f}.",
        sections=[
            *(
                Section(title=TITLES[ranking.condition], tables=[table(result, ranking)])
                for ranking in result.rankings
            ),
            Section(title="Learning rates and times", tables=[_rates(result), _steps(result)]),
            Section(title="The runs", tables=[_runs(result)]),
            Section(title="Again", commands=[result.command]),
        ],
    )


def table(result: RetrofitResult, ranking: Ranking) -> Table:
    """Return the table of one condition, best first."""
    unit: Unit = "share" if ranking.is_share else "number"
    chosen = {tried.arm: format_choice(tried) for tried in _tried(result)}
    header = ["", TITLES[ranking.condition], "what is trained", "parameters", "learning rate"]
    header += ["steps", ranking.metric, f"against {ranking.first}", "p (Holm)"]
    taken = prices(result.steps, result.peaks)
    return Table(
        header=[*header, "seeds to settle it", *taken.header],
        rows=[
            [*_row(each, unit, chosen[each.arm]), *taken.of(each.arm)] for each in ranking.standings
        ],
        caption=f"{_HOW[ranking.condition]}{taken.caption} 95% intervals over seeds by Student's "
        "t, differences pair by pair, p-values adjusted by Holm's method; from 0.05 on a "
        "difference is within noise. Before the first step the validation loss is "
        f"{result.before:.4f}.{looks_note(ranking.looks)}",
    )


def _tried(result: RetrofitResult) -> list[TriedRates]:
    """Return the learning rates that each way tried."""
    return [
        TriedRates(
            arm=way,
            rates=tuple(trial.rate for trial in result.trials if trial.arm == way),
            losses=tuple(trial.loss for trial in result.trials if trial.arm == way),
            chosen=next((t.rate for t in result.trials if t.arm == way and t.chosen), None),
        )
        for way in dict.fromkeys(trial.arm for trial in result.trials)
    ]


def _row(standing: Standing, unit: Unit, rate: str) -> list[str]:
    note = f" ({standing.note})" if standing.note else ""
    return [
        "" if standing.rank is None else str(standing.rank),
        standing.arm,
        _WAYS[standing.arm],
        f"{standing.parameters:,}",
        rate,
        f"{standing.steps:,}",
        f"{format_mean(standing.mean, unit)}{note}",
        format_mean(standing.difference, unit, sign=True),
        format_p(standing.p),
        format_pairs(standing.difference, standing.pairs_to_settle),
    ]


def _rates(result: RetrofitResult) -> Table:
    return Table(
        header=["", "learning rate", "validation loss", ""],
        rows=[
            [
                trial.arm,
                f"{trial.rate:g}",
                "diverged" if trial.loss is None else f"{trial.loss:.4f}",
                "chosen" if trial.chosen else "",
            ]
            for trial in result.trials
        ],
        caption="Tried at equal tokens on a seed that is in no other table. With all weights, "
        "routers have 100 times the rate, at most the highest that routers alone try.",
    )


def _steps(result: RetrofitResult) -> Table:
    steps, peaks = result.steps, result.peaks.peaks if result.peaks else {}
    return Table(
        header=["", "seconds of a step", "over plain's", "peak memory"],
        rows=[
            [
                way,
                format_number(seconds, "number"),
                f"{steps.ratios[way]:.3f}",
                in_bytes(peak) if (peak := peaks.get(way)) else "",
            ]
            for way, seconds in steps.seconds.items()
        ],
        caption=f"{steps.machine}: medians of {steps.rounds} rounds, one step of each way in each. "
        "Memory is that of model, optimiser and a step, in a process of its own.",
    )


def _runs(result: RetrofitResult) -> Table:
    rows = [
        [run.name, run.run_id, f"{run.state}: {run.note}" if run.note else run.state, run.folder]
        for run in result.runs
    ]
    return Table(header=["run", "id", "state", "folder"], rows=rows)
