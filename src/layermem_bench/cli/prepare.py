"""`layermem prepare`: tokens of a text made beforehand, by several tasks.

layermem prepare small-30m --tasks 8                what the preset reads, or part of it
layermem prepare --data.source corpus/ --tasks 8
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from layermem_base.number_ranges import at_least, check_numbers, number
from layermem_bench.cli.options import read_options
from layermem_bench.config.run import Data, Run
from layermem_bench.presets import get_preset

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Tokenize a text for training, by several tasks of datatrove. `layermem train` with the same
    preset and --data options finds the tokens; it makes them itself where they are missing. The
    same command goes on with a preparation that was stopped: tasks that have ended are kept.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")] = ""
    """Preset whose text, tokenizer and other --data options are taken where none are given; it
    comes first."""
    tasks: int = number(1, at_least(1))
    """Tasks that divide the text: the files of a folder, or the rows of a dataset."""
    workers: int | None = number(None, at_least(1))
    """Tasks that run at once; None: one for each core."""
    data: Data = field(default_factory=Data)
    """Options of the text, as those of a run."""


def parse(args: Sequence[str]) -> Any:
    """Return the options, those of the text by default of the preset that comes first."""
    preset = args[0] if args and not args[0].startswith("-") else ""
    run = get_preset(preset) if preset else Run()
    if run.task.name:
        raise ValueError(f"{preset} is on a task, {run.task.name}, and reads no text")
    return read_options(Prepare, "prepare", args, Prepare(preset=preset, data=run.data))


def prepare(options: Prepare, command: str) -> None:
    """Prepare a text and print where its tokens are."""
    data = options.data
    check_numbers(data, "--data.")
    if options.tasks > 1 and data.max_documents is not None:
        raise ValueError("--data.max-documents counts the documents of one task: leave --tasks out")
    from layermem_bench.text.preparing import prepare as prepare_text
    from layermem_bench.text.tokenizers import load_tokenizer

    workers = options.workers or os.cpu_count() or 1
    train, valid = prepare_text(data, load_tokenizer(data.tokenizer), options.tasks, workers)
    logger.info(
        "%s: tokens for training %s, for validation %s; train reads them with the same preset and "
        "--data options",
        *(train.path.parent, f"{train.tokens:,}", f"{valid.tokens:,}"),
    )
