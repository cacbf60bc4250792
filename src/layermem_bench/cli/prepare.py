"""`layermem prepare`: tokens of a text made beforehand, by tasks here, on Slurm or on Ray.

layermem prepare corpus/ --tasks 8
layermem prepare HuggingFaceFW/fineweb-edu --data.streaming --tasks 512 --executor slurm
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro

from layermem_base.number_ranges import at_least, number
from layermem_bench.cli.starting_run import check_no_share
from layermem_bench.config.run import Data
from layermem_bench.config.typed_dicts import check_unused

logger = logging.getLogger(__name__)
# Options that other executors leave without effect.
_OF_EXECUTORS = {
    ("slurm",): ("partition", "time", "qos"),
    ("slurm", "ray"): ("memory",),
}


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Tokenize a text for training, by several tasks. `layermem train` with the same --data options
    finds the tokens; it makes them itself where they are missing. A preparation that was stopped
    goes on where it was, also with another --tasks.
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]
    """The text, as in train's --data.source: "stdlib", a file, a folder, or a Hugging Face dataset
    (NAME or NAME:SPLIT)."""
    tasks: int = number(1, at_least(1))
    """Tasks that divide the text: each makes every Nth piece of it."""
    executor: Literal["local", "slurm", "ray"] = "local"
    """What runs the tasks: this machine, a job array of Slurm, or Ray; all by datatrove."""
    workers: int | None = number(None, at_least(1))
    """Tasks that run at once; None: on this machine one for each core, else all."""
    partition: str | None = None
    """Slurm: partition of the jobs, which must be given."""
    time: str = "24:00:00"
    """Slurm: most time of a task."""
    qos: str | None = None
    """Slurm: quality of service; None: the cluster's default."""
    memory: int = number(4, at_least(1))
    """Slurm and Ray: GB of memory for a task."""
    address: str | None = None
    """Ray: HOST:PORT of the cluster, as `ray start --head` prints it; None: Ray runs here."""
    data: Data = field(default_factory=Data)
    """Options of the text, as those of a run; but for DATA in place of --data.source."""


def prepare(options: Prepare, command: str) -> None:
    """Prepare a text and print where its tokens are."""
    if options.data.source != Data().source:
        raise ValueError(
            f"DATA, {options.source}, takes the place of --data.source "
            f"({options.data.source}): leave that out"
        )
    if options.data.mixture:
        raise ValueError(
            f"--data.mixture {' '.join(options.data.mixture)}: prepare each source by a command of "
            "its own, with the same validation; a run with the mixture then finds all of them"
        )
    _check_has_effect(options)
    from layermem_bench.data.datatrove_tasks import Engine
    from layermem_bench.data.preparing import build, read_folder
    from layermem_bench.data.tokenizers import load_tokenizer

    engine = Engine(
        executor=options.executor,
        tasks=options.tasks,
        workers=options.workers,
        partition=options.partition,
        time=options.time,
        qos=options.qos,
        memory=options.memory,
        address=options.address,
    )
    engine.check()
    tokenizer = load_tokenizer(options.data.tokenizer)
    folder, complete = build(replace(options.data, source=options.source), tokenizer, engine.make)
    if not complete:
        logger.info("the tasks are submitted; the last one of them makes %s", folder)
        return
    train, valid = read_folder(folder, tokenizer)
    data = options.data
    held_out = f" {data.validation}" if data.validation else f"-share {data.validation_share:g}"
    logger.info(
        "%s: tokens for training %s, for validation %s; they are read by layermem train PRESET "
        "--data.source %s --data.tokenizer %s --data.validation%s",
        *(folder, f"{train.tokens:,}", f"{valid.tokens:,}", options.source),
        *(data.tokenizer, held_out),
    )


def _check_has_effect(options: Prepare) -> None:
    for executors, names in _OF_EXECUTORS.items():
        if options.executor not in executors:
            why = f"--executor {' or '.join(executors)}, got {options.executor}: add it, or "
            check_unused(options, "--", why, names)
    share, validation = options.data.validation_share, options.data.validation
    if validation is not None:
        check_no_share(None if share == Data().validation_share else share, validation)
