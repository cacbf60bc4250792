"""Which fields of a run make it the run that it is: what the run id and every look-up compare.

Two runs are one where their trained weights and what is recorded of them are the same but for
rounding: what names data, model, loss, optimizer or seed decides, and what a validation or a test
is made of. A field of a run is declared in exactly one of the three tables; a test holds this.

* When something is logged, validated or saved does not decide: a validation draws no random number
  that training would have drawn, and the last step always has one.
* Data and models are named by their place, which decides; what lay there is compared by digests.
* Sums in another order do not decide, the number format does: bfloat16 moves a loss by more. "auto"
  is a format of its own; what it came to is recorded. With dropout, micro-batches and processes
  decide which numbers are drawn; a resumed run keeps them (``train.checkpoints``).
* A field that another one turns off (the text of a run on a task) decides all the same: a run that
  is not found costs time, one that is found by mistake costs the result.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from layermem_base.number_ranges import ranges
from layermem_bench.config.named_options import parse_options
from layermem_bench.config.typed_dicts import to_dict

DECIDES: Mapping[str, tuple[str, ...]] = {
    "": ("variant", "seed", "max_steps", "eval_blocks"),
    "model": (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size", "pretrained", "tie_word_embeddings", "options"),
    ),
    "data": (
        *("source", "validation", "validation_share", "subset", "revision", "text_field"),
        *("streaming", "max_documents", "tokenizer", "block_size", "isolate_documents"),
    ),
    "task": (
        *("name", "examples", "repeated", "repeats", "validation", "test", "seed", "tokenizer"),
        "options",
    ),
    "optim": (
        *("lr", "schedule", "min_lr", "warmup_steps", "router_lr", "weight_decay", "beta1"),
        *("beta2", "eps", "clip", "batch_size"),
    ),
    "host": ("model", "revision", "memory", "window", "train"),
    "compute": ("precision",),
}
"""Fields that decide, by the part of the run that holds them; "": the run itself."""
DECIDES_WHERE: Mapping[str, Callable[[Any], bool]] = {
    "host.shares_kv": lambda run: not run.host.shares_kv,
    "host.grain": lambda run: run.host.grain != "pair",
}
"""Fields that decide in some runs alone, and in which."""
DOES_NOT_DECIDE: Mapping[str, str] = {
    "preset": "the name of where the other fields come from",
    "log_every": "how often rows are written",
    "eval_every": "how often the model is validated between the first and the last step",
    "save_every": "how often checkpoints are written",
    "keep": "how many checkpoints are kept",
    "track": "who is sent the rows",
    "labels.board": "which tables it is in",
    "labels.conditions": "which tables it is in",
    "labels.arm": "which line of them it is in",
    "data.cache": "where prepared text is kept",
    "compute.micro_batch": "rounding",
    "compute.compile": "rounding",
    "compute.checkpoint_activations": "memory for time; the same numbers are computed again",
    "compute.checkpoint_every": "memory for time; the same numbers are computed again",
    "compute.shard": "rounding",
    "compute.loss_chunk": "rounding",
    "compute.workers": "who reads the batches, which are the same",
}
"""Fields that do not decide, each with the reason."""
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


def identity(run: Any) -> dict[str, Any]:
    """Return the fields that make a run what it is, by dotted name, as JSON would hold them."""
    values = to_dict(run)
    paths = [f"{part}.{name}" for part, names in DECIDES.items() for name in names]
    paths += [path for path, decides in DECIDES_WHERE.items() if decides(run)]
    found: dict[str, Any] = {}
    for path in paths:
        part, _, name = path.partition(".")
        owner, value = getattr(run, part) if part else run, (values[part] if part else values)[name]
        # A whole number is read from a config as it is written there, as 0.0 and not as 0.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        found[path.lstrip(".")] = float(value) if is_whole and name in _floats(owner) else value
    return found | {path: parse_options(found[path]) for path in _OPTIONS}


def _floats(owner: Any) -> set[str]:
    """Return the names of a dataclass's fields that need not be whole numbers."""
    kind: Any = type(owner)
    return {name for name, _, is_whole in ranges(kind) if not is_whole}


def run_id(run: Any) -> str:
    """Return twelve hexadecimal digits: two runs have the same ones where they are one run."""
    text = json.dumps(identity(run) | _FORMER, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def differences(before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    """Return name, old and new value of every field by which two runs are not one."""
    old, new = identity(before), identity(now)
    return [
        (name, old.get(name), new.get(name))
        for name in {**new, **old}
        # As text, since True equals 1 and a number that is none does not equal itself.
        if json.dumps(old.get(name), sort_keys=True) != json.dumps(new.get(name), sort_keys=True)
    ]
