"""`layermem train --host MODEL`: go on training a model of transformers, with memory or without."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from layermem.cli.host_options import HostOptions
from layermem.cli.screen import show_estimate
from layermem.config import Compute, Data, Host, Optim, Records, Run, Task
from layermem.host_config import VARIANT
from layermem.named_options import merged
from layermem.number_ranges import SEED, at_least, number

logger = logging.getLogger(__name__)
# Options of records: fields of their config under the same names, but for the source.
_OF_RECORDS = (
    *("kind", "fields", "label", "id_field", "max_length", "stride", "longest_answer"),
    *("unanswerable", "from_config"),
)
# Options that each kind of data takes; those of another kind would have no effect on it.
_OF_DATA = {
    "text": (
        *("validation", "validation_share", "text_field", "block_size", "max_documents"),
        *("eval_blocks", "cache"),
    ),
    "task": ("task_options", "examples", "test", "validation_problems"),
    "records": (*_OF_RECORDS, "validation", "validation_share"),
}
_TOKENS_OF_QUESTIONS = 384


@dataclass(frozen=True, kw_only=True)
class TrainHost(HostOptions):
    """Go on training a model of transformers: routers alone, all weights, or LoRA as a control
    without memory. A decoder on text or a task; a decoder or an encoder on records: labels, or
    questions whose answers stand in a text.

    The folder is that of any run; `layermem report` compares folders.
    """

    host: str
    """Folder or hub name of a model of transformers, which may have attached memory."""
    records: str | None = None
    """Records to train on, in place of text: .jsonl or .parquet; of labels also a .tsv or .csv with
    a header, of questions also SQuAD's own .json."""
    kind: Literal["classification", "question-answering"] | None = None
    """What is learnt of records; None: classification."""
    fields: tuple[str, ...] = ()
    """Names of the one or two fields that hold a record's texts; none: found by the usual names
    (sentence, sentence1 and sentence2, question and sentence, premise and hypothesis, text). Of
    questions: the fields of context and question; none: context question."""
    label: str | None = None
    """Name of the field that holds a record's label (None: label) or answers (None: answers)."""
    id_field: str | None = None
    """Name of the field that holds a question's id; None: id."""
    max_length: int | None = number(None, at_least(4))
    """Most tokens of a record; longer texts are cut, and counted, longer contexts are read in
    windows. None: 128, of questions 384."""
    stride: int | None = number(None, at_least(0))
    """Tokens of a context that two windows in a row share; None: 128."""
    longest_answer: int | None = number(None, at_least(1))
    """Most tokens of an answer that is given to a question; None: 30."""
    unanswerable: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Some questions have no answer (SQuAD 2.0), and none may be given."""
    from_config: str | None = None
    """JSON file of a model's config: random weights of these sizes are trained (with --train all),
    and MODEL is the folder of the tokenizer alone."""
    memory: Literal["full", "last", "first", "none"] | None = None
    """Earlier layers that a layer reads; None: full, but none with --train lora."""
    train: Literal["routers", "all", "lora"] = "routers"
    """What is trained; with --memory none, "all" is plain continued training."""
    router_lr: float | None = number(None, at_least(0))
    """Peak learning rate of routers, which have no weight decay; None: 5e-3."""
    lr: float = number(5e-5, at_least(0))
    """Peak learning rate of everything else."""
    checkpoint_activations: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compute layers again in the backward pass instead of keeping their activations."""
    seed: int = number(0, SEED)
    """Seed of the order of the data, of LoRA and of a new head for classes."""
    log_every: int = number(1, at_least(1))
    """Steps between two rows of metrics."""
    save_every: int = number(0, at_least(0))
    """Steps between two checkpoints; 0: that of the last step alone, until the final model is
    there."""
    keep: int = number(2, at_least(1))
    """Number of newest checkpoints that are kept."""
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers that get the metrics as metrics.jsonl does (pip install layermem[track])."""
    out: Path | None = None
    """Folder of the run; default: runs/MODEL-TRAIN-MEMORY-sSEED, with the task or the records."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on from the newest checkpoint in the folder."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print how long the run would take here; train nothing but some timed steps."""


def train_host(options: TrainHost, command: str) -> None:
    """Train a run and print its folder."""
    run = to_run(options)
    if options.dry_run:
        show_estimate(run)
        return
    from transformers.utils import logging as transformers_logging

    from layermem.evals.solving import evaluate
    from layermem.train.run import train

    transformers_logging.disable_progress_bar()
    out = options.out or _default_folder(run)
    folder = train(run, out, resume=options.resume, evaluate=evaluate)
    logger.info("%s", folder.path)


def to_run(options: TrainHost) -> Run:
    """Return the run that a command's options describe."""
    _check_data(options)
    memory = options.memory or ("none" if options.train == "lora" else "full")
    return Run(
        preset="finetune",
        variant=VARIANT,
        seed=options.seed,
        max_steps=options.max_steps,
        log_every=options.log_every,
        eval_every=options.eval_every,
        eval_blocks=options.eval_blocks,
        save_every=options.save_every,
        keep=options.keep,
        track=options.track,
        data=_data(options),
        task=_task(options),
        records=_records(options),
        optim=Optim(
            lr=options.lr,
            router_lr=options.router_lr,
            weight_decay=options.weight_decay,
            schedule=options.schedule,
            warmup_steps=options.warmup_steps,
            batch_size=options.batch_size,
        ),
        host=Host(
            model=options.host,
            revision=options.revision,
            memory=memory,
            window=options.window,
            train=options.train,
        ),
        compute=Compute(
            micro_batch=options.micro_batch,
            precision=options.precision,
            checkpoint_activations=options.checkpoint_activations,
        ),
    )


def _check_data(options: TrainHost) -> None:
    """Raise unless there is one of text, a task and records, with options of its own alone."""
    given = {
        "--text SOURCE": options.text,
        "--task NAME": options.task,
        "--records FILE": options.records,
    }
    named = [option.split()[0] for option, value in given.items() if value is not None]
    if len(named) != 1:
        raise ValueError(
            f"give one of {', '.join(given)}, got {' and '.join(named) if named else 'none'}"
        )
    kind = named[0].removeprefix("--")
    for name in dict.fromkeys(name for names in _OF_DATA.values() for name in names):
        value = getattr(options, name)
        if name not in _OF_DATA[kind] and value != getattr(TrainHost, name):
            shown = " ".join(value) if isinstance(value, tuple) else value
            others = " and ".join(
                f"--{other}" for other, names in _OF_DATA.items() if name in names
            )
            raise ValueError(
                f"--{name.replace('_', '-')} {shown} has no effect on {kind}, it is for {others}: "
                "leave it out"
            )
    if options.validation is not None and options.validation_share is not None:
        raise ValueError(
            f"--validation-share {options.validation_share} has no effect beside --validation "
            f"{options.validation}: leave one of them out"
        )


def _data(options: TrainHost) -> Data:
    if options.records is not None:
        return Data()
    if options.text is None:
        return Data(block_size=options.block_size, cache=options.cache)
    share = options.validation_share
    return Data(
        source=options.text,
        validation=options.validation,
        validation_share=Data.validation_share if share is None else share,
        text_field=options.text_field,
        max_documents=options.max_documents,
        block_size=options.block_size,
        cache=options.cache,
    )


def _records(options: TrainHost) -> Records:
    if options.records is None:
        return Records()
    # None of them has a meaning of its own: that of the config is meant.
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in (*_OF_RECORDS, "validation", "validation_share")
        if getattr(options, name) is not None
    }
    if options.kind == "question-answering":
        given.setdefault("max_length", _TOKENS_OF_QUESTIONS)
    return Records(source=options.records, **given)


def _task(options: TrainHost) -> Task:
    if options.records is not None:
        return Task()
    return Task(
        name=options.task,
        examples=options.examples,
        validation=options.validation_problems,
        test=options.test,
        options=_task_options(options),
    )


def _task_options(options: TrainHost) -> tuple[str, ...]:
    """Return the task's options; a recorded config says how its problems were drawn."""
    if options.task is None:
        return ()
    from layermem.tasks.registry import get_task

    defaults = get_task(options.task).options()
    named = tuple(f"{name}={defaults[name]}" for name in ("held_out", "graphs") if name in defaults)
    return merged(named, options.task_options)


def _default_folder(run: Run) -> Path:
    on = run.task.name or (Path(run.records.source).stem if run.records.source else "")
    parts = [Path(str(run.host.model)).name, on, run.host.train, run.host.memory]
    name = re.sub(r"[^\w.-]", "-", "-".join(filter(None, parts)))
    return Path("runs") / f"{name}-s{run.seed}"
