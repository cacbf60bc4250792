"""``Records``: the records that a run learns: labels, or answers in texts."""

from dataclasses import dataclass
from typing import Any, Literal

from layermem_base.number_ranges import SHARE, at_least, check_numbers, number
from layermem_bench.config.typed_dicts import check_unused

# Parts of a config, and fields of a run, that a run on records leaves at their defaults.
_WITHOUT_EFFECT = ("data", "task", "eval_blocks")
# Fields of questions alone.
_OF_QUESTIONS = ("stride", "longest_answer", "unanswerable", "id_field")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records that a model of transformers is trained on in place of text; see `layermem train
    --host MODEL --records`."""

    source: str | None = None
    """File of records: JSON lines, plain or compressed, or Parquet; of labels also a table with a
    header (.tsv, .csv), of questions also SQuAD's own .json. None: the run is trained on text or a
    task."""
    kind: Literal["classification", "question-answering"] = "classification"
    """What is learnt of them: "classification", the label of one or two texts; or
    "question-answering", which piece of a text answers a question (SQuAD)."""
    validation: str | None = None
    """File of the validation records; records whose texts (of questions: contexts) are in both are
    left out of training. None: a share of the records is held out, chosen by a hash of them."""
    validation_share: float = number(0.1, SHARE)
    """Share of the records held out for validation, where it has no file of its own."""
    fields: tuple[str, ...] = ()
    """Names of the one or two fields that hold the texts; none: found by the usual names. Of
    questions: the field of the context and that of the question; none: context question."""
    label: str | None = None
    """Name of the field that holds the label (None: label) or the answers (None: answers)."""
    max_length: int = number(128, at_least(4))
    """Most tokens of a record, special tokens counted. Longer texts are cut, and counted; longer
    contexts are read in windows."""
    from_config: str | None = None
    """JSON file of a model's config: the model starts from random weights of these sizes, and
    host.model names the folder of the tokenizer alone. None: pretrained weights."""
    stride: int = number(128, at_least(0))
    """Of questions: tokens of a context that two windows in a row share."""
    longest_answer: int = number(30, at_least(1))
    """Of questions: most tokens of an answer that is given."""
    unanswerable: bool = False
    """Of questions: whether some have no answer (SQuAD 2.0), which is then an answer too. False: a
    record without an answer is an error."""
    id_field: str | None = None
    """Of questions: name of the field that holds a question's id; None: id."""

    def __post_init__(self) -> None:
        check_numbers(self, "records.")
        if self.source is None:
            how = "add it (layermem train --host MODEL --records FILE), or "
            why = f"a run that is trained on records, and records.source is not given: {how}"
            check_unused(self, "records.", why)
        if len(self.fields) > 2 or len(set(self.fields)) < len(self.fields):
            raise ValueError(
                f"records.fields must name one or two different fields, got {' '.join(self.fields)}"
            )
        if self.label is not None and self.label in self.fields:
            raise ValueError(f"records.label={self.label} is one of records.fields: name another")
        if self.kind == "question-answering":
            self._check_questions()
        else:
            why = "questions, and the records are of labels: add kind=question-answering, or "
            check_unused(self, "records.", why, _OF_QUESTIONS)

    def _check_questions(self) -> None:
        if len(self.fields) == 1:
            raise ValueError(
                f"records.fields={self.fields[0]} must name two fields of questions, that of the "
                "context and that of the question: --fields CONTEXT QUESTION"
            )
        if self.id_field is not None and self.id_field in (*self.fields, self.label):
            raise ValueError(
                f"records.id_field={self.id_field} is another field of the records too: name "
                "another"
            )


def check_records(run: Any) -> None:
    """Raise where a field of a run would have no effect beside its records, or on them."""
    if run.records.source is None:
        return
    if run.host.model is None:
        raise ValueError(
            f"records.source={run.records.source} is for a model of transformers: use layermem "
            "train --host MODEL --records FILE"
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
