"""Losses of checkpoints on the same documents, and their differences document by document."""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from layermem_bench.analysis.checkpoints import Checkpoint, load_model
from layermem_bench.data.sources import LocalFiles, open_source
from layermem_bench.evals import Tell
from layermem_bench.evals.perplexity import Perplexity, check_context, longest_context, perplexity
from layermem_bench.results.eval import Difference, EvalOptions, Part, Row, Score, Table
from layermem_bench.results.intervals import ratio_interval

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
        known = (_trained_length(each) or longest[each.name] for each in checkpoints)
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

    def losses_of(checkpoint: Checkpoint) -> Perplexity:
        logger.info("reading texts with %s", checkpoint.name)
        return perplexity(
            load_model(checkpoint, with_head=True),
            checkpoint.tokenizer,
            _read_documents(texts, options),
            context=options.context,
            stride=options.stride,
            batch_size=options.batch_size,
            progress=lambda tokens: tell(f"{checkpoint.name}: {tokens:,} tokens", None, None),
        )

    def measure() -> Part:
        models = {each.name: losses_of(each) for each in opened}
        return Part(
            title="Loss on documents",
            how=_how(models, texts, options),
            tables={LOSS: _LOSSES, "perplexity": _PERPLEXITY},
            rows=tuple(_rows(models)),
        )

    return measure


def _read_documents(texts: Sequence[str], options: EvalOptions) -> Iterator[str]:
    """Yield the documents that are not empty, as training reads them: long ones in parts."""
    open_text = partial(open_source, text_field=options.field, streaming=True)
    documents = (text for source in map(open_text, texts) for text in source if text)
    return itertools.islice(documents, options.limit)


def _rows(models: Mapping[str, Perplexity]) -> Iterator[Row]:
    (_, first), *others = models.items()
    same_tokens = {n: m for n, m in others if m.documents.tokens == first.documents.tokens}
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
        differences={name: _bits_between(model, first) for name, model in others},
    )
    row = partial(Row, unit="tokens", is_comparable=len(same_tokens) == len(others))
    losses = {name: Score(value=model.loss, count=model.tokens) for name, model in models.items()}
    differences = {name: _nats_between(model, first) for name, model in same_tokens.items()}
    yield row(table=LOSS, name="nats per token", scores=losses, differences=differences)
    for i, place in enumerate(first.positions):
        span = f"{place.first}" if place.first == place.last else f"{place.first} to {place.last}"
        yield row(
            table=LOSS,
            name=f"after {span} token{'s' * (place.last != 1)}",
            scores={
                name: Score(value=at.loss, count=at.tokens)
                for name, model in models.items()
                if (at := model.positions[i]).loss is not None
            },
            at=place.first,
        )
    values = {n: Score(value=m.perplexity, count=m.tokens) for n, m in models.items()}
    yield row(table="perplexity", name="perplexity", scores=values)


def _bits_between(ours: Perplexity, theirs: Perplexity) -> Difference:
    per_byte = [
        ([nats / math.log(2) for nats in m.documents.nats], list(map(float, m.documents.bytes)))
        for m in (ours, theirs)
    ]
    value = ours.bits_per_byte - theirs.bits_per_byte
    return Difference(value=value, interval=ratio_interval(per_byte) or ())


def _nats_between(ours: Perplexity, theirs: Perplexity) -> Difference:
    per_token = [(m.documents.nats, list(map(float, m.documents.tokens))) for m in (ours, theirs)]
    return Difference(value=ours.loss - theirs.loss, interval=ratio_interval(per_token) or ())


def _how(models: Mapping[str, Perplexity], texts: Sequence[str], options: EvalOptions) -> str:
    without = ", ".join(name for name, model in models.items() if model.predecessor is None)
    not_predicted = (
        f" {without}: no such token, so the first token of a document is not predicted and its "
        "bytes are not counted."
    )
    documents = len(next(iter(models.values())).documents.tokens)
    return (
        f"{documents:,} documents of {', '.join(texts)}, each by itself, in windows of "
        f"{options.context} tokens that are {options.stride} apart; each token is predicted once. "
        "Before a document stands the tokenizer's BOS token, or EOS where it has no BOS."
        f"{not_predicted if without else ''} Where a tokenizer has unknown tokens, its bits per "
        "byte are of less than the text."
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


def _trained_length(checkpoint: Checkpoint) -> int | None:
    """Return the length of the sequences that a run on text was trained on."""
    run = checkpoint.run
    return None if run is None or run.task.name is not None else run.data.block_size
