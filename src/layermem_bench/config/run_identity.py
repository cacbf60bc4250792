"""Which fields of a run make it the run that it is: what the run id and every look-up compare.

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
from typing import Any

from layermem_bench.config.named_options import parse_options
from layermem_bench.config.typed_dicts import from_dict, to_dict

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


def identity(run: Any) -> dict[str, Any]:
    """Return the fields that make a run what it is, by dotted name, as JSON would hold them."""
    # Read as from a config, where 0 is 0.0 if a field need not be whole.
    found: dict[str, Any] = {}
    for name, value in to_dict(from_dict(type(run), to_dict(run), "")).items():
        parts = (
            {f"{name}.{field}": each for field, each in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
        found |= {path: each for path, each in parts.items() if _decides(path, each)}
    return found | {path: parse_options(found[path]) for path in _OPTIONS}


def _decides(path: str, value: Any) -> bool:
    return path not in DOES_NOT_DECIDE and (path not in ADDED or value != ADDED[path])


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
