"""``Records``: the part of a run's config that names labelled records to train a classifier on.

It does not know: files, torch, what the other parts of a run's config are.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

# Parts of a config, and fields of a run, that a run on records leaves at their defaults.
_WITHOUT_EFFECT = ("data", "task", "eval_blocks")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Labelled records that a model of transformers is trained on in place of text; see `layermem
    finetune --records`."""

    source: str | None = None
    """File of records: a table with a header (.tsv, .csv) or JSON lines, plain or compressed; None:
    the run is trained on text or a task."""
    kind: Literal["classification"] = "classification"
    """What is learnt of them: "classification", the label of one or two texts."""
    validation: str | None = None
    """File of the validation records; records whose texts are in both are left out of training.
    None: a share of the records is held out, chosen by a hash of their texts."""
    validation_share: float = 0.1
    """Share of the records held out for validation, where it has no file of its own."""
    fields: tuple[str, ...] = ()
    """Names of the one or two fields that hold the texts; none: found by the usual names."""
    label: str | None = None
    """Name of the field that holds the label; None: label."""
    max_length: int = 128
    """Most tokens of a record, special tokens counted; longer texts are cut, and counted."""
    from_config: str | None = None
    """JSON file of a model's config: the model starts from random weights of these sizes, and
    host.model names the folder of the tokenizer alone. None: pretrained weights."""

    def __post_init__(self) -> None:
        if self.source is None:
            for other in fields(self):
                if getattr(self, other.name) != other.default:
                    raise ValueError(
                        f"records.{other.name}={getattr(self, other.name)} is for a run that is "
                        "trained on records, and records.source is not given: add it (layermem "
                        f"finetune MODEL --records FILE), or leave {other.name} out"
                    )
        if not 0 < self.validation_share < 1:
            raise ValueError(
                f"records.validation_share must be between 0 and 1, got {self.validation_share}"
            )
        if self.max_length < 4:
            raise ValueError(
                f"records.max_length must be at least 4 (two texts of a token between special "
                f"tokens), got {self.max_length}"
            )
        if len(self.fields) > 2 or len(set(self.fields)) < len(self.fields):
            raise ValueError(
                f"records.fields must name one or two different fields, got {' '.join(self.fields)}"
            )
        if self.label is not None and self.label in self.fields:
            raise ValueError(f"records.label={self.label} is one of records.fields: name another")


def check_records(run: Any) -> None:
    """Raise where a field of a run would have no effect beside its records, or on them."""
    if run.records.source is None:
        return
    if run.host.model is None:
        raise ValueError(
            f"records.source={run.records.source} is for a model of transformers: use layermem "
            "finetune MODEL --records FILE"
        )
    for name in _WITHOUT_EFFECT:
        part = getattr(run, name)
        if part != (type(part)() if part is not None else None):
            raise ValueError(
                f"{name} has options, and this run is trained on records ({run.records.source}): "
                "leave them out"
            )
    if run.records.from_config is not None and run.host.train != "all":
        raise ValueError(
            f"host.train={run.host.train} would leave the random weights of "
            f"{run.records.from_config} as they are: with --from-config choose --train all"
        )
