"""Write the tables of the results from what was recorded: python THIS_FILE.

A line ``<!-- NAME: TABLE -->`` in a page stands before a table of docs/records/NAME.json, which
``layermem study``, ``report`` or ``eval`` wrote. TABLE is

    METRIC                     the arms of the record's only board by a metric
    METRIC, with bounds        the same, with how much worse than the first each may be
    BOARD, METRIC              those of one of its boards, under one condition
    BOARD, all conditions      those of a board by what they are ranked by: their difference from
                               the first arm under each condition; of one board without its name
    BOARD, METRIC, equal time  those of a board under one of its conditions, likewise
    PRESET, arms and shapes    wide and deep models of a preset at equal parameters
    questions                  what the study was to tell, with the answers
    BOARD, rates               the learning rates that arms tried; of one board without its name
    TABLE over seeds           a table of evaluations ("loss", "right pairs")
    TABLE over seeds, described    the same without p-values
    numbers, or numbers: TEXT  an artefact's numbers, the paper's beside ours (TEXT is in their
                               names); its record lies in docs/records/artefacts

``<!-- NAME + NAME: METRIC -->`` is one table of several records. ``<!-- NAME + NAME: TABLE over
seeds: ROW, ROW -->`` has a line for each arm of several evaluations, alike but for the models.

Of what is recorded as a whole there are ``verdicts``, ``claims`` and ``differences`` (what came of
the paper's claims, in short, by artefact and one by one), ``answers`` to the questions of
docs/questions.toml, each by one recorded difference, and those ``in brief``. docs/pictures.py draws
them.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Literal, get_args

from layermem_bench.config.typed_dicts import read_result
from layermem_bench.evals.result import EvalResult
from layermem_bench.pages.eval import over_seeds
from layermem_bench.pages.page import Table, format_interval, format_number, format_p, with_p
from layermem_bench.pages.study_tables import (
    TITLES,
    answer_text,
    arms_table,
    claim_numbers,
    claim_text,
    numbers_table,
    outcome,
    questions_table,
    rates_table,
    shapes_of,
    shown_metrics,
    title_of,
)
from layermem_bench.paper import get_artefact, names
from layermem_bench.paper.artefact import SEEDS
from layermem_bench.studies.comparing import (
    Difference,
    JudgedClaim,
    Line,
    Verdict,
    answers,
    judge,
    lines_of,
)
from layermem_bench.studies.result import ABOVE_PLAIN, Board, Metric, StudyResult

DOCS = Path(__file__).parent
PAGES = (
    DOCS.parent / "README.md",
    *(DOCS / name for name in ("index.md", "results.md")),
    *sorted((DOCS / "results").glob("*.md")),
)
RECORDS = DOCS / "records"
OVER_SEEDS, DESCRIBED = " over seeds", ", described"
KINDS: Mapping[str, Sequence[str]] = {
    "quality": (
        *("fig1", "fig4", "fig6", "fig10", "fig11", "prosqa"),
        *("table1", "table4", "table5", "table6", "table7"),
    ),
    "what goes on inside": ("fig2", "fig3", "fig5", "fig7", "fig8", "fig9"),
    "price": ("table8", "table9"),
}
"""What each table and figure of the paper is about."""
# Columns that a page has no room for.
_LEFT_OUT = ("each seed", "where")
# Of a wider table these columns are left out too, in this order, until the others fit.
_COLUMNS = 6
_FIRST_LEFT_OUT = ("", "parameters", "learning rate", "time")
_FIRST = "against the first arm"
_NAMES = r"[\w-]+(?: \+ [\w-]+)*"
# Other scripts have marks of their own.
_MARK = r"<!-- (?!written by )"
_PLACE = re.compile(rf"(?m)^{_MARK}(?:(?P<name>{_NAMES}): )?(?P<table>[^>]+?) -->\n(?:\|.*\n)*")


def main() -> None:
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str, records: Path = RECORDS) -> str:
    """Return the page with every table as its record has it."""
    above = "answers in brief, above docs"
    of_all = {
        "verdicts": partial(verdicts, records / "artefacts"),
        "claims": partial(claims, records / "artefacts"),
        "differences": partial(differences, records / "artefacts"),
        "answers": partial(answers_table, records),
        "answers in brief": partial(answers_table, records, brief=True),
        above: partial(answers_table, records, brief=True, above_docs=True),
    }

    def replaced(place: re.Match[str]) -> str:
        name, title = place["name"], place["table"]
        if name is None and title not in of_all:
            return place[0]
        table = of_all[title]() if name is None else table_of(name, title, records)
        for left_out in _FIRST_LEFT_OUT:
            if len(table.header) > _COLUMNS:
                table = table.without([left_out])
        mark = f"{name}: {title}" if name else title
        lines = [table.header, ["---"] * len(table.header), *table.rows]
        return "\n".join([f"<!-- {mark} -->", *(f"| {' | '.join(cells)} |" for cells in lines), ""])

    return _PLACE.sub(replaced, page)


def table_of(name: str, title: str, records: Path) -> Table:
    """Return one table of a record."""
    names = name.split(" + ")
    if title.endswith(DESCRIBED):
        table = table_of(name, title.removesuffix(DESCRIBED), records)
        rows = [[re.sub(r" \(p [^)]*\)", "", cell) for cell in row] for row in table.rows]
        return replace(table, rows=rows)
    if title.partition(":")[0] == "numbers":
        return _numbers(name, title.partition(":")[2].strip(), records / "artefacts")
    if OVER_SEEDS + ": " in title:
        title, _, lines = title.partition(OVER_SEEDS + ": ")
        return _arms_over_seeds(names, title, lines.split(", "), records)
    if title.endswith(OVER_SEEDS):
        evaluated, of = read_result(EvalResult, records / f"{name}.json"), title[: -len(OVER_SEEDS)]
        made = over_seeds(evaluated, of) if of in evaluated.tables else Table(header=(), rows=())
        if not made.rows:
            raise SystemExit(f"{name} has no {title!r} of runs of several seeds")
        return made
    if len(names) > 1:
        return _joined(names, title, records)
    found = _tables(_read_whole(name, records))
    if title not in found:
        raise SystemExit(f"{name} has no table {title!r}; it has {'; '.join(found)}")
    return found[title]


def _read_whole(name: str, records: Path) -> StudyResult:
    """Return the record of a study, all of whose runs must have ended."""
    result = read_result(StudyResult, records / f"{name}.json")
    if left := [run.name for run in result.runs if run.state not in ("ended", "diverged")]:
        raise SystemExit(f"{name} was recorded before {', '.join(left)} had ended; repeat it")
    return result


def _cells(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def _joined(names: Sequence[str], title: str, records: Path) -> Table:
    """Return the tables of several records as one, with what tells their names apart."""
    start = commonprefix(names).rpartition("-")[0]
    rows, firsts = [], set[str]()
    for name in names:
        table = table_of(name, title, records)
        against = next(t for t in table.header if t.startswith("against ") and "best" not in t)
        told = name.removeprefix(start).strip("-").replace("-", " ")
        for cells in _cells(table):
            row = {"": told, "arm": cells["arm"], title: cells[title]}
            row |= {_FIRST: cells[against], "p (Holm)": cells.get("p (Holm)", "")}
            rows.append(row)
        firsts.add(against)
    joined = Table.of(rows)
    told_first = firsts.pop() if len(firsts) == 1 else _FIRST
    return replace(joined, header=[told_first if t == _FIRST else t for t in joined.header])


def _tables(result: StudyResult) -> dict[str, Table]:
    """Return the tables of a study by their names."""
    found = {"questions": questions_table(result).without(_FIRST_LEFT_OUT)}
    for board in result.boards:
        of_board = f"{board.name}, " if len(result.boards) > 1 else ""
        several = len(board.conditions) > 1
        found[f"{of_board}rates"] = rates_table(board)
        if several:
            found[f"{of_board}all conditions"] = _all_conditions(result, board)
        for condition in board.conditions:
            metrics = [board.metric] if several else shown_metrics(result, board, condition)
            suffix = f", {TITLES[condition.name]}" if several else ""
            for metric in metrics:
                table = _named(
                    arms_table(result, board, condition, metric), title_of(board, condition)
                )
                title = f"{of_board}{metric}{suffix}"
                found[title] = table
                found[f"{title}, with bounds"] = _with_bounds(
                    table, lines_of(result, board, condition, metric), result.metric(metric)
                )
    for each in shapes_of(result):
        (board,) = each.boards
        table = arms_table(each, board, board.conditions[0], board.metric)
        found[board.name] = _named(table, title_of(board, board.conditions[0]))
    return found


def _with_bounds(table: Table, lines: Sequence[Line], metric: Metric) -> Table:
    """Return a table with the most that the interval of each difference leaves an arm behind."""
    sign, bounds = (-1 if metric.better == "higher" else 1), {}
    for line in lines:
        if line.difference is not None:
            bound = max(0.0, sign * line.difference.mean + line.difference.half)
            decimals = None if metric.is_share else 3
            bounds[line.arm] = format_number(bound, metric.is_share, decimals=decimals)
    rows = [
        {**cells, "behind by at most": bounds.get(cells["arm"].strip("`"), "")}
        for cells in _cells(table)
    ]
    return Table.of(rows).without([""])


def _all_conditions(result: StudyResult, board: Board) -> Table:
    """Return the arms of a board with their differences from the first under each condition."""
    against = f"against {board.conditions[0].arms[0].name}"
    by_condition = []
    for condition in board.conditions:
        table = arms_table(result, board, condition, board.metric)
        by_condition.append({cells[table.header[1]]: cells for cells in _cells(table)})
    rows = []
    for arm, cells in by_condition[0].items():
        row = {"arm": f"`{arm}`", board.metric: cells[board.metric]}
        for i, (condition, by_arm) in enumerate(zip(board.conditions, by_condition, strict=True)):
            title = f"{'' if i else f'{against}, '}{TITLES[condition.name]}"
            row[title] = with_p(by_arm[arm][against], by_arm[arm].get("p (Holm)", ""))
        rows.append({**row, "time": cells.get("time", "")})
    return Table.of(rows)


def _named(table: Table, arms: str = "arm") -> Table:
    """Return a table without what a page has no room for, whose column of arms is "arm"."""
    shown = table.without(_LEFT_OUT)
    rows = [{**cells, arms: f"`{cells[arms]}`"} for cells in _cells(shown)]
    made = Table.of(rows)
    return replace(made, header=["arm" if title == arms else title for title in made.header])


def _numbers(name: str, part: str, folder: Path) -> Table:
    """Return what an artefact's numbers came to, beside the paper's where it has one."""
    result = read_result(StudyResult, folder / f"{name}.json")
    # The plain decoder's own share above itself is 0.
    ours = [
        row
        for row in result.rows
        if part in row.metric and (row.arm != "plain" or ABOVE_PLAIN not in row.metric)
    ]
    if not ours:
        raise SystemExit(f"{name} has no number whose name has {part!r} in it")
    # Arms of one quantity one below the other.
    quantities = list(dict.fromkeys(row.metric for row in ours))
    ours.sort(key=lambda row: quantities.index(row.metric))
    shown = {(row.metric, row.arm) for row in ours}
    papers = tuple(p for p in result.papers if (p.quantity, p.arm) in shown)
    return _named(numbers_table(replace(result, rows=tuple(ours), papers=papers)))


def _arms_over_seeds(
    names: Sequence[str], title: str, shown: Sequence[str], records: Path
) -> Table:
    """Return what some rows of evaluations of one arm each come to, the arms below each other."""
    results = [read_result(EvalResult, records / f"{name}.json") for name in names]
    start = commonprefix(names).rpartition("-")[0]
    arms = {}
    for name, result in zip(names, results, strict=True):
        if result.options != results[0].options or len(result.arms) != 1:
            raise SystemExit(f"{name} is no evaluation of one arm like that of {names[0]}")
        (arms[name.removeprefix(start).strip("-")],) = result.arms.values()
    seeds = {tuple(model.rpartition("-s")[2] for model in models) for models in arms.values()}
    if len(seeds) > 1:
        raise SystemExit(f"{' + '.join(names)} are not of the same seeds: {sorted(seeds)}")
    rows = [
        replace(
            results[0].of(title)[row],
            scores={m: score for r in results for m, score in r.of(title)[row].scores.items()},
        )
        for row in shown
    ]
    joined = replace(
        results[0],
        models=tuple(model for models in arms.values() for model in models),
        arms=arms,
        parts=(replace(results[0].parts[0], rows=tuple(rows), tables=results[0].tables),),
    )
    found = {cells[title]: cells for cells in _cells(over_seeds(joined, title))}
    if not found:
        raise SystemExit(f"{' + '.join(names)}: {title!r} has no means over seeds")
    first, lines = next(iter(arms)), []
    for arm in arms:
        line = {"arm": f"`{arm}`"}
        for row in shown:
            line[row] = found[row][arm]
            line[f"{row}, against {first}"] = found[row].get(f"{arm} against {first}", "")
        lines.append(line)
    return Table.of(lines)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A reader's question, and the recorded difference that answers it; no record: none is yet."""

    asks: str
    evidence: str
    record: str = ""
    board: str = ""
    """Of a record with several boards; empty: the only one."""
    condition: str = ""
    arm: str = ""
    against: str = ""
    """Of a question that the record's study was planned for; empty: the first arm of a table."""
    metric: str = ""
    stage: Literal["early", "later", "added"] = "later"
    """The part of the picture in which a difference in loss is drawn."""
    brief: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a question, and how it is said; None: nothing is recorded."""

    question: Question
    verdict: str = "not measured yet"
    line: Difference | None = None
    metric: Metric = Metric()


def questions() -> list[Question]:
    """Return the questions in the order of the table."""
    with (DOCS / "questions.toml").open("rb") as file:
        return [Question(**fields) for fields in tomllib.load(file)["question"]]


def recorded_lines(
    record: str, board: str, condition: str, metric: str, records: Path = RECORDS
) -> tuple[list[Line], Metric]:
    """Return the lines of one table of a record; no board: the record's only one."""
    result = _read_whole(record, records)
    found = [
        lines_of(result, each, of_board, metric)
        for each in result.boards
        for of_board in each.conditions
        if board in ("", each.name) and condition == of_board.name
    ]
    if len(found) != 1:
        raise SystemExit(f"{record} has {len(found)} tables of {board or 'its board'}, {condition}")
    return found[0], result.metric(metric)


def answer(question: Question, records: Path) -> Answer:
    """Return what the record of a question says."""
    if not question.record:
        return Answer(question=question)
    of, asked = question.record, question.asks
    if question.against:
        return _planned(question, _read_whole(of, records))
    lines, metric = recorded_lines(of, question.board, question.condition, question.metric, records)
    line = next((each for each in lines if each.arm == question.arm), None)
    first = next(each for each in lines if each.difference is None)
    if line is None or line.missing or first.missing:
        raise SystemExit(f"{of} must have {question.arm} and the first arm with all seeds: {asked}")
    said = {"ahead": "**yes**", "behind": "**no**", "open": "open"}
    verdict = said.get(outcome(line, metric), "not tested")
    return Answer(question=question, verdict=verdict, line=line, metric=metric)


def _planned(question: Question, result: StudyResult) -> Answer:
    """Return the answer to a question that a study was planned for."""
    names = ("condition", "arm", "against")
    for each in answers(result):
        if question.board in ("", each.question.board) and all(
            getattr(each.question, name) == getattr(question, name) for name in names
        ):
            verdict = re.sub("^(yes|no)(?=$|,)", r"**\1**", answer_text(each, result))
            metric = result.metric(each.question.metric)
            return Answer(question=question, verdict=verdict, line=each, metric=metric)
    raise SystemExit(f"{question.record} was not planned to tell: {question.asks}")


def answers_table(records: Path, *, brief: bool = False, above_docs: bool = False) -> Table:
    """Return the table of answers; ``brief``: of the first ones; ``above_docs``: for README.md."""
    rows = []
    for each in questions():
        if each.brief or not brief:
            found = answer(each, records)
            line, is_share = found.line, found.metric.is_share
            evidence = f"{'docs/' * above_docs}{each.evidence}"
            row = {
                "question, with its evidence": f"[{each.asks}]({evidence})",
                "answer": found.verdict,
                "difference": format_interval(line.difference if line else None, is_share, "+"),
                "p": format_p(line.p if line else None),
            }
            rows.append(row)
    return Table.of(rows)


def verdicts(folder: Path) -> Table:
    """Return a table of verdicts: of each kind of claim, how many differences came to each.

    An artefact of fewer seeds than its scale's is marked. Of one that was recorded at several
    scales, the largest counts.
    """
    judged = {name: (results[0], judge(results[0])) for name, results in recorded(folder).items()}

    def cell(kind: str, verdict: Verdict) -> str:
        shown, count = [], 0
        for name in (name for name in KINDS[kind] if name in judged):
            result, of_all = judged[name]
            of_verdict = [each for each in of_all if each.verdict == verdict]
            few = result.runs and len(result.seeds) < SEEDS[result.scale or "tiny"]
            part = f"{len(of_verdict)} of {len(of_all)}" if len(of_verdict) < len(of_all) else ""
            inside = "; ".join(filter(None, (part, f"{len(result.seeds)} seeds" * bool(few))))
            if of_verdict:
                count += len(of_verdict)
                shown.append(f"`{name}` ({inside})" if inside else f"`{name}`")
        return f"**{count}**: {', '.join(shown)}" if count else "0"

    return Table.of(
        [{"about": kind, **{v: cell(kind, v) for v in get_args(Verdict)}} for kind in KINDS]
    )


def claims(folder: Path) -> Table:
    """Return a table of the paper's tables and figures: what each claims, and what came of it."""
    titles = ("the paper's difference", "here", "scale", "holds?")
    results, rows = recorded(folder), []
    for name in names():
        came = [_outcome(result) for result in results.get(name, ())]
        for cells in came or [["", "", "", "not run"]]:
            row = {"": f"`{name}`", "the paper's claim": get_artefact(name, "tiny").claim}
            rows.append({**row, **dict(zip(titles, cells, strict=True))})
    return Table.of(rows)


def differences(folder: Path) -> Table:
    """Return a table of all differences that were tested for the paper's claims."""
    rows = []
    for name, (result, *_) in recorded(folder).items():
        for each in judge(result):
            paper, here = claim_numbers(result, each)
            cells = {"": f"`{name}`", "difference": claim_text(each), "the paper": paper}
            rows.append({**cells, "here": here, "holds?": each.verdict})
    return Table.of(rows)


def recorded(folder: Path) -> dict[str, list[StudyResult]]:
    """Return what was recorded of each table or figure of the paper, the largest scale first."""
    found: dict[str, list[StudyResult]] = {}
    for name in names():
        for scale in ("paper", "small", "tiny"):
            if (path := folder / f"{name}-{scale}.json").exists():
                found.setdefault(name, []).append(read_result(StudyResult, path))
    return found


def _outcome(result: StudyResult) -> list[str]:
    """Return the first claim's differences, the scale, and what came of all claims."""
    judged = judge(result)
    numbers = [(each, *claim_numbers(result, each)) for each in judged]
    evaluated: list[tuple[JudgedClaim, str, str]] = [each for each in numbers if each[2]]
    count = len(result.seeds)
    seeds = f", {count} seed{'s' * (count > 1)}" if result.runs else ""
    scale = f"{result.scale}{seeds}"
    if not evaluated:
        return ["", "", scale, result.missing or "no claim was evaluated"]
    # One that the paper gives a number for, if there is one.
    shown, paper, here = next((each for each in evaluated if each[1]), evaluated[0])
    subject = f"{shown.claim.quantity}, {shown.claim.arm}"
    subject += f" against {shown.claim.against}" if shown.claim.against else ""
    said = Counter(each.verdict for each in judged)
    counts = "; ".join(f"{verdict}: {count}" for verdict, count in said.items())
    return [paper, f"{subject}: {here}", scale, next(iter(said)) if len(said) == 1 else counts]


if __name__ == "__main__":
    main()
