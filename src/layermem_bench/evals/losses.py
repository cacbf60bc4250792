"""Losses of checkpoints on the same documents, and their differences document by document."""

import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from layermem_bench.analysis.ablation import weight_groups, without
from layermem_bench.analysis.checkpoints import Checkpoint, load_model
from layermem_bench.analysis.earlier_stages import has_learnt, read_lineage
from layermem_bench.data.document_hashes import Sketch, hash_text
from layermem_bench.data.sources import LocalFiles, open_source
from layermem_bench.evals import Tell, adjust
from layermem_bench.evals.perplexity import (
    Perplexity,
    PositionLoss,
    check_context,
    longest_context,
    perplexity,
)
from layermem_bench.results.eval import Difference, EvalOptions, Part, Row, Score, Table
from layermem_bench.results.intervals import p_value, ratio_interval

logger = logging.getLogger(__name__)

LOSS = "loss"
"""Name of the table."""
_LOSSES = Table(
    better="lower",
    is_share=False,
    across="tokens before the predicted one, at least",
    caption="Loss per token compares models of one tokenizer; bits per byte, any. The rows by the "
    "number of tokens before the predicted one in its window are nats per token; late ones are of "
    "long documents alone. Differences: 95% intervals by the jackknife over documents, the same "
    "for both, and not over seeds of training; p-values of the same, adjusted by Holm's method for "
    "the models of a row.",
)
_ABLATED = "loss without weights"
_WITHOUT = Table(
    better="lower",
    is_share=False,
    caption="Nats per token with some weights of all routers at 0, and the others as trained: what "
    "the model has come to rely on, not what a model trained without them would lose. A model "
    "that has no such weights has its own loss.",
)
_PERPLEXITY = Table(better="lower", is_share=False, caption="Exponential of the loss per token.")


def settle_windows(
    checkpoints: Sequence[Checkpoint], texts: Sequence[str], options: EvalOptions
) -> EvalOptions:
    """Return the options with context and stride, which are the same for all checkpoints.

    Texts that cannot be read are refused, and those without anything in them.
    """
    _check_distinct(texts, options.field)
    longest = {each.name: longest_context(each.load_config()) for each in checkpoints}
    context, stride = options.context, options.stride
    if context is None:
        known = (each.text.block_size if each.text else longest[each.name] for each in checkpoints)
        context = min((length for length in known if length is not None), default=None)
    if context is None:
        raise ValueError(
            f"{', '.join(longest)} do not say how long a sequence may be; give a --context"
        )
    for name, length in longest.items():
        _, stride = check_context(context, options.stride, length, name)
    if next(_read_documents(texts, options), None) is None:
        raise ValueError(f"there is no text in {', '.join(texts)}")
    return replace(options, context=context, stride=stride)


def prepare_losses(
    opened: Sequence[Checkpoint], texts: Sequence[str], options: EvalOptions, out: Path, tell: Tell
) -> Callable[[], Part]:
    """Return what measures the losses, by options that ``settle_windows`` returned."""

    # Read before any model is measured: a damaged lineage is an error.
    learnt = "".join(f" {sentence}" for sentence in _trained_on(opened, texts, options))
    if learnt:
        logger.warning("%s", learnt.strip())

    def losses_of(checkpoint: Checkpoint) -> dict[str, Perplexity]:
        """Return the losses of the whole model (""), and without each group of weights."""
        logger.info("reading texts with %s", checkpoint.name)
        model = load_model(checkpoint, with_head=True)
        groups = weight_groups(model) if options.ablate else ()

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
        for group in groups:
            with without(model, group):
                losses[group] = read(f"{checkpoint.name}, {group} left out")
        return losses

    def measure() -> Part:
        measured = {each.name: losses_of(each) for each in opened}
        models = {name: losses[""] for name, losses in measured.items()}
        ablated = tuple(_ablated_rows(measured))
        tables = {LOSS: _LOSSES, "perplexity": _PERPLEXITY}
        how = _how(models, texts, options) + learnt
        if ablated:
            tables[_ABLATED] = _WITHOUT
        elif options.ablate:
            how += " No model has routers whose weights could be left out."
        return Part(
            title="Loss on documents",
            how=how,
            tables=tables,
            rows=(*_rows(models), *ablated),
        )

    return measure


def _read_documents(texts: Sequence[str], options: EvalOptions) -> Iterator[str]:
    """Yield the documents that are not empty, as training reads them: long ones in parts; of each
    text as many as the limit says. Copies would count as further documents, and are left out."""
    seen: set[int] = set()

    def distinct(documents: Iterable[str]) -> Iterator[str]:
        for document in documents:
            digest = hash_text(document)
            if document and digest not in seen:
                seen.add(digest)
                yield document

    for text in texts:
        source = open_source(text, text_field=options.field, streaming=True)
        yield from itertools.islice(distinct(source), options.limit)


def _rows(models: Mapping[str, Perplexity]) -> Iterator[Row]:
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
                counts={
                    name: count
                    for name, count in (
                        ("unknown tokens", model.unknown_tokens),
                        ("documents that the tokens do not spell", model.changed_documents),
                    )
                    if count
                },
            )
            for name, model in models.items()
        },
        differences=adjust({n: _bits_between(model, first) for n, model in same_bytes.items()}),
    )
    row = partial(Row, unit="tokens", is_comparable=len(same_tokens) == len(others))
    losses = {name: Score(value=model.loss, count=model.tokens) for name, model in models.items()}
    differences = adjust({n: _nats_between(model, first) for n, model in same_tokens.items()})
    yield row(table=LOSS, name="nats per token", scores=losses, differences=differences)
    for i, place in enumerate(first.positions):
        after = f"after {_span(place)} token{'s' * (place.last != 1)}"
        at_place = {name: m.positions[i] for name, m in models.items()}
        yield row(table=LOSS, name=after, scores=_scores(at_place), at=place.first)
    values = {n: Score(value=m.perplexity, count=m.tokens) for n, m in models.items()}
    yield row(table="perplexity", name="perplexity", scores=values)


def _ablated_rows(measured: Mapping[str, Mapping[str, Perplexity]]) -> Iterator[Row]:
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
    return (one.ids_digest, one.documents.tokens) == (other.ids_digest, other.documents.tokens)


def _are_same_bytes(one: Perplexity, other: Perplexity) -> bool:
    """Whether two models predicted the same bytes of each document, all as they stand there."""
    whole = not any(each.unknown_tokens or each.changed_documents for each in (one, other))
    return whole and one.documents.bytes == other.documents.bytes


def _span(place: PositionLoss) -> str:
    return f"{place.first}" if place.first == place.last else f"{place.first} to {place.last}"


def _scores(spans: Mapping[str, PositionLoss]) -> dict[str, Score]:
    return {
        name: Score(value=span.loss, count=span.tokens)
        for name, span in spans.items()
        if span.loss is not None
    }


def _bits_between(ours: Perplexity, theirs: Perplexity) -> Difference:
    per_byte = [
        ([nats / math.log(2) for nats in m.documents.nats], list(map(float, m.documents.bytes)))
        for m in (ours, theirs)
    ]
    return _difference(ours.bits_per_byte - theirs.bits_per_byte, per_byte)


def _nats_between(ours: Perplexity, theirs: Perplexity) -> Difference:
    per_token = [(m.documents.nats, list(map(float, m.documents.tokens))) for m in (ours, theirs)]
    return _difference(ours.loss - theirs.loss, per_token)


def _difference(
    value: float, pairs: Sequence[tuple[Sequence[float], Sequence[float]]]
) -> Difference:
    interval = ratio_interval(pairs)
    if interval is None:
        return Difference(value=value)
    return Difference(value=value, interval=interval.ends, p=p_value(interval))


def _how(models: Mapping[str, Perplexity], texts: Sequence[str], options: EvalOptions) -> str:
    without = ", ".join(name for name, model in models.items() if model.predecessor is None)
    not_predicted = (
        f" {without}: no such token, or none that was learnt (of runs with "
        "data.isolate_documents), so the first token of a document is not predicted and its bytes "
        "are not counted."
    )
    documents = len(next(iter(models.values())).documents.tokens)
    return (
        f"{documents:,} different documents of {', '.join(texts)}, each by itself, in windows of "
        f"{options.context} tokens that are {options.stride} apart; each token is predicted once. "
        "Before a document stands the token that stands there in training: of runs on text from "
        "new weights the end token, else the tokenizer's BOS token, or EOS where it has no BOS."
        f"{not_predicted if without else ''} Where a tokenizer has unknown tokens, or "
        "tokens that do not spell the text (spaces or capitals are lost), its bits per byte are of "
        "less than the text and compare with no other tokenizer's."
    )


def _trained_on(
    opened: Sequence[Checkpoint], texts: Sequence[str], options: EvalOptions
) -> Iterator[str]:
    """Yield a sentence for each text that some of the models were trained on."""
    lineages = {each.name: read_lineage(each.location) for each in opened}
    # Of models of others nothing is known, and no text is read for it.
    for text in texts if any(lineage.stages for lineage in lineages.values()) else ():
        documents = Sketch.of(_read_documents([text], options))
        models = [name for name, lineage in lineages.items() if has_learnt(lineage, documents)]
        if models:
            yield (
                f"{', '.join(models)} learnt from {text}: of documents that a model was trained "
                "on, its loss is lower than of others. Text that it has not seen says more."
            )


def _check_distinct(texts: Sequence[str], text_field: str) -> None:
    """Raise if a text is read twice: its documents would count twice, and narrow the intervals."""
    seen: dict[str, str] = {}
    for text in texts:
        source = open_source(text, text_field=text_field, streaming=True)
        files = source.paths if isinstance(source, LocalFiles) else ()
        for place in [str(path.resolve()) for path in files] or [text]:
            if place in seen:
                raise ValueError(
                    f"{place} is read twice, by ppl={seen[place]} and ppl={text}, so that its "
                    "documents would count twice: name it once"
                )
            seen[place] = text
