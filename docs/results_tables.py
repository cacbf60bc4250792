"""Write the tables of the results from what was recorded: python THIS_FILE.

A line ``<!-- NAME: TABLE -->`` in a page stands before a table of docs/records/NAME.json, which
``layermem study``, ``report`` or ``eval`` wrote. TABLE is

    METRIC                     the arms of the record's only board by a metric
    BOARD, METRIC              those of one of its boards, under one condition
    ranks                      how alike its boards rank the arms
    BOARD, all conditions      those of a board by what they are ranked by: their difference from
                               the first arm under each condition; of one board without its name
    BOARD, METRIC, equal time  those of a board under one of its conditions, likewise
    PRESET, arms and shapes    wide and deep models of a preset at equal parameters
    TABLE over seeds           a table of evaluations ("loss", "right pairs")
    numbers, or numbers: TEXT  an artefact's numbers, the paper's beside ours (TEXT is in their
                               names); its record lies in docs/records/artefacts

``<!-- NAME + NAME: METRIC -->`` is one table of several records. ``<!-- NAME + NAME: TABLE over
seeds: ROW, ROW -->`` has a line for each arm of several evaluations, alike but for the models.

``<!-- verdicts -->`` stands before the table of what came of the paper's claims in short,
``<!-- claims -->`` before that of the claims.

``<!-- answers -->`` stands before the table that answers the questions of docs/questions.toml, each
by one recorded difference; ``<!-- answers in brief -->`` before those marked as brief, in README.md
``<!-- answers in brief, above docs -->``. docs/pictures.py draws them.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import commonprefix
from pathlib import Path
from typing import Literal, get_args

from layermem_bench.paper import get_artefact, names
from layermem_bench.paper.artefact import SEEDS
from layermem_bench.report.eval import over_seeds
from layermem_bench.report.numbers import NOISE, format_interval, format_p
from layermem_bench.report.page import Cell, Table
from layermem_bench.report.paper_tables import claim_numbers, numbers_table
from layermem_bench.report.study_tables import (
    TITLES,
    arms_table,
    ranks_table,
    shapes_tables,
)
from layermem_bench.results.comparing import Line, Verdict, judge, lines_of
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result
from layermem_bench.results.study import ABOVE_PLAIN, BY_LEVEL, Board, Metric, StudyResult

DOCS = Path(__file__).parent
PAGES = (
    DOCS.parent / "README.md",
    DOCS / "index.md",
    DOCS / "results.md",
    DOCS / "recipe.md",
    *sorted((DOCS / "results").glob("*.md")),
)
RECORDS = DOCS / "records"
QUESTIONS = DOCS / "questions.toml"
OVER_SEEDS = " over seeds"
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
_FIRST_LEFT_OUT = ("seeds to settle it", "", "memory", "parameters", "learning rate", "time")
_NAMES = r"[\w-]+(?: \+ [\w-]+)*"
_PLACE = re.compile(rf"(?m)^<!-- (?:(?P<name>{_NAMES}): )?(?P<table>[^>]+?) -->\n(?:\|.*\n)*")


def main() -> None:
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str, records: Path = RECORDS) -> str:
    """Return the page with every table as its record has it."""
    of_all = {
        "verdicts": partial(verdicts, records / "artefacts"),
        "claims": partial(claims, records / "artefacts"),
        "answers": partial(answers_table, records),
        "answers in brief": partial(answers_table, records, brief=True),
        "answers in brief, above docs": partial(
            answers_table, records, brief=True, above_docs=True
        ),
    }

    def replaced(place: re.Match[str]) -> str:
        name, table = place["name"], place["table"]
        if name is None:
            if table not in of_all:
                return place[0]
            rows = _narrow(of_all[table]())
        else:
            rows = _narrow(rows_of(name, table, records))
        mark = f"{name}: {table}" if name else table
        return f"<!-- {mark} -->\n{markdown_lines(rows)}\n"

    return _PLACE.sub(replaced, page)


def _narrow(rows: list[list[str]]) -> list[list[str]]:
    """Return a table without the columns that a page can miss most, if it is too wide."""
    for title in _FIRST_LEFT_OUT:
        if len(rows[0]) > _COLUMNS and title in rows[0]:
            place = rows[0].index(title)
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return rows


def rows_of(name: str, table: str, records: Path) -> list[list[str]]:
    """Return the header and the rows of one table of a record."""
    if table.partition(":")[0] == "numbers":
        return _numbers(name, table.partition(":")[2].strip(), records / "artefacts")
    if OVER_SEEDS + ": " in table:
        table, _, lines = table.partition(OVER_SEEDS + ": ")
        return _arms_over_seeds(name.split(" + "), table, lines.split(", "), records)
    if table.endswith(OVER_SEEDS):
        return _over_seeds(name, table.removesuffix(OVER_SEEDS), records)
    if " + " in name:
        return _joined(name.split(" + "), table, records)
    result = read_result(StudyResult, records / f"{name}.json")
    _check_whole(name, result)
    found = _tables(result)
    if table not in found:
        raise SystemExit(f"{name} has no table {table!r}; it has {'; '.join(found)}")
    shown = found[table]()
    if table == "ranks":
        return _rows(shown, arms=None)
    return _rows(shown, arms=1 if shown.header[0] == "" else 0)


def _joined(names: Sequence[str], table: str, records: Path) -> list[list[str]]:
    """Return the tables of several records as one, with what tells their names apart."""
    start = commonprefix(names).rpartition("-")[0]
    joined = [["", "arm", table, "against the first arm", "p (Holm)"]]
    for name in names:
        header, *rows = rows_of(name, table, records)
        (against,) = (
            title for title in header if title.startswith("against ") if "best" not in title
        )
        columns = [header.index(title) for title in ("arm", table, against, "p (Holm)")]
        told = name.removeprefix(start).strip("-").replace("-", " ")
        joined += [[told, *(row[i] for i in columns)] for row in rows]
    return joined


def _check_whole(name: str, result: StudyResult) -> None:
    open_ones = [run.name for run in result.runs if run.state not in ("ended", "diverged")]
    if open_ones:
        raise SystemExit(
            f"{name} was recorded before {', '.join(open_ones)} had ended; repeat its command"
        )


def _tables(result: StudyResult) -> dict[str, Callable[[], Table]]:
    """Return what makes each table of a study, by its name."""
    found: dict[str, Callable[[], Table]] = {}
    for board in result.boards:
        of_board = f"{board.name}, " if len(result.boards) > 1 else ""
        if len(board.conditions) > 1:
            found[f"{of_board}all conditions"] = partial(_all_conditions, result, board)
            for condition in board.conditions:
                name = f"{of_board}{board.metric}, {TITLES[condition.name]}"
                found[name] = partial(arms_table, result, board, condition, board.metric)
        else:
            (condition,) = board.conditions
            for metric in result.metrics_of(board.name, condition.name):
                if BY_LEVEL not in metric:
                    name = f"{of_board}{metric}"
                    found[name] = partial(arms_table, result, board, condition, metric)
    if (ranks := ranks_table(result)) is not None:
        found["ranks"] = partial(replace, ranks)
    shapes = {table.header[1]: partial(replace, table) for table, _, _ in shapes_tables(result)}
    return found | {name.removesuffix(", equal parameters"): make for name, make in shapes.items()}


def _all_conditions(result: StudyResult, board: Board) -> Table:
    """Return the arms of a board with their differences from the first under each condition."""
    tables = {
        TITLES[condition.name]: arms_table(result, board, condition, board.metric)
        for condition in board.conditions
    }
    first, *_ = tables.values()
    against = f"against {board.conditions[0].arms[0].name}"
    arms = first.texts()
    columns: dict[str, list[Cell]] = {
        "arm": [row[1] for row in arms],
        board.metric: [row[list(first.header).index(board.metric)] for row in arms],
    }
    for i, (condition, table) in enumerate(tables.items()):
        of_arm = {row[1]: dict(zip(table.header, row, strict=True)) for row in table.texts()}
        title = condition if i else f"{against}, {condition}"
        columns[title] = [
            _with_p(of_arm[row[1]][against], of_arm[row[1]].get("p (Holm)", "")) for row in arms
        ]
    if "time" in first.header:
        columns["time"] = [row[list(first.header).index("time")] for row in arms]
    return Table.of_columns(columns)


def _with_p(difference: str, p: str) -> str:
    """Write a difference with its p-value, if it has one."""
    p = p.partition(",")[0]
    return f"{difference} (p {p if p.startswith('<') else f'= {p}'})" if p else difference


def _rows(table: Table, arms: int | None) -> list[list[str]]:
    """Return header and rows without what a page has no room for; ``arms``: the column of them."""
    rows = [list(table.header), *table.texts()]
    kept = [
        i
        for i, title in enumerate(table.header)
        if title not in _LEFT_OUT and any(row[i] for row in rows[1:])
    ]
    if arms is not None:
        for row in rows[1:]:
            row[arms] = f"`{row[arms]}`"
        rows[0][arms] = "arm"
    return [[row[i] for i in kept] for row in rows]


def _numbers(name: str, part: str, folder: Path) -> list[list[str]]:
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
    return _rows(numbers_table(replace(result, rows=tuple(ours), papers=papers)), arms=1)


def _over_seeds(name: str, table: str, records: Path) -> list[list[str]]:
    """Return what a table of evaluations comes to over seeds."""
    result = read_result(EvalResult, records / f"{name}.json")
    found = over_seeds(result, table) if table in result.tables else None
    if found is None:
        raise SystemExit(f"{name} has no {table!r} of runs of several seeds")
    return _rows(found, arms=None)


def _arms_over_seeds(
    names: Sequence[str], table: str, shown: Sequence[str], records: Path
) -> list[list[str]]:
    """Return what some rows of evaluations of one arm each come to, the arms below each other."""
    results = [read_result(EvalResult, records / f"{name}.json") for name in names]
    for name, result in zip(names, results, strict=True):
        if result.options != results[0].options or len(result.arms) != 1:
            raise SystemExit(f"{name} is no evaluation of one arm like that of {names[0]}")
        if lacking := set(shown) - set(result.of(table)):
            raise SystemExit(f"{name} has no {', '.join(sorted(lacking))} among its {table!r}")
        for row in shown:
            if not result.of(table)[row].is_comparable:
                raise SystemExit(f"{name}: models may not be compared by {row!r}")
    start = commonprefix(names).rpartition("-")[0]
    arms = {
        name.removeprefix(start).strip("-"): models
        for name, result in zip(names, results, strict=True)
        for models in result.arms.values()
    }
    seeds = {tuple(model.rpartition("-s")[2] for model in models) for models in arms.values()}
    if len(seeds) > 1:
        raise SystemExit(f"{' + '.join(names)} are not of the same seeds: {sorted(seeds)}")
    rows = [
        replace(
            results[0].of(table)[row],
            scores={m: score for r in results for m, score in r.of(table)[row].scores.items()},
        )
        for row in shown
    ]
    for each in rows:
        if len(counts := {score.count for score in each.scores.values()}) > 1:
            raise SystemExit(f"{' + '.join(names)}: {each.name!r} is of {counts} {each.unit}")
    joined = replace(
        results[0],
        models=tuple(model for models in arms.values() for model in models),
        arms=arms,
        parts=(replace(results[0].parts[0], rows=tuple(rows), tables=results[0].tables),),
    )
    found = over_seeds(joined, table)
    if found is None:
        raise SystemExit(f"{' + '.join(names)}: {table!r} has no means over seeds")
    header, *of_rows = _rows(found, arms=None)
    cells = [dict(zip(header, line, strict=True)) for line in of_rows]
    first = next(iter(arms))
    titles = [title for row in shown for title in (row, f"{row}, against {first}")]
    lines = [
        [
            f"`{arm}`",
            *(cell.get(of, "") for cell in cells for of in (arm, f"{arm} against {first}")),
        ]
        for arm in arms
    ]
    return [["arm", *titles], *lines]


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
    metric: str = ""
    stage: Literal["early", "later"] = "later"
    """The part of the picture in which a difference in loss is drawn."""
    brief: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a question: the arm's line of its table; None: nothing is recorded."""

    question: Question
    line: Line | None = None
    metric: Metric = Metric()

    @property
    def verdict(self) -> str:
        if self.line is None or self.line.difference is None:
            return "not measured yet"
        if self.line.p is None or self.line.p >= NOISE:
            return "unclear"
        is_better = (self.line.difference.mean > 0) == (self.metric.better == "higher")
        return "**yes**" if is_better else "**no**"

    @property
    def difference(self) -> str:
        return format_interval(
            self.line.difference if self.line else None, self.metric.is_share, "+"
        )


def questions(path: Path = QUESTIONS) -> list[Question]:
    """Return the questions in the order of the table."""
    with path.open("rb") as file:
        return [Question(**fields) for fields in tomllib.load(file)["question"]]


def answer(question: Question, records: Path) -> Answer:
    """Return what the record of a question says."""
    if not question.record:
        return Answer(question=question)
    result = read_result(StudyResult, records / f"{question.record}.json")
    _check_whole(question.record, result)
    tables = [
        lines_of(result, board, condition, question.metric)
        for board in result.boards
        for condition in board.conditions
        if question.board in ("", board.name) and question.condition == condition.name
    ]
    lines = [
        line
        for table in tables
        for line in table
        if line.arm == question.arm and line.difference is not None
    ]
    if len(lines) != 1:
        raise SystemExit(
            f"{question.record} must have one difference for {question.asks!r}, has {len(lines)}"
        )
    (compared,) = (table for table in tables if lines[0] in table)
    first = next(line for line in compared if line.difference is None)
    if lacking := sorted({*lines[0].missing, *first.missing}):
        raise SystemExit(
            f"{question.record}: of seeds {', '.join(map(str, lacking))} there is no pair for "
            f"{question.asks!r}: an arm that loses seeds is not judged"
        )
    return Answer(question=question, line=lines[0], metric=result.metric(question.metric))


def answers_table(
    records: Path, *, brief: bool = False, above_docs: bool = False
) -> list[list[str]]:
    """Return the table of answers; ``brief``: of the first ones; ``above_docs``: for README.md."""
    rows = []
    for each in questions():
        if each.brief or not brief:
            found = answer(each, records)
            p = format_p(found.line.p if found.line else None).partition(",")[0]
            asked = f"[{each.asks}]({'docs/' if above_docs else ''}{each.evidence})"
            rows.append([asked, found.verdict, found.difference, p])
    return [["question, with its evidence", "answer", "difference", "p, adjusted"], *rows]


def verdicts(folder: Path) -> list[list[str]]:
    """Return a table of verdicts: of each kind of claim, how many differences came to each.

    An artefact of fewer seeds than its
    scale's is marked. Of one that was recorded at several scales, the largest counts.
    """
    judged = {
        name: (results[0], judge(results[0]))
        for name in names()
        if (results := _results(folder, name))
    }

    def cell(kind: str, verdict: Verdict) -> str:
        shown, count = [], 0
        for name in KINDS[kind]:
            result, of_all = judged.get(name, (None, ()))
            of_verdict = [each for each in of_all if each.verdict == verdict]
            if result is None or not of_verdict:
                continue
            count += len(of_verdict)
            few = result.runs and len(result.seeds) < SEEDS[result.scale or "tiny"]
            part = f"{len(of_verdict)} of {len(of_all)}" if len(of_verdict) < len(of_all) else ""
            inside = "; ".join(filter(None, (part, f"{len(result.seeds)} seeds" * bool(few))))
            shown.append(f"`{name}` ({inside})" if inside else f"`{name}`")
        return f"**{count}**: {', '.join(shown)}" if count else "0"

    columns = get_args(Verdict)
    return [
        ["about", *columns],
        *([kind, *(cell(kind, verdict) for verdict in columns)] for kind in KINDS),
    ]


def claims(folder: Path) -> list[list[str]]:
    """Return a table of the paper's tables and figures: what each claims, and what came of it."""
    header = ["", "the paper's claim", "its difference", "here", "scale", "holds?"]
    rows = []
    for name in names():
        results = _results(folder, name)
        start = [f"`{name}`", get_artefact(name).claim]
        rows += [[*start, *_outcome(result)] for result in results]
        if not results:
            rows.append([*start, "", "", "", "not run"])
    return [header, *rows]


def _results(folder: Path, name: str) -> list[StudyResult]:
    """Return what was recorded of a table or figure of the paper, the largest scale first."""
    paths = [folder / f"{name}-{scale}.json" for scale in ("paper", "small", "tiny")]
    return [read_result(StudyResult, path) for path in paths if path.exists()]


def _outcome(result: StudyResult) -> list[str]:
    """Return the first claim's differences, the scale, and what came of all claims."""
    judged = judge(result)
    numbers = [(each, *claim_numbers(result, each)) for each in judged]
    evaluated = [each for each in numbers if each[2]]
    count = len(result.seeds)
    shown_scale = str(result.scale)
    scale = f"{shown_scale}, {count} seed{'s' * (count > 1)}" if result.runs else shown_scale
    if not evaluated:
        return ["", "", scale, result.missing or "no claim was evaluated"]
    # One that the paper gives a number for, if there is one.
    shown, paper, here = next((each for each in evaluated if each[1]), evaluated[0])
    subject = f"{shown.claim.quantity}, {shown.claim.arm}"
    subject += f" against {shown.claim.against}" if shown.claim.against else ""
    said = Counter(each.verdict for each in judged)
    counts = (f"{verdict}: {count}" for verdict, count in said.items())
    return [
        paper,
        f"{subject}: {here}",
        scale,
        next(iter(said)) if len(said) == 1 else "; ".join(counts),
    ]


def markdown_lines(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which is the header, as a table of Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
