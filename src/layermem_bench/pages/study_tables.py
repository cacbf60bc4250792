"""Tables of a study: questions, arms side by side, rates, runs; the paper's claims and numbers.

Each is a list of columns over the lines of a comparison, or over what else was recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from layermem_bench.pages.page import Table, format_interval, format_number, format_p
from layermem_bench.statistics import LEVEL, mean_by_seed
from layermem_bench.studies.comparing import Answered, JudgedClaim, Line, answers, judge, lines_of
from layermem_bench.studies.result import (
    ABOVE_PLAIN,
    BY_LAYER,
    BY_LEVEL,
    Arm,
    Board,
    Condition,
    Metric,
    Question,
    RunRecord,
    StudyResult,
    TriedRates,
)

TITLES: Mapping[str, str] = {
    "tokens": "equal tokens",
    "time": "equal training time",
    "parameters": "equal parameters",
    "recorded": "as recorded",
}
"""What conditions are called."""
INTERVALS = "95% intervals over seeds by Student's t, differences pair by pair."
"""How intervals of tables are computed."""
_JOINTLY = "p-values are adjusted by Holm's method for the arms of the table."
_ALONE = (
    "Each question was asked before the first run and is tested alone by a paired t-test: of "
    "twenty about nothing, one is answered yes or no. p by signs, a check: the share of all signs "
    "of the differences whose mean is as far from 0; of five pairs never below 0.05. At most: the "
    "largest difference in the direction asked for that the 95% interval does not exclude."
)
_RUNS = (
    "An id stands for every option that decides about a run's weights; layermem train --config "
    "RUN/config.yaml --out NEW repeats it. Tokens a second: the median of the wall time."
)
_RATES = (
    "Validation losses at each learning rate, of a seed that is in no other table. Beyond the "
    "lowest or the highest a better one may lie."
)
_NUMBERS = (
    "95% intervals over seeds, or repeats, by Student's t. Chance: what an answer comes to that "
    "ignores the question, the most frequent one where that is right more often than 1 / choices."
)
_CLAIMS = (
    "95% intervals by Student's t of differences pair by pair, p-values adjusted by Holm's method "
    "for the number of claims."
)
# Columns of what arms are.
_FACTS = ("learning rate", "steps", "mlp", "parameters")
_HOW = {"higher": "above", "lower": "below", "similar": "similar to", "equal": "equal to"}


def outcome(line: Line, metric: Metric) -> str:
    """Return how an arm differs from the first one; not tested: there are no pairs enough."""
    if line.difference is None or line.p is None:
        return "not tested"
    if line.p >= LEVEL:
        return "open"
    return "ahead" if (line.difference.mean > 0) == (metric.better == "higher") else "behind"


def shown_metrics(result: StudyResult, board: Board, condition: Condition) -> list[str]:
    """Return the metrics that have a table of their own, that of the ranking first."""
    runs = result.of(board.name, condition.name)
    names = dict.fromkeys(name for run in runs for name in run.metrics if BY_LEVEL not in name)
    return sorted(names or [board.metric], key=lambda name: name != board.metric)


def title_of(board: Board, condition: Condition) -> str:
    """Return what a board under a condition is called."""
    is_all = condition.name == "recorded"
    return board.name if is_all else f"{board.name}, {TITLES[condition.name]}"


def questions_table(result: StudyResult) -> Table:
    """Return a table of the questions and their answers; no rows: none was asked."""
    rows = []
    for each in answers(result):
        question = each.question
        is_share = result.metric(question.metric).is_share
        rows.append(
            {
                "question": f"{question_text(question)}?",
                "answer": answer_text(each, result),
                "difference": format_interval(each.difference, is_share, "+"),
                "p": format_p(each.p),
                "p by signs": format_p(each.p_of_signs),
                "at most": format_number(each.bound, is_share, decimals=None if is_share else 4),
            }
        )
    return Table.of(rows, _ALONE)


def question_text(question: Question) -> str:
    """Write what is asked."""
    where = f"{question.board}, {TITLES[question.condition]}"
    return f"{question.arm} {_HOW[question.direction]} {question.against} ({where})"


def answer_text(answered: Answered, result: StudyResult) -> str:
    """Write an answer; of a yes too whether the difference is within the margin."""
    question, bound = answered.question, answered.bound
    if answered.answer is None or bound is None:
        runs = result.of(question.board, question.condition)
        ours = [run for run in runs if run.arm in (question.arm, question.against)]
        if left := sum(run.is_to_come for run in ours):
            return f"open (runs to come: {left})"
        lost = sorted({run.seed for run in ours if question.metric not in run.metrics})
        seeds = f"no value of seeds {', '.join(map(str, lost))}" if lost else "one seed"
        return f"not tested: {result.untested}" if result.untested else f"open ({seeds})"
    is_share = result.metric(question.metric).is_share
    most = f"not more than {format_number(bound, is_share, decimals=None if is_share else 3)}"
    if answered.answer == "yes" and question.margin is not None and bound <= question.margin:
        return f"yes, {most}"
    return most if answered.answer == "not more than" else answered.answer


def arms_table(result: StudyResult, board: Board, condition: Condition, metric: str) -> Table:
    """Return the table of one metric of the arms of a board under a condition.

    Facts in which all arms are alike are said once, below it.
    """
    lines, of = lines_of(result, board, condition, metric), result.metric(metric)
    runs, arms = result.of(board.name, condition.name), {arm.name: arm for arm in condition.arms}
    # At equal parameters models are others than those that were measured.
    steps = board.steps if condition.name != "parameters" else None
    rows = [
        {
            "": str(line.rank or ""),
            title_of(board, condition): line.arm,
            "learning rate": _rate(arms[line.arm], board),
            "steps": _count(arms[line.arm].steps),
            "mlp": _count(arms[line.arm].width_of_mlp),
            "parameters": _count(arms[line.arm].parameters),
            metric: _mean(line, arms[line.arm].note, metric, of.is_share, runs),
            "each seed": _by_seed(line.by_seed, of) if len(line.by_seed) > 1 else "",
            f"against {condition.arms[0].name}": format_interval(line.difference, of.is_share, "+"),
            "p (Holm)": format_p(line.p),
            "time": "" if steps is None else f"{steps.ratios[line.arm]:.2f}",
        }
        for line in lines
    ]
    caption = "" if of.chance is None else f" A guess: {format_number(of.chance, of.is_share)}."
    caption += "" if board.before is None else f" Before the first step: {board.before:.4f}."
    caption += f" {_tests_note(result, board, condition, lines)}"
    if steps is not None:
        caption += f" Time: of a step, over the first arm's, on {steps.machine}."
    return Table.of(rows, caption.strip()).with_alike_below(_FACTS, "arms")


def _tests_note(
    result: StudyResult, board: Board, condition: Condition, lines: Sequence[Line]
) -> str:
    """Say how the differences of a table are tested, or why they are not."""
    if result.untested:
        return f"Description, without tests: {result.untested}."
    if result.questions:
        return "Description: what was asked is tested above."
    if left := result.to_come(board.name, condition.name):
        return f"Nothing is tested before all runs have ended: {left} to come."
    return _JOINTLY if any(line.p is not None for line in lines) else ""


def _rate(arm: Arm, board: Board) -> str:
    """Write an arm's learning rate, and where it is at an end of those tried."""
    if arm.rate is None:
        return ""
    ends = {each.arm: end_of_range(each) for each in board.tried if each.chosen is not None}
    return f"{arm.rate:g} (the {ends[arm.name]})" if ends.get(arm.name) else f"{arm.rate:g}"


def _count(count: int | None) -> str:
    return f"{count:,}" if count else ""


def _mean(line: Line, note: str, metric: str, is_share: bool, runs: Sequence[RunRecord]) -> str:
    """Write a mean, and which of the arm's seeds are not in it."""
    states: dict[str, list[str]] = {}
    for run in runs:
        if run.arm == line.arm and run.seed in line.missing:
            state = f"no {metric} recorded" if run.state == "ended" else run.state
            states.setdefault(state, []).append(str(run.seed))
    notes = [f"{state}: seed {', '.join(seeds)}" for state, seeds in states.items()]
    notes = [note, *notes] if note else notes
    mean = format_interval(line.mean, is_share)
    return f"{mean} ({'; '.join(notes)})".strip() if notes else mean


def shapes_of(result: StudyResult) -> Iterator[StudyResult]:
    """Yield wide against deep, all arms and shapes of a preset at equal parameters, as a board."""
    shapes = {
        board.name: board
        for board in result.boards
        if board.shape and any(each.name == "parameters" for each in board.conditions)
    }
    for preset in dict.fromkeys(board.preset for board in shapes.values()):
        boards = [board for board in shapes.values() if board.preset == preset]
        (equal,) = (each for each in boards[0].conditions if each.name == "parameters")
        arms = [Arm(name=f"{a.name}, {b.shape}", steps=0) for a in equal.arms for b in boards]
        board = Board(
            name=f"{preset}, arms and shapes",
            metric=boards[0].metric,
            conditions=(replace(equal, arms=tuple(arms)),),
        )
        runs = [
            replace(run, board=board.name, arm=f"{run.arm}, {each.shape}")
            for each in boards
            for run in result.of(each.name, equal.name)
        ]
        if len(boards) > 1:
            yield replace(result, boards=(board,), runs=tuple(runs))


def rates_table(board: Board) -> Table:
    """Return a table of each arm's loss at each learning rate it tried."""
    tried = [f"{rate:g}" for each in board.tried for rate in each.rates]
    rows = []
    for each in board.tried:
        row = {f"{board.name}: loss at learning rate": each.arm, **dict.fromkeys(tried, "")}
        for rate, loss in zip(each.rates, each.losses, strict=True):
            row[f"{rate:g}"] = "diverged" if loss is None else format_number(loss, False)
        row["chosen"] = "" if each.chosen is None else f"{each.chosen:g}"
        rows.append(row)
    return Table.of(rows, _RATES)


def end_of_range(tried: TriedRates) -> str:
    """Return "lowest" or "highest" where that rate of those tried was chosen; else nothing."""
    if len(set(tried.rates)) > 1 and tried.chosen in (min(tried.rates), max(tried.rates)):
        return "lowest" if tried.chosen == min(tried.rates) else "highest"
    return ""


def runs_table(result: StudyResult) -> Table:
    """Return a table of the runs: where the numbers of other tables are from."""
    shown = ("layermem", "commit", "torch", "machine", "processor")
    rows = [
        {
            "run": run.name,
            "id": run.run_id,
            "state": f"{run.state}: {run.note}" if run.note else run.state,
            "steps": _count(run.max_steps),
            "tokens/s": _count(round(run.tokens_per_second or 0)),
            "made with": ", ".join(f"{key} {run.about[key]}" for key in shown if key in run.about),
        }
        for run in result.runs
    ]
    return Table.of(rows, _RUNS).with_alike_below(("steps", "made with"), "runs")


def claims_table(result: StudyResult) -> Table:
    """Return a table of the claims: the paper's difference, ours, and what came of it."""
    rows = [
        {
            "claim": claim_text(each),
            **dict(zip(("paper", "here"), claim_numbers(result, each), strict=True)),
            "p (Holm)": format_p(each.p),
            "holds?": f"{each.verdict} ({each.reason})",
        }
        for each in judge(result)
    ]
    return Table.of(rows, _CLAIMS)


def claim_text(judged: JudgedClaim) -> str:
    """Write what is claimed."""
    claim = judged.claim
    other = claim.against or "the paper's number"
    return f"{claim.quantity}: {claim.arm} {_HOW[claim.direction]} {other}"


def claim_numbers(result: StudyResult, judged: JudgedClaim) -> tuple[str, str]:
    """Write the paper's difference, or number, of a claim and ours; nothing where there is none."""
    claim, metric = judged.claim, result.metric(judged.claim.quantity)
    sign = "" if claim.against is None else "+"
    paper = _as_printed(judged.paper, metric, sign)
    if sign:
        return paper, format_interval(judged.difference, metric.is_share, sign)
    return paper, _ours(claim.quantity, result.computed(claim.quantity).get(claim.arm, {}), metric)


def numbers_table(result: StudyResult) -> Table:
    """Return a table of the numbers of an artefact: the paper's, ours by seed, mean, chance.

    Numbers of single layers are drawn, and left out here.
    """
    papers = {(number.quantity, number.arm): number for number in result.papers}
    ours = {(row.metric, row.arm): row.by_seed for row in result.rows if BY_LAYER not in row.metric}
    rows = []
    for quantity, arm in dict.fromkeys((*ours, *papers)):
        metric, paper = result.metric(quantity), papers.get((quantity, arm))
        values = ours.get((quantity, arm), {})
        row = {
            "": quantity,
            "arm": arm,
            "paper": _as_printed(paper.value if paper else None, metric),
            "where": paper.where if paper else "",
            "here": _ours(quantity, values, metric),
            "each seed": "" if metric.counted else _by_seed(values, metric),
            "chance": format_number(metric.chance, metric.is_share),
        }
        rows.append(row)
    return Table.of(rows, _NUMBERS)


def _as_printed(value: float | None, metric: Metric, sign: str = "") -> str:
    """Write a number of the paper: shares with two decimals in percent, what is counted whole."""
    if metric.counted and not metric.is_share and value and value < 1e6 and value % 1 == 0:
        return f"{value:,.0f}"
    return format_number(value, metric.is_share, sign, decimals=2 if metric.is_share else None)


def _ours(quantity: str, values: Mapping[int, float], metric: Metric) -> str:
    if values and metric.counted:
        return f"counted: {_as_printed(next(iter(values.values())), metric)}"
    sign = "+" if ABOVE_PLAIN in quantity else ""
    return format_interval(mean_by_seed(values), metric.is_share, sign)


def _by_seed(values: Mapping[int, float], metric: Metric) -> str:
    return ", ".join(format_number(value, metric.is_share) for _, value in sorted(values.items()))
