"""What learning labels and questions share: ``RecordLearning``, encoding two texts, model outputs.

Letters: B sequences.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from layermem.models.pretrained import check_path
from layermem_bench.config.run import Run
from layermem_bench.results.solved import Shares
from layermem_bench.train.host_models import check_positions, load_host_config, load_record_model
from layermem_bench.train.sequences import PaddedSequences, padding_of

logger = logging.getLogger(__name__)
# Models whose positions are counted from the id of the padding token on.
_OFFSET_POSITIONS = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
)


class RecordLearning(ABC):
    """What a run on records learns; the loss of a step is the mean over its sequences."""

    auto_class: ClassVar[Any]
    """Class of transformers that has the head."""

    def __init__(self, run: Run) -> None:
        self.run, self.tokenizer = run, _load_host_tokenizer(run)
        self.config = load_host_config(run)
        _check_fits(run, self.config, self.tokenizer)
        # A decoder reads the class at the last token that is no padding.
        self.config.pad_token_id = padding_of(self.tokenizer)

    def check_known(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Raise if most tokens of training records are unknown: transformers makes a tokenizer up
        where there is none."""
        tokens = [int(token) for item in items for token in item["input_ids"]]
        unknown = tokens.count(self.tokenizer.unk_token_id)
        special_ids = set(self.tokenizer.all_special_ids)
        words = len(tokens) - sum(token in special_ids for token in tokens) + unknown
        if 2 * unknown > words:
            raise ValueError(
                f"the tokenizer of {self.run.host.model} knows {words - unknown} of {words} tokens "
                "of the training records: it is none of theirs, or there is none; save one there: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )

    def log_counts(self, counts: Any) -> None:
        """Log each field of a dataclass."""
        named = (f"{name.replace('_', ' ')} {value}" for name, value in vars(counts).items())
        logger.info("records: %s", ", ".join(named))

    def load_model(self) -> Any:
        return load_record_model(self.run, self.config, self.auto_class)

    def step_loss(self, outputs: Any, labels: Tensor, **_: Any) -> Tensor:
        return self.losses(outputs, labels).sum() / self.run.optim.batch_size

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        labels = batch.pop("labels")
        outputs = model(**batch)
        losses, numbers = self.losses(outputs, labels), self.numbers(outputs, labels)
        return torch.cat([torch.stack([losses, torch.ones_like(losses)], 1), numbers.to(losses)], 1)

    @abstractmethod
    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the loss of each sequence [B], in float32."""

    @abstractmethod
    def numbers(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the numbers of each sequence [B, N] that ``metrics`` reads."""

    def usage(self, call: str) -> str:
        """Return code that loads the model with its head, and then ``call``."""
        name = self.auto_class.__name__
        imports, load = f"from transformers import {name}, AutoTokenizer", f"{name}.from_pretrained"
        arguments = "path"
        if self.run.host.memory != "none":
            imports = f"from layermem.retrofit import load_attached\n{imports}"
            load, arguments = "load_attached", f"path, auto_class={name}"
        return f"""{imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}({arguments})
{call}"""


class PairEncoder:
    """Encodes two texts: the tokenizer joins them, or has its end token put between."""

    def __init__(self, tokenizer: Any, max_length: int, *, has_segments: bool) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        special = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
        between = special[special.index(0) : len(special) - special[::-1].index(0)]
        self.joins_pairs = 1 in between
        # Where a tokenizer does not know of pairs, it knows of no second segment.
        self.has_segments = has_segments and self.joins_pairs

    def separator(self, texts: int = 2) -> str | None:
        """Return the token that is put between two texts; None: the tokenizer sees to it."""
        return None if texts == 1 or self.joins_pairs else self.tokenizer.eos_token

    def call(self, *texts: str, special: bool = True, **options: Any) -> Any:
        """Return what the tokenizer makes of texts; what looks like a special token is text."""
        return self.tokenizer(
            *texts,
            add_special_tokens=special,
            split_special_tokens=True,
            return_token_type_ids=True,
            verbose=False,
            **options,
        )

    def end_token(self, problem: str) -> int:
        """Return the id of the end token; where there is none, raise what the tokenizer lacks."""
        if self.tokenizer.eos_token_id is None:
            raise ValueError(
                f"the tokenizer {problem}; give it one: tokenizer.eos_token = ..., "
                "tokenizer.save_pretrained(...)"
            )
        return int(self.tokenizer.eos_token_id)


def path_of(source: str | None) -> Path:
    """Return the path of a file of records."""
    return Path(str(source)).expanduser()


def _load_host_tokenizer(run: Run) -> Any:
    host = run.host
    if run.records.from_config is None:
        check_path(str(host.model))
    try:
        return AutoTokenizer.from_pretrained(host.model, revision=host.revision or "main")
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{host.model} has no tokenizer ({str(error).splitlines()[0]}); save one into it: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        ) from error


def _check_fits(run: Run, config: Any, tokenizer: Any) -> None:
    """Raise if the model has no place for what the tokenizer makes of the records."""
    text, model = config.get_text_config(), run.records.from_config or str(run.host.model)
    if len(tokenizer) > text.vocab_size:
        raise ValueError(
            f"{model} has {text.vocab_size} token ids, and its tokenizer {len(tokenizer)}: they "
            "do not belong together"
        )
    own, theirs = config.pad_token_id, tokenizer.pad_token_id
    if None not in (own, theirs) and own != theirs and run.records.from_config is None:
        raise ValueError(
            f"{model} takes token {own} for padding, and its tokenizer {theirs}: save the "
            "tokenizer that it was trained with"
        )
    offset = padding_of(tokenizer) + 1 if config.model_type in _OFFSET_POSITIONS else 0
    check_positions(config, model, "records.max_length", run.records.max_length, offset)


def has_segments(config: Any) -> bool:
    """Return whether a model tells the tokens of two texts apart."""
    return getattr(config, "type_vocab_size", 0) > 1


def shares_without_steps(count: int, accuracy: float, interval: tuple[float, ...]) -> Shares:
    """Return shares whose ``steps`` have no meaning of their own, and are the same share."""
    return Shares(
        count=count, accuracy=accuracy, interval=interval, steps=accuracy, steps_interval=interval
    )


@torch.no_grad()
def forward_all(model: Any, data: PaddedSequences, batch_size: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield a model's outputs of each batch of a dataset, in eval mode, and the batch's labels."""
    was_training = model.training
    model.eval()
    loader: Any = DataLoader(data, batch_size=batch_size, collate_fn=data.collate)
    for batch in loader:
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = inputs.pop("labels")
        yield model(**inputs), labels
    model.train(was_training)
