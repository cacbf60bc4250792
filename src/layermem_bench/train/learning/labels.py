"""Learning labels: one or two texts between the tokenizer's special tokens, and their class.

    [CLS] question [SEP] sentence [SEP]      a tokenizer that joins two texts in its own way (BERT)
    question <|endoftext|> sentence          one that does not (GPT-2): its end token between them

Letters: B records, C classes.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from layermem_base.files import write_atomically
from layermem_bench.config.run import Records, Run
from layermem_bench.data.labelled_records import (
    FieldNames,
    LabelledRecord,
    check_labels,
    find_classes,
    read_records,
    split_records,
)
from layermem_bench.results.files import to_json
from layermem_bench.results.intervals import proportion
from layermem_bench.results.run_folder import RunFolder
from layermem_bench.results.solved import RecordCounts, Shares, Solved
from layermem_bench.train.learning.record_inputs import (
    PairEncoder,
    RecordLearning,
    forward_all,
    has_segments,
    path_of,
    shares_without_steps,
)
from layermem_bench.train.model_card import Learnt, literal
from layermem_bench.train.sequences import PaddedSequences, padding_of


@final
class LabelLearning(RecordLearning):
    """What a run on labelled records learns."""

    auto_class = AutoModelForSequenceClassification

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        records = run.records
        train, validation, left_out, names = read_splits(records)
        classes = _order_classes(find_classes(train), self.config, run.host.model)
        for side in (train, validation):
            check_labels(side, classes)
        segments = has_segments(self.config)
        encoder = RecordEncoder(self.tokenizer, records.max_length, has_segments=segments)
        encoder.check_length(len(names.texts))
        self.train_data, self.validation_data = (
            RecordDataset(side, classes, encoder) for side in (train, validation)
        )
        self.collate = self.train_data.collate
        self.check_known(self.train_data.items)
        self.config.id2label = dict(enumerate(classes))
        self.config.label2id = {label: i for i, label in enumerate(classes)}
        self.config.problem_type = "single_label_classification"
        majority, count = Counter(record.label for record in validation).most_common(1)[0]
        self.counts = RecordCounts(
            fields=names.texts,
            label=names.label,
            separator=encoder.separator(len(names.texts)),
            classes=tuple(classes),
            training=len(train),
            validation=len(validation),
            left_out=left_out,
            training_cut=self.train_data.cut,
            validation_cut=self.validation_data.cut,
            majority=majority,
            majority_share=count / len(validation),
        )
        self.log_counts(self.counts)

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.logits.float(), labels, reduction="none")

    def numbers(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return whether the class is right [B, 1]."""
        return (outputs.logits.argmax(-1) == labels)[:, None]

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        return {"val_loss": loss, "val_accuracy": float(judged.mean())}

    def save(self, trainer: Any, folder: RunFolder) -> tuple[Solved, list[str]] | None:
        if not trainer.is_world_process_zero():
            return None
        data = self.validation_data
        predicted = [
            number
            for outputs, _ in forward_all(trainer.model, data, trainer.args.eval_batch_size)
            for number in outputs.logits.argmax(-1).tolist()
        ]
        rows = [
            {
                "texts": list(record.texts),
                "label": record.label,
                "predicted": data.classes[ours],
                "right": data.classes[ours] == record.label,
            }
            for record, ours in zip(data.records, predicted, strict=True)
        ]
        write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
        write_atomically(folder.records, to_json(self.counts))
        solved = score_classes(data, predicted, self.counts.majority_share)
        return solved, [json.dumps(row["texts"]) for row in rows]

    def describe(self, folder: RunFolder) -> Learnt:
        counts = self.counts
        result = Solved.from_json(folder.result.read_text(encoding="utf-8"))
        low, high = result.interval
        with folder.attempts.open(encoding="utf-8") as file:
            texts = json.loads(file.readline())["texts"]
        return Learnt(
            task="text-classification",
            data=f"{self.run.records.source}; classification of records",
            unit="record",
            results={
                "validation records": f"{result.count:,} ({counts.validation_cut:,} of them cut)",
                "right class": f"{result.accuracy:.1%} (95% interval over records: {low:.1%} to "
                f"{high:.1%})",
                f"right by always {counts.majority!r}, the most frequent": f"{result.chance:.1%}",
            },
            usage=self.usage(self._call(texts)),
        )

    def _call(self, texts: Sequence[str]) -> str:
        """Return code that says the class of a validation record."""
        separator = self.counts.separator
        segments = separator is None and has_segments(self.config)
        inputs = ", ".join(map(literal, texts))
        if separator is not None:
            # As in training: this tokenizer puts nothing between two texts.
            joined = f" {literal(separator)} ".join(map(literal, texts))
            inputs = f"{joined}, add_special_tokens=False"
        return f"""\
inputs = tokenizer({inputs}, return_token_type_ids={segments}, return_tensors="pt")
print(model.config.id2label[int(model(**inputs).logits.argmax())])"""


def read_splits(
    records: Records,
) -> tuple[list[LabelledRecord], list[LabelledRecord], int, FieldNames]:
    """Return training and validation records, how many are left out of training, and the fields."""
    every, names = read_records(path_of(records.source), records.fields, records.label)
    held_out = None
    if records.validation is not None:
        held_out, _ = read_records(path_of(records.validation), names.texts, names.label)
    return *split_records(every, held_out, records.validation_share), names


@final
class RecordEncoder(PairEncoder):
    """Turns the texts of records into ids."""

    def check_length(self, texts: int) -> None:
        """Raise if ``max_length`` has no room for a token of each text."""
        is_joined = texts == 2 and not self.joins_pairs
        special = 1 if is_joined else self.tokenizer.num_special_tokens_to_add(pair=texts == 2)
        if self.max_length < special + texts:
            raise ValueError(
                f"records.max_length={self.max_length} has no room for a token of {texts} texts "
                f"beside {special} special tokens: raise it"
            )

    def encode(self, texts: Sequence[str]) -> tuple[dict[str, list[int]], bool]:
        """Return the ids and segments of one or two texts, and whether they were cut; of two the
        longer is cut first, to the length of the other."""
        if len(texts) == 2 and not self.joins_pairs:
            return self._encode_joined(texts)
        encoded, most = self.call(*texts), self.max_length
        is_cut = len(encoded["input_ids"]) > most
        if is_cut:
            encoded = self.call(*texts, truncation="longest_first", max_length=most)
        names = ("input_ids", "token_type_ids") if self.has_segments else ("input_ids",)
        return {name: list(encoded[name]) for name in names}, is_cut

    def _encode_joined(self, texts: Sequence[str]) -> tuple[dict[str, list[int]], bool]:
        end = self.end_token(
            "neither puts a token of its own between two texts nor has an end token to put there"
        )
        first, second = (list(self.call(text, special=False)["input_ids"]) for text in texts)
        room = self.max_length - 1
        is_cut = len(first) + len(second) > room
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        return {"input_ids": [*first, end, *second]}, is_cut


@final
class RecordDataset(PaddedSequences):
    """Encoded records: ``input_ids`` [T] and the number of the class, ``labels`` []."""

    def __init__(
        self, records: Sequence[LabelledRecord], classes: Sequence[str], encoder: RecordEncoder
    ) -> None:
        self.records, self.classes = records, classes
        self.labels = [classes.index(record.label) for record in records]
        self.cut, items = 0, []
        for record, label in zip(records, self.labels, strict=True):
            inputs, is_cut = encoder.encode(record.texts)
            if not inputs["input_ids"]:
                raise ValueError(f"{record.where}: the tokenizer makes no token of {record.texts}")
            self.cut += is_cut
            items.append({**inputs, "labels": label})
        documents = (record.split_key for record in records)
        super().__init__(items, padding_of(encoder.tokenizer), documents=documents)


def score_classes(data: RecordDataset, predicted: Sequence[int], chance: float) -> Solved:
    """Return the share of right classes, in all and of each class, beside always one class."""
    pairs = list(zip(predicted, data.labels, strict=True))
    by_class = {
        name: _shares([ours == i for ours, label in pairs if label == i])
        for i, name in enumerate(data.classes)
        if i in data.labels
    }
    names = [(data.classes[ours], data.classes[label]) for ours, label in pairs if ours != label]
    faults = Counter(f"{ours} for {label}" for ours, label in names)
    return Solved(
        **vars(_shares([ours == label for ours, label in pairs])),
        split="validation",
        chance=chance,
        by={"label": by_class},
        faults=dict(faults.most_common()),
    )


def _shares(right: Sequence[bool]) -> Shares:
    share, interval = sum(right) / len(right), proportion(sum(right), len(right))
    return shares_without_steps(len(right), share, interval)


def _order_classes(classes: list[str], config: Any, model: str | None) -> list[str]:
    """Return the classes in the order of the head that a model has already, if it has one."""
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        return classes
    of_head = [str(config.id2label[i]) for i in range(config.num_labels)]
    if of_head == [f"LABEL_{i}" for i in range(config.num_labels)]:
        of_head = [str(i) for i in range(config.num_labels)]
    if sorted(of_head) != sorted(classes):
        raise ValueError(
            f"{model} is a classifier of {', '.join(of_head)}, and the records have the labels "
            f"{', '.join(classes)}: write them alike, or start from a model without that head"
        )
    return of_head
