"""Losses of checkpoints on the same documents, and their differences document by document."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from layermem_bench.analysis.routing import weight_groups, without
from layermem_bench.config.run import Data
from layermem_bench.evals.perplexity import Perplexity, choose_windows, perplexity
from layermem_bench.evals.result import (
    Difference,
    EvalOptions,
    Part,
    Row,
    Score,
    Table,
    Tell,
    adjust,
)
from layermem_bench.run.trained_models import Checkpoint, load_model
from layermem_bench.statistics import p_value, ratio_interval
from layermem_bench.text.blocks import hash_text
from layermem_bench.text.sources import open_source

LOSS = "loss"
"""Name of the table."""
_ABLATED = "loss without weights"
_TABLES = {
    LOSS: Table(
        better="lower",
        is_share=False,
        caption="Loss per token compares models of one tokenizer; bits per byte, any. The rows by "
        "the number of tokens before the predicted one in its window are nats per token; late ones "
        "are of long documents alone. Perplexity is the exponential of nats per token. "
        "Differences: 95% intervals by the jackknife over documents, the same for both, and not "
        "over seeds of training; p-values of the same, adjusted by Holm's method for the models of "
        "a row.",
    ),
    _ABLATED: Table(
        better="lower",
        is_share=False,
        caption="Nats per token with some weights of all routers at 0, and the others as trained: "
        "what the model has come to rely on, not what a model trained without them would lose. A "
        "model that has no such weights has its own loss.",
    ),
}


def measure_losses(
    opened: Sequence[Checkpoint], texts: Sequence[str], options: EvalOptions, tell: Tell
) -> Part:
    """Measure losses in windows that are the same for all checkpoints."""
    blocks = min((each.text.block_size for each in opened if each.text), default=None)
    configs = [each.load_config() for each in opened]
    context, stride = choose_windows(configs, options.context, options.stride, blocks)
    options = replace(options, context=context, stride=stride)
    measured = {each.name: _losses_of(each, texts, options, tell) for each in opened}
    wholes = {name: losses[""] for name, losses in measured.items()}
    documents = len(next(iter(wholes.values())).nats)
    rows = (*_rows(wholes), *_ablated(measured))
    return Part(
        title="Loss on documents",
        how=f"{documents:,} different documents of {', '.join(texts)}, each by itself, in windows "
        f"of {context} tokens that are {stride} apart; each token is predicted once. Before a "
        "document stands the token that stands there in training (of runs on text from new "
        "weights the end token, else BOS, or EOS without BOS); where there is none, its first "
        "token is not predicted. Bits per byte of a tokenizer with unknown tokens are of less than "
        "the text.",
        tables={row.table: _TABLES[row.table] for row in rows},
        rows=rows,
    )


def _losses_of(
    checkpoint: Checkpoint, texts: Sequence[str], options: EvalOptions, tell: Tell
) -> dict[str, Perplexity]:
    """Return the losses of the whole model (""), and without each group of weights."""
    model = load_model(checkpoint, with_head=True)

    def read(what: str) -> Perplexity:
        return perplexity(
            model,
            checkpoint.tokenizer,
            _read_documents(texts, options),
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            predecessor=checkpoint.predecessor,
            progress=lambda tokens: tell(f"{what}: {tokens:,} tokens", None, None),
        )

    losses = {"": read(checkpoint.name)}
    for group in weight_groups(model) if options.ablate else ():
        with without(model, group):
            losses[group] = read(f"{checkpoint.name}, {group} left out")
    return losses


def _read_documents(texts: Sequence[str], options: EvalOptions) -> Iterator[str]:
    """Yield different documents as training reads them, of each text as many as the limit says."""
    seen: set[int] = set()

    def distinct(documents: Iterable[str]) -> Iterator[str]:
        for document in documents:
            digest = hash_text(document)
            if document and digest not in seen:
                seen.add(digest)
                yield document

    for text in texts:
        source = open_source(text, Data(text_field=options.field, streaming=True))
        yield from itertools.islice(distinct(source), options.limit)


def _rows(models: Mapping[str, Perplexity]) -> Iterator[Row]:
    """Yield losses by byte, by token and by position, and perplexities."""
    (_, first), *others = models.items()
    same_tokens = {n: m for n, m in others if _are_same_tokens(m, first)}
    same_bytes = {n: m for n, m in others if n in same_tokens or _are_same_bytes(m, first)}
    yield Row(
        table=LOSS,
        name="bits per byte",
        unit="bytes",
        is_comparable=len(same_bytes) == len(others),
        scores={
            name: Score(
                value=model.bits_per_byte,
                count=model.bytes,
                counts={"unknown tokens": model.unknown_tokens} if model.unknown_tokens else {},
            )
            for name, model in models.items()
        },
        differences=adjust({n: _between(model, first, "byte") for n, model in same_bytes.items()}),
    )
    row = partial(Row, unit="tokens", is_comparable=len(same_tokens) == len(others))
    losses = {name: Score(value=model.loss, count=model.tokens) for name, model in models.items()}
    differences = adjust({n: _between(model, first, "token") for n, model in same_tokens.items()})
    yield row(table=LOSS, name="nats per token", scores=losses, differences=differences)
    for at, to in sorted({span for model in models.values() for span in model.positions}):
        of_span = {n: m.positions[at, to] for n, m in models.items() if (at, to) in m.positions}
        scores = {n: Score(value=loss, count=tokens) for n, (tokens, loss) in of_span.items()}
        span = f"{at}" if at == to else f"{at} to {to}"
        yield row(table=LOSS, name=f"after {span} token{'s' * (to > 1)}", scores=scores)
    values = {n: Score(value=m.perplexity, count=m.tokens) for n, m in models.items()}
    yield row(table=LOSS, name="perplexity", scores=values, is_comparable=False)


def _ablated(measured: Mapping[str, Mapping[str, Perplexity]]) -> Iterator[Row]:
    """Yield the losses without each group of weights; of a model that lacks the group its own."""
    groups = dict.fromkeys(group for losses in measured.values() for group in losses)
    wholes = [losses[""] for losses in measured.values()]
    for group in groups if len(groups) > 1 else ():
        of_group = {name: losses.get(group, losses[""]) for name, losses in measured.items()}
        yield Row(
            table=_ABLATED,
            name=group or "nothing left out",
            scores={n: Score(value=m.loss, count=m.tokens) for n, m in of_group.items()},
            unit="tokens",
            is_comparable=all(_are_same_tokens(each, wholes[0]) for each in wholes),
        )


def _are_same_tokens(one: Perplexity, other: Perplexity) -> bool:
    """Whether two models predicted the same ids, each of them from as many tokens."""
    return (one.digest.digest(), one.counts) == (other.digest.digest(), other.counts)


def _are_same_bytes(one: Perplexity, other: Perplexity) -> bool:
    """Whether two models predicted the same bytes of each document, all of which have tokens."""
    are_known = not (one.unknown_tokens or other.unknown_tokens)
    return are_known and one.sizes == other.sizes


def _between(ours: Perplexity, theirs: Perplexity, unit: Literal["token", "byte"]) -> Difference:
    """Return the difference in nats per token, or in bits per byte."""
    if unit == "token":
        value, pairs = ours.loss - theirs.loss, [(m.nats, m.counts) for m in (ours, theirs)]
    else:
        value = ours.bits_per_byte - theirs.bits_per_byte
        pairs = [([nats / math.log(2) for nats in m.nats], m.sizes) for m in (ours, theirs)]
    interval = ratio_interval(pairs)
    if interval is None:
        return Difference(value=value)
    return Difference(value=value, interval=interval.ends, p=p_value(interval))
