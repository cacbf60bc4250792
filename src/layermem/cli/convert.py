"""`layermem models convert`: a checkpoint of another layout becomes a saved model."""

import logging
from dataclasses import dataclass
from pathlib import Path

import tyro

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Convert a LLaMA, our plain decoder, a checkpoint of LIMe's released code, or one of llama2.c.

    Which of these SOURCE is, is told by its files. The new model computes what the source
    computes.
    """

    source: tyro.conf.Positional[str]
    """Folder or hub name of a LLaMA of transformers or of our plain decoder, folder of LIMe's
    released code, or a file of llama2.c (legacy layout) or its folder."""
    target: tyro.conf.Positional[Path]
    """The new folder: config, weights as safetensors, and the tokenizer."""
    variant: str | None = None
    """What a LLaMA becomes (lime, plain or another of `layermem list variants`), with its own
    weights at their start without effect, or llama: transformers' LLaMA, of our plain decoder or
    of llama2.c's file; None: lime, but of llama2.c's llama."""
    options: tuple[str, ...] = ()
    """Further fields of the variant's config, each NAME=VALUE (router=last router_window=4)."""
    tokenizer: str | None = None
    """Folder of the tokenizer, or llama2.c's tokenizer.bin; None: that of the source."""
    force: bool = False
    """Replace TARGET if it is a saved model."""


def convert(options: Convert, command: str) -> None:
    """Convert a checkpoint, and say what was found and written."""
    from transformers.utils import logging as transformers_logging

    from layermem.convert.converting import convert as convert_checkpoint
    from layermem.named_options import check_options, parse_options

    transformers_logging.disable_progress_bar()
    check_options("convert", options.options)
    written = convert_checkpoint(
        options.source,
        options.target,
        variant=options.variant,
        fields=parse_options(options.options),
        tokenizer=options.tokenizer,
        force=options.force,
    )
    logger.info(
        "wrote %s: %s, %s parameters, %s",
        written.folder,
        written.model_class,
        f"{written.parameters:,}",
        "with its tokenizer" if written.has_tokenizer else "without a tokenizer (--tokenizer)",
    )
