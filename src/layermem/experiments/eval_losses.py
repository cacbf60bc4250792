"""Losses of checkpoints on the same documents, and their differences document by document.

One model after the other is loaded, and the texts are read anew for each.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from layermem.analysis.checkpoints import Checkpoint, load_model
from layermem.data.sources import LocalFiles, open_source
from layermem.evals.perplexity import (
    Perplexity,
    PositionLoss,
    check_context,
    longest_context,
    perplexity,
)
from layermem.intervals import ratio_interval
from layermem.results.eval import Difference, EvalOptions, Part, Row, Score, Table

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
    "for both, and not over seeds of training.",
)
_PERPLEXITY = Table(better="lower", is_share=False, caption="Exponential of the loss per token.")


def check_texts(
    texts: Sequence[str], options: EvalOptions, checkpoints: Sequence[Checkpoint]
) -> EvalOptions:
    """Return the options with context and stride, which are the same for all checkpoints.

    Texts that cannot be read are refused, and those without anything in them.
    """
    _check_distinct(texts, options.field)
    longest = {each.name: longest_context(each.load_config()) for each in checkpoints}
    context = options.context
    if context is None:
        known = [_trained_length(each) or longest[each.name] for each in checkpoints]
        lengths = [length for length in known if length is not None]
        if not lengths:
            raise ValueError(
                f"{', '.join(longest)} do not say how long a sequence may be; give a --context"
            )
        context = min(lengths)
    stride = options.stride
    for name, length in longest.items():
        _, stride = check_context(context, options.stride, length, name)
    if next(read_documents(texts, options), None) is None:
        raise ValueError(f"there is no text in {', '.join(texts)}")
    return replace(options, context=context, stride=stride)


def read_documents(texts: Sequence[str], options: EvalOptions) -> Iterator[str]:
    """Yield the documents that are not empty, as training reads them.

    A document of more than a million characters comes in parts, each of which counts as one.
    """
    open_text = partial(open_source, text_field=options.field, streaming=True)
    documents = (text for source in map(open_text, texts) for text in source if text)
    return itertools.islice(documents, options.limit)


def measure_losses(
    checkpoints: Sequence[Checkpoint],
    texts: Sequence[str],
    options: EvalOptions,
    tell: Callable[[str, int | None, int | None], None],
) -> Part:
    """Return the losses of checkpoints, by the options that ``check_texts`` returned."""

    def measure(checkpoint: Checkpoint) -> Perplexity:
        logger.info("reading texts with %s", checkpoint.name)
        return perplexity(
            load_model(checkpoint, with_head=True),
            checkpoint.tokenizer,
            read_documents(texts, options),
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            progress=lambda tokens: tell(f"{checkpoint.name}: {tokens:,} tokens", None, None),
        )

    models = {each.name: measure(each) for each in checkpoints}
    return Part(
        title="Loss on documents",
        how=_how(models, texts, options),
        tables={LOSS: _LOSSES, "perplexity": _PERPLEXITY},
        rows=tuple(_rows(models)),
    )


def compare(ours: Perplexity, theirs: Perplexity) -> tuple[Difference, Difference | None]:
    """Return how a model differs from another on the same documents: bits per byte, nats per token.

    The latter is None where the two have different tokens.
    """
    of_bits = [_columns(model, model.documents.bytes, math.log(2)) for model in (ours, theirs)]
    bits = Difference(
        value=ours.bits_per_byte - theirs.bits_per_byte, interval=ratio_interval(of_bits) or ()
    )
    if ours.documents.tokens != theirs.documents.tokens:
        return bits, None
    of_loss = [_columns(model, model.documents.tokens) for model in (ours, theirs)]
    return bits, Difference(value=ours.loss - theirs.loss, interval=ratio_interval(of_loss) or ())


def _columns(
    model: Perplexity, sizes: Sequence[int], unit: float = 1.0
) -> tuple[list[float], list[float]]:
    """Return the losses of the documents in a unit of so many nats, and their sizes."""
    return [nats / unit for nats in model.documents.nats], [float(size) for size in sizes]


def _rows(models: dict[str, Perplexity]) -> Iterator[Row]:
    (_, first), *others = models.items()
    bits, losses = dict[str, Difference](), dict[str, Difference]()
    for name, model in others:
        bits[name], of_loss = compare(model, first)
        if of_loss is not None:
            losses[name] = of_loss
    yield Row(
        table=LOSS,
        name="bits per byte",
        unit="bytes",
        scores={
            name: Score(
                value=model.bits_per_byte,
                count=model.bytes,
                counts={"unknown tokens": n} if (n := model.unknown_tokens) else {},
            )
            for name, model in models.items()
        },
        differences=bits,
    )
    same_tokens = len({model.documents.tokens for model in models.values()}) == 1
    of_tokens = partial(Row, unit="tokens", is_comparable=same_tokens)
    values = {name: Score(value=model.loss, count=model.tokens) for name, model in models.items()}
    yield of_tokens(table=LOSS, name="nats per token", scores=values, differences=losses)
    for i, place in enumerate(first.positions):
        at = {name: model.positions[i] for name, model in models.items()}
        scores = {
            name: Score(value=each.loss, count=each.tokens)
            for name, each in at.items()
            if each.loss is not None
        }
        yield of_tokens(table=LOSS, name=_span(place), scores=scores, at=place.first)
    values = {n: Score(value=m.perplexity, count=m.tokens) for n, m in models.items()}
    yield of_tokens(table="perplexity", name="perplexity", scores=values)


def _span(place: PositionLoss) -> str:
    span = f"{place.first}" if place.first == place.last else f"{place.first} to {place.last}"
    return f"after {span} token{'s' * (place.last != 1)}"


def _how(models: dict[str, Perplexity], texts: Sequence[str], options: EvalOptions) -> str:
    without = [name for name, model in models.items() if model.predecessor is None]
    not_predicted = (
        f" {', '.join(without)}: no such token, so the first token of a document is not predicted "
        "and its bytes are not counted."
        if without
        else ""
    )
    documents = len(next(iter(models.values())).documents.tokens)
    return (
        f"{documents:,} documents of {', '.join(texts)}, each by itself, in windows of "
        f"{options.context} tokens that are {options.stride} apart; each token is predicted once. "
        "Before a document stands the tokenizer's BOS token, or EOS where it has no BOS."
        f"{not_predicted} Where a tokenizer has unknown tokens, its bits per byte are of less than "
        "the text."
    )


def _check_distinct(texts: Sequence[str], text_field: str) -> None:
    """Raise if a text is read twice: its documents would count twice, and narrow the intervals."""
    seen: dict[object, str] = {}
    for text in texts:
        source = open_source(text, text_field=text_field, streaming=True)
        files = source.paths if isinstance(source, LocalFiles) else ()
        places: list[object] = [path.resolve() for path in files]
        for place in places or [text]:
            if place in seen:
                raise ValueError(
                    f"{place} is read twice, by ppl={seen[place]} and ppl={text}, so that its "
                    "documents would count twice: name it once"
                )
            seen[place] = text


def _trained_length(checkpoint: Checkpoint) -> int | None:
    """Return the length of the sequences that a run on text was trained on."""
    run = checkpoint.run
    return None if run is None or run.task.name is not None else run.data.block_size
