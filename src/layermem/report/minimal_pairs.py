"""The page about minimal pairs, and its tables on the screen, from a ``MinimalPairsResult`` alone.

It does not know: torch, models, how a pair is judged.
"""

from collections.abc import Callable, Mapping

from layermem.report import figures
from layermem.report.over_seeds import over_seeds_tables
from layermem.report.page import Figure, Page, Section, Table
from layermem.results.analysis import ProbeAccuracy
from layermem.results.minimal_pairs import (
    CHANCE,
    JudgedPairs,
    MinimalPairsResult,
    PairDifference,
    PairShare,
)

_HOW = (
    "A pair is right if its grammatical sentence has the higher log-probability. It is that of the "
    "whole sentence, whatever its number of tokens; before a sentence stands the tokenizer's BOS "
    "token, or EOS where it has no BOS. A guess is right in 50%. Intervals are 95% by Wilson's "
    "method, over pairs and not over seeds of training."
)


def build(result: MinimalPairsResult) -> Page:
    """Return the page."""
    return Page(
        title=f"Grammar: {' and '.join(result.models)}",
        lead="How often the grammatical sentence of a minimal pair is the more probable one.",
        sections=[section(result), Section(title="Again", commands=[result.command])],
    )


def section(result: MinimalPairsResult, title_suffix: str = "") -> Section:
    """Return the section of a page that shows the result."""
    shares = {
        name: (model.all.interval[0], model.all.accuracy, model.all.interval[1])
        for name, model in result.models.items()
    }
    by_paradigm = _shares(result, "paradigm", lambda model: model.paradigms)
    return Section(
        title=f"Grammar (BLiMP){title_suffix}",
        paragraphs=[_HOW],
        tables=[*tables(result), by_paradigm],
        figures=[
            Figure(
                svg=figures.bars(shares, up="right pairs", chance=CHANCE),
                caption="Right pairs of all phenomena with 95% intervals. Dotted: a guess.",
            )
        ],
    )


def tables(result: MinimalPairsResult) -> list[Table]:
    """Return the table of shares by field and phenomenon, and that of differences if any."""
    shares = _shares(result, "field", lambda model: {**model.fields, "all": model.all})
    phenomena = _shares(result, "phenomenon", lambda model: model.phenomena)
    differences = [_differences(result)] if result.comparisons else []
    return [shares, phenomena, *differences, *over_seeds(result), *_probes(result)]


def over_seeds(result: MinimalPairsResult) -> list[Table]:
    """Return the table of means over seeds, if models are runs of several."""
    first = next(iter(result.models.values()))
    rows = {"all": {name: model.all.accuracy for name, model in result.models.items()}}
    for phenomenon in first.phenomena:
        rows[phenomenon] = {
            name: model.phenomena[phenomenon].accuracy for name, model in result.models.items()
        }
    return over_seeds_tables("right pairs", rows, result.arms, share=True)


def _probes(result: MinimalPairsResult) -> list[Table]:
    """Return a table of each probe: its accuracy by layer on each model's representations."""
    tables = []
    for probe in next(iter(result.probes.values())).accuracy if result.probes else ():
        columns = {
            f"{name}, {kind}": accuracy
            for name, probes in result.probes.items()
            for kind, accuracy in probes.accuracy[probe].items()
        }
        depth = max(len(column.mean) for column in columns.values())
        pairs = next(iter(result.probes.values())).pairs
        rows = [[str(i), *(_layer(column, i) for column in columns.values())] for i in range(depth)]
        tables.append(
            Table(
                header=[f"layer, {probe} probe", *columns],
                rows=rows,
                caption="Accuracy of a linear probe for grammatical sentences by the mean of their "
                f"tokens' vectors, {pairs:,} pairs in five folds that split no pair: mean and "
                "standard deviation over folds; in brackets with labels shuffled within pairs. "
                "Chance: 50%.",
            )
        )
    return tables


def _layer(accuracy: ProbeAccuracy, index: int) -> str:
    if index >= len(accuracy.mean):
        return ""
    mean, deviation = accuracy.mean[index], accuracy.deviation[index]
    return f"{mean:.1%} +- {deviation:.1%} ({accuracy.shuffled[index]:.1%})"


def _shares(
    result: MinimalPairsResult,
    what: str,
    select: Callable[[JudgedPairs], Mapping[str, PairShare]],
) -> Table:
    of_models = {name: select(model) for name, model in result.models.items()}
    first = next(iter(of_models.values()))
    ties = {name: sum(s.ties for s in shares.values()) for name, shares in of_models.items()}
    tied = [
        f"{name}: {count:,} ties, which are not right." for name, count in ties.items() if count
    ]
    return Table(
        header=[what, "pairs", *(f"{name} (95% interval)" for name in of_models)],
        rows=[
            [name, f"{share.count:,}", *(_share(shares[name]) for shares in of_models.values())]
            for name, share in first.items()
        ],
        caption=" ".join(["Right pairs; a guess: 50%.", *tied]),
    )


def _share(share: PairShare) -> str:
    low, high = share.interval
    return f"{share.accuracy:.1%} ({low:.1%} to {high:.1%})"


def _differences(result: MinimalPairsResult) -> Table:
    first = next(iter(result.models))
    names = list(next(iter(result.comparisons.values())).phenomena)
    return Table(
        header=[f"against {first}", *result.comparisons],
        rows=[
            ["all", *(_difference(each.all) for each in result.comparisons.values())],
            *(
                [name, *(_difference(c.phenomena[name]) for c in result.comparisons.values())]
                for name in names
            ),
        ],
        caption="Difference of right pairs, with the p-value of McNemar's exact test on the pairs "
        "that one of the two alone has right; those by phenomenon are adjusted for their number by "
        "Holm's method.",
    )


def _difference(difference: PairDifference) -> str:
    p = difference.p_value
    return f"{difference.accuracy:+.1%} (p {'< 0.001' if p < 0.001 else f'= {p:.3f}'})"
