"""Measure checkpoints on the same documents, compare them, and write perplexity.json.

Everything that may be refused is checked before the weights of a model are loaded. One model after
the other is loaded, and the texts are read anew for each.

It does not know: windows, losses, tables, pages.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from layermem.data.sources import LocalFiles, open_source
from layermem.evals.perplexity import check_context, longest_context, perplexity
from layermem.experiments.analyze_checkpoints import Checkpoint, load_model, open_checkpoints
from layermem.experiments.checkpoint_arms import arms_of
from layermem.intervals import ratio_interval
from layermem.results.files import to_json
from layermem.results.perplexity import (
    Perplexity,
    PerplexityDifference,
    PerplexityOptions,
    PerplexityResult,
)
from layermem.runs import create_folder, write_atomically

logger = logging.getLogger(__name__)


def measure_perplexity(
    checkpoints: Sequence[str],
    options: PerplexityOptions,
    out: Path,
    *,
    command: str = "",
    progress: Callable[[str, int], None] | None = None,
) -> PerplexityResult:
    """Measure checkpoints on documents; return the result, written to perplexity.json in ``out``.

    A checkpoint is a run folder, the folder of a saved model or a hub name. ``progress`` is called
    with the name of the model and the number of tokens predicted so far.
    """
    opened = open_checkpoints(checkpoints, one_vocabulary=False)
    options = _resolve(options, opened)
    if next(read_documents(options), None) is None:
        raise ValueError(f"there is no text in {', '.join(options.texts)}")
    arms, models = arms_of(opened), dict[str, Perplexity]()
    for checkpoint in opened:
        logger.info("reading texts with %s", checkpoint.name)
        models[checkpoint.name] = _measure(checkpoint, options, progress)
    first, *others = models.items()
    result = PerplexityResult(
        command=command,
        options=options,
        models=models,
        differences={name: compare(other, first[1]) for name, other in others},
        arms=arms,
    )
    create_folder(out)
    write_atomically(out / "perplexity.json", to_json(result))
    return result


def read_documents(options: PerplexityOptions) -> Iterator[str]:
    """Yield the documents that are not empty, as training reads them.

    A document of more than a million characters comes in parts, each of which counts as one.
    """
    open_text = partial(open_source, text_field=options.field, streaming=True)
    documents = (text for source in map(open_text, options.texts) for text in source if text)
    return itertools.islice(documents, options.max_documents)


def compare(ours: Perplexity, theirs: Perplexity) -> PerplexityDifference:
    """Return how a model differs from another on the same documents."""
    of_bits = [_columns(model, model.documents.bytes, math.log(2)) for model in (ours, theirs)]
    same_tokens = ours.documents.tokens == theirs.documents.tokens
    of_loss = [_columns(model, model.documents.tokens) for model in (ours, theirs)]
    return PerplexityDifference(
        bits_per_byte=ours.bits_per_byte - theirs.bits_per_byte,
        bits_interval=_interval(of_bits),
        loss=ours.loss - theirs.loss if same_tokens else None,
        loss_interval=_interval(of_loss) if same_tokens else None,
    )


def _interval(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, ...]:
    """Return the interval over documents; of a single document there is none."""
    return ratio_interval(pairs) or ()


def _columns(
    model: Perplexity, sizes: Sequence[int], unit: float = 1.0
) -> tuple[list[float], list[float]]:
    """Return the losses of the documents in a unit of so many nats, and their sizes."""
    return [nats / unit for nats in model.documents.nats], [float(size) for size in sizes]


def _resolve(options: PerplexityOptions, checkpoints: Sequence[Checkpoint]) -> PerplexityOptions:
    """Return the options with context and stride, which are the same for all checkpoints."""
    if not options.texts:
        raise ValueError("name texts to read: --texts FILE ...")
    if options.max_documents is not None and options.max_documents < 1:
        raise ValueError(f"--max-documents must be at least 1, got {options.max_documents}")
    _check_distinct(options)
    longest = {each.name: _longest(each) for each in checkpoints}
    context = options.context
    if context is None:
        known = [
            _trained_length(each) or length
            for each, length in zip(checkpoints, longest.values(), strict=True)
        ]
        lengths = [length for length in known if length is not None]
        if not lengths:
            raise ValueError(
                f"{', '.join(longest)} do not say how long a sequence may be; give a --context"
            )
        context = min(lengths)
    stride = options.stride
    for name, length in longest.items():
        _, stride = check_context(context, options.stride, length, name)
    return replace(options, context=context, stride=stride)


def _check_distinct(options: PerplexityOptions) -> None:
    """Raise if a text is read twice: its documents would count twice, and narrow the intervals."""
    seen: dict[object, str] = {}
    for text in options.texts:
        source = open_source(text, text_field=options.field, streaming=True)
        files = source.paths if isinstance(source, LocalFiles) else ()
        places: list[object] = [path.resolve() for path in files]
        for place in places or [text]:
            if place in seen:
                raise ValueError(
                    f"{place} is read twice, by --texts {seen[place]} and {text}, so that its "
                    "documents would count twice: name it once"
                )
            seen[place] = text


def _longest(checkpoint: Checkpoint) -> int | None:
    return longest_context(checkpoint.load_config())


def _trained_length(checkpoint: Checkpoint) -> int | None:
    """Return the length of the sequences that a run on text was trained on."""
    run = checkpoint.run
    return None if run is None or run.task.name is not None else run.data.block_size


def _measure(
    checkpoint: Checkpoint,
    options: PerplexityOptions,
    progress: Callable[[str, int], None] | None,
) -> Perplexity:
    def report(tokens: int) -> None:
        if progress is not None:
            progress(checkpoint.name, tokens)

    return perplexity(
        load_model(checkpoint, with_head=True),
        checkpoint.tokenizer,
        read_documents(options),
        context=options.context,
        stride=options.stride,
        batch_size=options.batch_size,
        progress=report,
    )
