"""What a trained classifier gets right of the validation records, with intervals, by class.

It does not know: how records are read, the training loop.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from layermem.intervals import proportion
from layermem.results.files import to_json
from layermem.results.record_counts import RecordCounts
from layermem.results.solved import Shares, Solved
from layermem.runs import RunFolder, write_atomically
from layermem.train.data_digest import prompts_digest
from layermem.train.record_dataset import RecordDataset
from layermem.train.record_trainer import RecordTrainer, predict_classes

# What the classes are called in a result.
_LEVEL = "label"


def save_classified(
    counts: RecordCounts, data: RecordDataset, trainer: RecordTrainer, folder: RunFolder
) -> None:
    """Save what the trained model gets right of the validation records, and each of them."""
    predicted = predict_classes(trainer.model, data, trainer.args.eval_batch_size)
    rows = attempt_rows(data, predicted)
    solved = replace(
        score_classes(data, predicted, counts),
        run_id=trainer.run.id,
        steps_taken=trainer.state.global_step,
        problems=prompts_digest([json.dumps(row["texts"]) for row in rows]),
    )
    write_atomically(folder.attempts, "".join(f"{json.dumps(row)}\n" for row in rows))
    write_atomically(folder.records, to_json(counts))
    write_atomically(folder.result, solved.to_json())


def score_classes(data: RecordDataset, predicted: Sequence[int], counts: RecordCounts) -> Solved:
    """Return the share of right classes, in all and of each class, beside always one class.

    ``steps`` has no meaning of its own here, and is the same share.
    """
    right = [ours == label for ours, label in zip(predicted, data.labels, strict=True)]
    by_class = {
        name: _shares([r for r, label in zip(right, data.labels, strict=True) if label == i])
        for i, name in enumerate(data.classes)
        if i in data.labels
    }
    faults = Counter(
        f"{data.classes[ours]} for {data.classes[label]}"
        for ours, label in zip(predicted, data.labels, strict=True)
        if ours != label
    )
    return Solved(
        **vars(_shares(right)),
        split="validation",
        chance=counts.majority_share,
        by={_LEVEL: by_class},
        faults=dict(faults.most_common()),
    )


def attempt_rows(data: RecordDataset, predicted: Sequence[int]) -> list[dict[str, Any]]:
    """Return an object of attempts.jsonl for each record."""
    return [
        {
            "texts": list(record.texts),
            "label": record.label,
            "predicted": data.classes[ours],
            "right": data.classes[ours] == record.label,
        }
        for record, ours in zip(data.records, predicted, strict=True)
    ]


def _shares(right: Sequence[bool]) -> Shares:
    share, interval = sum(right) / len(right), proportion(sum(right), len(right))
    return Shares(
        count=len(right), accuracy=share, interval=interval, steps=share, steps_interval=interval
    )
