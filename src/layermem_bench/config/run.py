"""A run as data: a frozen dataclass that checks itself, and what makes it the run that it is.

A preset is a function that returns a ``Run``; a derived run is ``dataclasses.replace`` of one.

Two runs are one where their trained weights and what is recorded of them are the same but for
rounding: what names data, model, loss, optimizer or seed decides, and what a validation or a test
is made of. A field decides unless it is in one of the two tables.

* When something is logged, validated or saved does not decide: a validation draws no random number
  that training would have drawn, and the last step always has one.
* Data and models are named by their place, which decides; what lay there is compared by digests.
* Sums in another order do not decide, the number format does: bfloat16 moves a loss by more. "auto"
  is a format of its own; what it came to is recorded. With dropout, micro-batches and processes
  decide which numbers are drawn: go on with those that the run began with.
* A field that another one turns off (the text of a run on a task) decides all the same: a run that
  is not found costs time, one that is found by mistake costs the result.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal

from layermem_base.number_ranges import SEED, at_least, check_numbers, number
from layermem_bench.config.named import parse_options
from layermem_bench.config.parts import Compute, Data, Host, Labels, Model, Optim, Task
from layermem_bench.config.typed_dicts import from_dict, to_dict

HOST = "host"
"""What stands for the variant of a run that trains a model of transformers."""
DOES_NOT_DECIDE = frozenset(
    {
        # The name of where the other fields come from, and the place in tables.
        *("preset", "labels.board", "labels.conditions", "labels.arm"),
        # When something is written, kept and shown.
        *("log_every", "eval_every", "save_every", "keep", "track", "data.cache"),
        # Rounding.
        *("compute.micro_batch", "compute.compile", "compute.shard", "compute.loss_chunk"),
        # Memory for time, and who reads the same batches.
        *("compute.checkpoint_activations", "compute.checkpoint_every", "compute.workers"),
    }
)
"""Fields that do not decide, by dotted name."""
ADDED: Mapping[str, Any] = {"host.shares_kv": True, "host.grain": "pair"}
"""Fields that came later, with what runs did before: they decide where they say something else, so
that recorded runs keep their ids."""
# Fields of earlier versions that decided, as they were where they were off: recorded runs keep
# their ids.
_FORMER: dict[str, Any] = {
    "regularizer.penalty": None,
    "regularizer.variance_weight": 1.0,
    "regularizer.covariance_weight": 0.004,
    "regularizer.width": 2048,
    "records.source": None,
    "records.kind": "classification",
    "records.validation": None,
    "records.validation_share": 0.1,
    "records.fields": [],
    "records.label": None,
    "records.max_length": 128,
    "records.from_config": None,
    "records.stride": 128,
    "records.longest_answer": 30,
    "records.unanswerable": False,
    "records.id_field": None,
}
# Lists of NAME=VALUE, whose order says nothing.
_OPTIONS = ("model.options", "task.options")
# Fields that a run of a model of transformers leaves at their defaults, by part.
_OF_OURS: dict[str, dict[str, Any]] = {
    "model": vars(Model()),
    "data": {"tokenizer": "bytes", "isolate_documents": False},
    "task": {"tokenizer": None},
    "compute": {"shard": False, "loss_chunk": None, "checkpoint_every": 1},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The full config of one training."""

    preset: str = "custom"
    """Name of the preset it came from."""
    variant: str = "lime"
    """Architecture: a name that `layermem list variants` lists. `layermem train` takes the arms of
    a study too: recipe, recipe_half, recipe+mudd."""
    seed: int = number(0, SEED)
    """Seed of weights and order of the data. Two variants of one seed share both."""
    max_steps: int = number(1000, at_least(1))
    """Training steps; the schedule is scaled to them."""
    log_every: int = number(1, at_least(1))
    """Steps between two rows of metrics."""
    eval_every: int = number(100, at_least(1))
    """Steps between two validations; the last step is always followed by one."""
    eval_blocks: int | None = number(None, at_least(1))
    """Validation blocks used, from the first on; None: all."""
    save_every: int = number(0, at_least(0))
    """Steps between two checkpoints; 0: that of the last step alone, until the final model is
    there."""
    keep: int = number(2, at_least(1))
    """Number of newest checkpoints that are kept. The one with the lowest validation loss is kept
    too, if the run saved at that step (it does at each validation where save_every divides
    eval_every)."""
    track: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers that get the metrics as metrics.jsonl does (pip install layermem[track]);
    TensorBoard's files are in the run folder."""
    model: Model = field(default_factory=Model)
    """Sizes and options of the model."""
    data: Data = field(default_factory=Data)
    """Text and its tokenization."""
    task: Task = field(default_factory=Task)
    """Generated problems in place of text."""
    optim: Optim = field(default_factory=Optim)
    """Optimizer and learning-rate schedule."""
    host: Host = field(default_factory=Host)
    """Model of transformers to go on training, in place of a decoder of ours."""
    compute: Compute = field(default_factory=Compute)
    """Precision, compilation and memory."""
    labels: Labels = field(default_factory=Labels)
    """What the run is in tables; a study writes them."""

    def __post_init__(self) -> None:
        check_numbers(self)
        for name, part in vars(self).items():
            if is_dataclass(part):
                check_numbers(part, f"{name}.")
        if (self.host.model is not None) != (self.variant == HOST):
            raise ValueError(
                f"variant={self.variant} and host.model={self.host.model} do not go together: "
                f"variant={HOST} stands for a model of transformers (--host.model MODEL)"
            )
        for part, usual in _OF_OURS.items() if self.host.model else ():
            for name, value in usual.items():
                if (given := getattr(getattr(self, part), name)) != value:
                    raise ValueError(
                        f"{part}.{name}={given} is for decoders of ours, and this run trains "
                        f"{self.host.model}: leave {name} out"
                    )

    def started_from(self, model: str) -> "Run":
        """Return a run that goes on training a model of transformers: what this one says of
        decoders of ours gives way."""
        changed = {part: replace(getattr(self, part), **usual) for part, usual in _OF_OURS.items()}
        return replace(self, variant=HOST, host=replace(self.host, model=model), **changed)

    def identity(self) -> dict[str, Any]:
        """Return the fields that make a run what it is, by dotted name, as JSON would hold them."""
        # Read as from a config, where 0 is 0.0 if a field need not be whole.
        values: dict[str, Any] = {}
        for name, value in to_dict(run_from_dict(to_dict(self))).items():
            if isinstance(value, dict):
                values |= {f"{name}.{field}": each for field, each in value.items()}
            else:
                values[name] = value
        deciding = {
            path: value
            for path, value in values.items()
            if path not in DOES_NOT_DECIDE and (path not in ADDED or value != ADDED[path])
        }
        return deciding | {path: parse_options(deciding[path]) for path in _OPTIONS}

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits: two runs have the same ones where they are one run."""
        text = json.dumps(self.identity() | _FORMER, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def differences(self, now: "Run") -> list[tuple[str, Any, Any]]:
        """Return name, own and new value of every field by which another run is not this one."""
        old, new = self.identity(), now.identity()
        # As text, since True equals 1 and a number that is none does not equal itself.
        texts = [
            {name: json.dumps(value, sort_keys=True) for name, value in each.items()}
            for each in (old, new)
        ]
        changed = (n for n in {**new, **old} if texts[0].get(n) != texts[1].get(n))
        return [(name, old.get(name), new.get(name)) for name in changed]


def run_from_dict(values: Mapping[str, Any]) -> Run:
    """Return the run of a dict that ``to_dict`` returned; missing fields have their defaults."""
    return from_dict(Run, values, "")


__all__ = ["Compute", "Data", "Host", "Labels", "Model", "Optim", "Run", "Task", "to_dict"]
