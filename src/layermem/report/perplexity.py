"""The page about perplexity, and its tables on the screen, from a ``PerplexityResult`` alone.

It does not know: torch, models, how anything was computed.
"""

from layermem.report import figures
from layermem.report.over_seeds import over_seeds_tables
from layermem.report.page import Figure, Page, Section, Table
from layermem.results.perplexity import (
    Perplexity,
    PerplexityDifference,
    PerplexityResult,
    PositionLoss,
)


def build(result: PerplexityResult) -> Page:
    """Return the page."""
    return Page(
        title=f"Perplexity of {' and '.join(result.models)}",
        lead="Loss on the same documents: per token, per byte, and by the number of tokens before "
        "the predicted one.",
        sections=[section(result), Section(title="Again", commands=[result.command])],
    )


def section(result: PerplexityResult, title_suffix: str = "") -> Section:
    """Return the section of a page that shows the result."""
    curves = {
        name: (
            [float(place.first) for place in model.positions if place.loss is not None],
            [place.loss for place in model.positions if place.loss is not None],
        )
        for name, model in result.models.items()
    }
    across = "tokens before the predicted one, at least"
    return Section(
        title=f"Perplexity{title_suffix}",
        paragraphs=[_how(result)],
        tables=tables(result),
        figures=[
            Figure(
                svg=figures.curves(curves, across=across, up="nats per token"),
                caption="Loss by position in the window. Late positions are those of long "
                "documents alone.",
            )
        ],
    )


def tables(result: PerplexityResult) -> list[Table]:
    """Return the table of losses, that of differences if there are any, and that by position."""
    return [
        _losses(result),
        *([_differences(result)] if result.differences else []),
        _positions(result),
        *over_seeds(result),
    ]


def over_seeds(result: PerplexityResult) -> list[Table]:
    """Return the table of means over seeds, if models are runs of several."""
    models = result.models
    rows = {"bits per byte": {name: model.bits_per_byte for name, model in models.items()}}
    same_tokens = len({model.tokens for model in models.values()}) == 1
    if same_tokens:
        rows["nats per token"] = {name: model.loss for name, model in models.items()}
        for i, place in enumerate(next(iter(models.values())).positions):
            losses = {name: model.positions[i].loss for name, model in models.items()}
            known = {name: loss for name, loss in losses.items() if loss is not None}
            if len(known) == len(models):
                rows[f"after {_span(place)} token{'s' * (place.last != 1)}"] = known
    return over_seeds_tables("loss", rows, result.arms, share=False)


def _losses(result: PerplexityResult) -> Table:
    unknown = [
        f" {name} has {model.unknown_tokens:,} unknown tokens: its bits per byte are of less than "
        "the text."
        for name, model in result.models.items()
        if model.unknown_tokens
    ]
    return Table(
        header=["model", "loss (nats per token)", "perplexity", "bits per byte", "tokens", "bytes"],
        rows=[
            [
                name,
                f"{model.loss:.4f}",
                f"{model.perplexity:,.3f}",
                f"{model.bits_per_byte:.4f}",
                f"{model.tokens:,}",
                f"{model.bytes:,}",
            ]
            for name, model in result.models.items()
        ],
        caption=f"Loss and perplexity compare models of one tokenizer; bits per byte, any."
        f"{''.join(unknown)}",
    )


def _differences(result: PerplexityResult) -> Table:
    first = next(iter(result.models))
    return Table(
        header=[f"against {first}", "bits per byte", "nats per token"],
        rows=[[name, *_difference(difference)] for name, difference in result.differences.items()],
        caption="Below zero: lower loss than the first. 95% intervals by the jackknife "
        "over documents, the same for both, and not over seeds of training.",
    )


def _difference(difference: PerplexityDifference) -> list[str]:
    loss = "other tokens"
    if difference.loss is not None:
        loss = _with_interval(difference.loss, difference.loss_interval or ())
    return [_with_interval(difference.bits_per_byte, difference.bits_interval), loss]


def _with_interval(value: float, interval: tuple[float, ...]) -> str:
    if not interval:
        return f"{value:+.4f} (one document)"
    low, high = interval
    return f"{value:+.4f} ({low:+.4f} to {high:+.4f})"


def _positions(result: PerplexityResult) -> Table:
    models = list(result.models.values())
    return Table(
        header=["tokens before", *result.models, "tokens"],
        rows=[
            [
                _span(place),
                *(_loss_at(model, i) for model in models),
                " / ".join(dict.fromkeys(f"{m.positions[i].tokens:,}" for m in models)),
            ]
            for i, place in enumerate(models[0].positions)
        ],
        caption="Loss (nats per token) by the number of tokens before the predicted one in its "
        "window.",
    )


def _span(place: PositionLoss) -> str:
    return f"{place.first}" if place.first == place.last else f"{place.first} to {place.last}"


def _loss_at(model: Perplexity, index: int) -> str:
    loss = model.positions[index].loss
    return "" if loss is None else f"{loss:.4f}"


def _how(result: PerplexityResult) -> str:
    options, first = result.options, next(iter(result.models.values()))
    without = [name for name, model in result.models.items() if model.predecessor is None]
    not_predicted = (
        f" {', '.join(without)}: no such token, so the first token of a document is not predicted "
        "and its bytes are not counted."
        if without
        else ""
    )
    return (
        f"{len(first.documents.tokens):,} documents of {', '.join(options.texts)}, each by itself, "
        f"in windows of {options.context} tokens that are {options.stride} apart; each token is "
        "predicted once. Before a document stands the tokenizer's BOS token, or EOS where it has "
        f"no BOS.{not_predicted}"
    )
