"""Labelled records as sequences of tokens: one or two texts between the tokenizer's special tokens.

    [CLS] question [SEP] sentence [SEP]      a tokenizer that joins two texts in its own way (BERT)
    question <|endoftext|> sentence          one that does not (GPT-2): its end token between them

It does not know: files, models, the trainer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from layermem.data.labelled_records import LabelledRecord
from layermem.train.host_inputs import joins_pairs, padding_of


class RecordEncoder:
    """Turns the texts of records into ids, and counts those that it cuts."""

    def __init__(self, tokenizer: Any, max_length: int, *, has_segments: bool) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.joins_pairs = joins_pairs(tokenizer)
        # Where a tokenizer does not know of pairs, it knows of no second segment.
        self.has_segments = has_segments and self.joins_pairs

    def check_length(self, texts: int) -> None:
        """Raise if ``max_length`` has no room for a token of each text."""
        special = self.tokenizer.num_special_tokens_to_add(pair=texts == 2)
        if texts == 2 and not self.joins_pairs:
            special = 1
        if self.max_length < special + texts:
            raise ValueError(
                f"records.max_length={self.max_length} has no room for a token of {texts} texts "
                f"beside {special} special tokens: raise it"
            )

    def separator(self, texts: int) -> str | None:
        """Return the token that is put between two texts; None: the tokenizer sees to it."""
        return None if texts == 1 or self.joins_pairs else self.tokenizer.eos_token

    def encode(self, texts: Sequence[str]) -> tuple[dict[str, list[int]], bool]:
        """Return the ids and segments of one or two texts, and whether they were cut.

        Of two texts the longer is cut, to the length of the other before both are.
        """
        if len(texts) == 2 and not self.joins_pairs:
            return self._encode_joined(texts)
        encoded = self._call(*texts)
        is_cut = len(encoded["input_ids"]) > self.max_length
        if is_cut:
            encoded = self._call(*texts, truncation="longest_first", max_length=self.max_length)
        names = ("input_ids", "token_type_ids") if self.has_segments else ("input_ids",)
        return {name: list(encoded[name]) for name in names}, is_cut

    def _encode_joined(self, texts: Sequence[str]) -> tuple[dict[str, list[int]], bool]:
        end = self.tokenizer.eos_token_id
        if end is None:
            raise ValueError(
                "the tokenizer neither puts a token of its own between two texts nor has an end "
                "token to put there; give it one: tokenizer.eos_token = ..., "
                "tokenizer.save_pretrained(...)"
            )
        first, second = (list(self._call(t, special=False)["input_ids"]) for t in texts)
        room = self.max_length - 1
        is_cut = len(first) + len(second) > room
        while len(first) + len(second) > room:
            (first if len(first) > len(second) else second).pop()
        return {"input_ids": [*first, end, *second]}, is_cut

    def _call(self, *texts: str, special: bool = True, **options: Any) -> Any:
        # What looks like a special token in a text is encoded like other text.
        return self.tokenizer(
            *texts,
            add_special_tokens=special,
            split_special_tokens=True,
            return_token_type_ids=True,
            verbose=False,
            **options,
        )


class RecordDataset(Dataset[dict[str, Tensor]]):
    """Encoded records: ``input_ids`` [T] and the number of the class, ``labels`` []."""

    def __init__(
        self,
        records: Sequence[LabelledRecord],
        classes: Sequence[str],
        encoder: RecordEncoder,
    ) -> None:
        self.records, self.classes = records, classes
        self.padding = padding_of(encoder.tokenizer)
        number = {label: i for i, label in enumerate(classes)}
        self.labels = [number[record.label] for record in records]
        encoded = [encoder.encode(record.texts) for record in records]
        self._inputs = [inputs for inputs, _ in encoded]
        for record, inputs in zip(records, self._inputs, strict=True):
            if not inputs["input_ids"]:
                raise ValueError(f"{record.where}: the tokenizer makes no token of {record.texts}")
        self.cut = sum(is_cut for _, is_cut in encoded)
        self.length = sum(len(i["input_ids"]) for i in self._inputs) / len(records)

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Ids and class of each record, by which data is recognised."""
        ids = [inputs["input_ids"] for inputs in self._inputs]
        return [(each, [label]) for each, label in zip(ids, self.labels, strict=True)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        inputs = {name: torch.tensor(values) for name, values in self._inputs[index].items()}
        return {**inputs, "labels": torch.tensor(self.labels[index])}

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad on the right to the longest record, with a mask, and stack the classes."""
        padding = {"input_ids": self.padding, "token_type_ids": 0}
        ids = [item["input_ids"] for item in items]
        batch = {
            name: pad_sequence([item[name] for item in items], True, value)
            for name, value in padding.items()
            if name in items[0]
        }
        batch["attention_mask"] = pad_sequence([torch.ones_like(each) for each in ids], True, 0)
        batch["labels"] = torch.stack([item["labels"] for item in items])
        return batch
