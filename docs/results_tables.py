"""Write the tables of docs/results.md from what was recorded: python THIS_FILE.

A line ``<!-- NAME: METRIC -->`` in the page stands before the table of one metric of
docs/records/NAME.json, the report.json of a sweep. Training time and memory beside it are from
docs/records/NAME-costs.json, which ``layermem costs --measure --out`` wrote, where there is one.
Of a record that ``layermem retrofit`` wrote, METRIC is "equal tokens" or "equal training time"; of
``layermem arena``, "BOARD, equal tokens" and so on; of ``layermem perplexity``, "loss over seeds",
and of ``layermem blimp``, "right pairs over seeds". "right answers by statements" (or "by
operands": what a task calls its levels) is a table of the levels of a sweep's task. "METRIC with
the choosing seed" is for a sweep that tried one learning rate: where nothing was chosen, the runs
on the seed that is kept for choosing are pairs like the others.
``<!-- verdicts -->`` stands before the table of what came of the paper's claims in short, and
``<!-- claims -->`` before that of the claims, from the artefact.json that
``layermem reproduce`` wrote, as docs/records/artefacts/NAME-SCALE.json; ``<!-- differences -->``
before the table of all that was compared for them. ``<!-- NAME-SCALE: numbers -->`` stands before
the table of an artefact's numbers, the paper's beside ours; "numbers: TEXT" before those of
quantities that have TEXT in their names.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from layermem.paper import get_artefact, names
from layermem.paper.artefact import SEEDS
from layermem.intervals import adjusted_p_values, interval, paired
from layermem.report import arena, minimal_pairs, perplexity, retrofit
from layermem.report.artefacts import claim_numbers, claims, numbers
from layermem.report.learning_rates import format_choice
from layermem.report.numbers import format_p
from layermem.report.settings import Setting, settings_of
from layermem.results.arena import ArenaResult
from layermem.results.artefact import ArtefactResult, Verdict
from layermem.results.comparison import Comparison
from layermem.results.costs import Costs, Measurement
from layermem.results.files import read_result
from layermem.results.minimal_pairs import MinimalPairsResult
from layermem.results.perplexity import PerplexityResult
from layermem.results.retrofit import RetrofitResult
from layermem.results.run_record import LOSS, RIGHT_ANSWERS

PAGE = Path(__file__).parent / "results.md"
RECORDS = Path(__file__).parent / "records"
VERDICTS, CLAIMS, DIFFERENCES = "verdicts", "claims", "differences"
BY_LEVEL = f"{RIGHT_ANSWERS} by "
NUMBERS = "numbers"
LOSS_OVER_SEEDS, PAIRS_OVER_SEEDS = "loss over seeds", "right pairs over seeds"
CHOOSING = " with the choosing seed"
RANKINGS = tuple(f", {title}" for title in arena.TITLES.values())
_CLAIMS_PLACE = re.compile(
    rf"(?m)^<!-- (?P<which>{VERDICTS}|{CLAIMS}|{DIFFERENCES}) -->\n(\|.*\n)*"
)
_PLACE = re.compile(r"(?m)^<!-- (?P<name>[\w-]+): (?P<metric>[^>]+?) -->\n(\|.*\n)*")


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str, records: Path = RECORDS) -> str:
    """Return the page with every table as its record has it."""

    def table(place: re.Match[str]) -> str:
        name, metric = place["name"], place["metric"]
        find: Callable[[str, str, Path], list[list[str]]] = metric_table
        if metric in retrofit.TITLES.values():
            find = retrofit_table
        elif metric.endswith(CHOOSING):
            find = all_pairs_table
        elif metric.endswith(RANKINGS):
            find = arena_table
        elif metric in (LOSS_OVER_SEEDS, PAIRS_OVER_SEEDS):
            find = over_seeds_table
        elif metric.startswith(BY_LEVEL):
            find = levels_table
        elif metric.split(":")[0] == NUMBERS:
            find = numbers_table
        lines = markdown_lines(find(name, metric, records))
        return f"<!-- {name}: {metric} -->\n{lines}\n"

    def table_of_claims(place: re.Match[str]) -> str:
        tables = {VERDICTS: verdicts_table, CLAIMS: claims_table, DIFFERENCES: differences_table}
        lines = markdown_lines(tables[place["which"]](records / "artefacts"))
        return f"<!-- {place['which']} -->\n{lines}\n"

    return _CLAIMS_PLACE.sub(table_of_claims, _PLACE.sub(table, page))


def verdicts_table(folder: Path) -> list[list[str]]:
    """Return a table of verdicts: how many differences came to each, and of which artefacts.

    Beside it, how many still would with the p-values that are adjusted for the differences of an
    artefact; what is counted has none and stays. An artefact of fewer seeds than its scale's is
    marked. Of one that was recorded at several scales, the largest counts.
    """
    by_verdict: dict[str, dict[str, int]] = {verdict: {} for verdict in get_args(Verdict)}
    adjusted = Counter[str]()
    totals, few, not_run = Counter[str](), dict[str, str](), list[str]()
    for name in names():
        results = _results(folder, name)
        for claim in results[0].claims if results else ():
            of_verdict = by_verdict[claim.verdict]
            of_verdict[name] = of_verdict.get(name, 0) + 1
            adjusted[claim.verdict] += claim.p is None or claim.p < 0.05
            totals[name] += 1
        if not totals[name]:
            not_run.append(f"`{name}`")
        elif results[0].runs and len(results[0].seeds) < SEEDS[results[0].scale]:
            few[name] = f"{len(results[0].seeds)} seeds"

    def named(name: str, count: int) -> str:
        part = f"{count} of {totals[name]}" if count < totals[name] else ""
        inside = "; ".join(filter(None, (part, few.get(name, ""))))
        return f"`{name}` ({inside})" if inside else f"`{name}`"

    rows = [
        [
            verdict,
            str(sum(counts.values())),
            # Within noise it stays, whatever it is adjusted for.
            "" if verdict.startswith("cannot") else str(adjusted[verdict]),
            ", ".join(named(name, count) for name, count in counts.items()),
        ]
        for verdict, counts in by_verdict.items()
    ]
    return [
        ["", "differences", "after Holm's adjustment", "tables and figures"],
        *rows,
        *([["not run", "", "", ", ".join(not_run)]] if not_run else []),
    ]


def claims_table(folder: Path) -> list[list[str]]:
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


def differences_table(folder: Path) -> list[list[str]]:
    """Return a table of all that was compared for the claims: a row for each difference."""
    results = [result for name in names() for result in _results(folder, name)]
    rows = [
        [f"`{result.name}`, {result.scale}", *row]
        for result in results
        for row in claims(result).texts()
    ]
    return [["", *claims(results[0]).header], *rows]


def numbers_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return a table of what an artefact's numbers came to, beside the paper's where it has one."""
    result = read_result(ArtefactResult, records / "artefacts" / f"{name}.json")
    part = metric.removeprefix(NUMBERS).removeprefix(":").strip()
    ours = [row for row in result.rows if row.by_seed and part in row.quantity]
    # Arms of one quantity one below the other.
    quantities = list(dict.fromkeys(row.quantity for row in ours))
    ours.sort(key=lambda row: quantities.index(row.quantity))
    if not ours:
        raise SystemExit(f"{name} has no number whose name has {part!r} in it")
    table = numbers(replace(result, rows=tuple(ours)))
    header, rows = list(table.header), table.texts()
    # What every seed came to is in the record.
    shown = [
        i
        for i, title in enumerate(header)
        if title not in ("where", "each seed") and any(row[i] for row in rows)
    ]
    for row in rows:
        row[header.index("arm")] = f"`{row[header.index('arm')]}`"
    return [[row[i] for i in shown] for row in (header, *rows)]


def _results(folder: Path, name: str) -> list[ArtefactResult]:
    """Return what was recorded of a table or figure of the paper, the largest scale first."""
    paths = [folder / f"{name}-{scale}.json" for scale in ("paper", "small", "tiny")]
    return [read_result(ArtefactResult, path) for path in paths if path.exists()]


def _outcome(result: ArtefactResult) -> list[str]:
    """Return the first claim's differences, the scale, and what came of all claims."""
    numbers = [(claim, *claim_numbers(result, claim)) for claim in result.claims]
    evaluated = [each for each in numbers if each[2]]
    count = len(result.seeds)
    scale = f"{result.scale}, {count} seed{'s' * (count > 1)}" if result.runs else result.scale
    if not evaluated:
        return ["", "", scale, result.missing or "no claim was evaluated"]
    # One that the paper gives a number for, if there is one.
    shown, paper, here = next((each for each in evaluated if each[1]), evaluated[0])
    subject = f"{shown.quantity}, {shown.arm}"
    subject += f" against {shown.against}" if shown.against else ""
    verdicts = Counter(claim.verdict for claim in result.claims)
    counts = (f"{verdict}: {count}" for verdict, count in verdicts.items())
    said = next(iter(verdicts)) if len(verdicts) == 1 else "; ".join(counts)
    return [paper, f"{subject}: {here}", scale, said]


def retrofit_table(name: str, condition: str, records: Path) -> list[list[str]]:
    """Return the table of four ways of going on training a model, under one condition."""
    result = read_result(RetrofitResult, records / f"{name}.json")
    (ranking,) = (r for r in result.rankings if retrofit.TITLES[r.condition] == condition)
    table = retrofit.table(result, ranking)
    return [["", "way", *table.header[2:]], *table.texts()]


def arena_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return a ranking of the arena: a board, or the shapes of one, under one condition."""
    result = read_result(ArenaResult, records / f"{name}.json")
    titles = {
        f"{ranking.board}, {arena.TITLES[ranking.condition]}": ranking
        for ranking in (*result.rankings, *result.shapes)
    }
    if metric not in titles:
        raise SystemExit(f"{name} has no ranking {metric!r}; it has {'; '.join(titles)}")
    ranking = titles[metric]
    chosen = {arm: f"{rate:g}" for arm, rate in result.rates.get(ranking.board, {}).items()}
    chosen |= {of.arm: format_choice(of) for of in result.tried.get(ranking.board, ())}
    table = arena.table(ranking, result)
    rows = [[row[0], f"`{row[1]}`", chosen.get(row[1], ""), *row[2:]] for row in table.texts()]
    page = [["", "arm", "learning rate", *table.header[2:]], *rows]
    # Shapes are of several boards, each with rates of its own.
    return page if chosen else [row[:2] + row[3:] for row in page]


def over_seeds_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return the table of means over seeds of losses, or of right minimal pairs."""
    path = records / f"{name}.json"
    if metric == LOSS_OVER_SEEDS:
        found = perplexity.over_seeds(read_result(PerplexityResult, path))
    else:
        found = minimal_pairs.over_seeds(read_result(MinimalPairsResult, path))
    if not found:
        raise SystemExit(f"{name} has no runs of several seeds")
    (table,) = found
    return [list(table.header), *table.texts()]


def levels_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return the mean of each arm's right answers at each level of the problems."""
    (setting,) = settings_of(read_result(Comparison, records / f"{name}.json"))
    levels = metric.removeprefix(BY_LEVEL)
    rows = dict[str, dict[str, list[float]]]()
    for arm in setting.arms:
        by_level = rows[_bare(arm)] = dict[str, list[float]]()
        for run in setting.ended[arm].values():
            if run.solved is None or levels not in run.solved.by:
                raise SystemExit(f"{name} has no right answers by {levels}")
            for level, shares in run.solved.by[levels].items():
                by_level.setdefault(level, []).append(shares.accuracy)
    header = ["", *(f"{levels}: {level}" for level in next(iter(rows.values())))]
    return [
        header,
        *([f"`{arm}`", *(_mean(v, True) for v in row.values())] for arm, row in rows.items()),
    ]


def metric_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return a table: the mean of each arm, its difference from the first, and what it takes."""
    comparison = read_result(Comparison, records / f"{name}.json")
    (setting,) = settings_of(comparison)
    if metric not in setting.metrics:
        raise SystemExit(f"{name} has no metric {metric!r}; there are {', '.join(setting.metrics)}")
    unfinished = [run.name for run in comparison.runs.values() if not (run.ended or run.diverged)]
    if unfinished:
        raise SystemExit(
            f"{name} was recorded before {', '.join(unfinished)} had ended; repeat its command"
        )
    share = setting.metrics[metric]
    rates = {tried.arm: format_choice(tried) for tried in comparison.learning_rates}
    taken = _taken(records / f"{name}-costs.json", setting)
    p_values = setting.adjusted_p_values(metric)
    header = ["", *(["learning rate"] if rates else []), metric, f"against {_bare(setting.first)}"]
    header += ["p (Holm)", *(["step", "memory"] if taken else [])]
    rows = []
    for arm in setting.arms:
        difference = setting.difference(arm, metric)
        cells = [f"`{_bare(arm)}`", *([rates[_bare(arm)]] if rates else [])]
        cells += [
            _mean(list(setting.values(arm, metric).values()), share),
            _signed(difference.mean, difference.half, share) if difference else "",
            format_p(p_values.get(arm)),
            *taken.get(_bare(arm), ["", ""] if taken else []),
        ]
        note = setting.divergence_note(arm, metric)
        rows.append([*cells[:-1], f"{cells[-1]} ({note})"] if note else cells)
    return [header, *rows, *_chance(setting, metric, len(header), bool(rates))]


def all_pairs_table(name: str, metric: str, records: Path) -> list[list[str]]:
    """Return the validation losses of a sweep with those of the seed that is kept for choosing."""
    comparison = read_result(Comparison, records / f"{name}.json")
    (setting,) = settings_of(comparison)
    if metric != f"{LOSS}{CHOOSING}" or any(len(t.losses) != 1 for t in comparison.learning_rates):
        raise SystemExit(f"{name} has no {metric!r}: that is of {LOSS}, where one rate was tried")
    values = {_bare(arm): list(setting.values(arm, LOSS).values()) for arm in setting.arms}
    for tried in comparison.learning_rates:
        values[tried.arm] += [loss for loss in tried.losses if loss is not None]
    first, *others = values
    differences = {arm: paired(values[arm], values[first]) for arm in others}
    # To count this seed too is one more look.
    p_values = adjusted_p_values(differences, 1 + max(1, len(setting.looks)))
    return [
        ["", LOSS, f"against {first}", "p (Holm)"],
        [f"`{first}`", _mean(values[first], False), "", ""],
        *(
            [
                f"`{arm}`",
                _mean(values[arm], False),
                _signed(of.mean, of.half, False),
                format_p(p_values[arm]),
            ]
            for arm, of in differences.items()
        ),
    ]


def _chance(setting: Setting, metric: str, width: int, has_rates: bool) -> list[list[str]]:
    """Return a row of what is right by chance, where the runs recorded it."""
    runs = [run for by_seed in setting.ended.values() for run in by_seed.values()]
    chances = {run.solved.chance for run in runs if run.solved}
    if metric != RIGHT_ANSWERS or len(chances) != 1:
        return []
    cells = ["chance", *([""] if has_rates else []), f"{chances.pop():.1%}"]
    return [[*cells, *[""] * (width - len(cells))]]


def markdown_lines(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of which is the header, as a table of Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _bare(arm: str) -> str:
    """Return an arm's name without its learning rate, which has a column of its own."""
    return re.sub(r":lr=[^:]+", "", arm)


def _taken(path: Path, setting: Setting) -> Mapping[str, list[str]]:
    """Return each arm's time and memory of a step as ratios to the first arm's, if measured."""
    if not path.exists():
        return {}
    (point,) = read_result(Costs, path).points
    by_arm: Mapping[str, Measurement] = (point.measured or {})["eager"]
    base = by_arm[_bare(setting.first)]
    return {
        arm: [f"{of.seconds / base.seconds:.2f}", _ratio(of.peak, base.peak)]
        for arm, of in by_arm.items()
    }


def _ratio(ours: int | None, theirs: int | None) -> str:
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def _mean(values: list[float], share: bool) -> str:
    if not values:
        return "none"
    of_arm = interval(values)
    return f"{_number(of_arm.mean, share)} +- {_number(of_arm.half, share)}"


def _signed(mean: float, half: float, share: bool) -> str:
    return f"{'+' if mean >= 0 else ''}{_number(mean, share)} +- {_number(half, share)}"


def _number(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.4f}"


if __name__ == "__main__":
    main()
