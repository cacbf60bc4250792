"""What learning labels and questions share: a tokenizer that fits, and outputs of a model."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from layermem.models.checkpoints import check_path
from layermem_bench.config.run import Run
from layermem_bench.results.solved import Shares
from layermem_bench.train.sequences import PaddedSequences, padding_of

logger = logging.getLogger(__name__)
# Models whose positions are counted from the id of the padding token on.
_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
}


def path_of(source: str | None) -> Path:
    """Return the path of a file of records."""
    return Path(str(source)).expanduser()


def load_host_tokenizer(run: Run) -> Any:
    """Return the tokenizer of the model."""
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


def check_fits(run: Run, config: Any, tokenizer: Any) -> None:
    """Raise if the model has no place for what the tokenizer makes of the records."""
    text, model = config.get_text_config(), run.records.from_config or run.host.model
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
    longest = getattr(text, "max_position_embeddings", None)
    if isinstance(longest, int) and run.records.max_length > longest - offset:
        raise ValueError(
            f"records.max_length={run.records.max_length} is more than {model} reads, "
            f"{longest - offset} tokens (max_position_embeddings): lower it"
        )


def check_known(items: Sequence[Mapping[str, Any]], tokenizer: Any, model: str) -> None:
    """Raise if most tokens of training records are unknown: transformers makes a tokenizer up where
    there is none."""
    tokens = [int(token) for item in items for token in item["input_ids"]]
    unknown, special_ids = tokens.count(tokenizer.unk_token_id), set(tokenizer.all_special_ids)
    special = sum(token in special_ids for token in tokens) - unknown
    if 2 * unknown > len(tokens) - special:
        raise ValueError(
            f"the tokenizer of {model} knows {len(tokens) - special - unknown} of "
            f"{len(tokens) - special} tokens of the training records: it is none of theirs, or "
            "there is none; save one there: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )


def joins_pairs(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a special token between two texts."""
    special = tokenizer("a", "a", return_special_tokens_mask=True)["special_tokens_mask"]
    return 1 in special[special.index(0) : len(special) - special[::-1].index(0)]


def has_segments(config: Any) -> bool:
    """Return whether a model tells the tokens of two texts apart."""
    return getattr(config, "type_vocab_size", 0) > 1


def encode(tokenizer: Any, *texts: str, special: bool = True, **options: Any) -> Any:
    """Return what a tokenizer makes of texts; what looks like a special token is text."""
    return tokenizer(
        *texts,
        add_special_tokens=special,
        split_special_tokens=True,
        return_token_type_ids=True,
        verbose=False,
        **options,
    )


def shares_without_steps(count: int, accuracy: float, interval: tuple[float, ...]) -> Shares:
    """Return shares whose ``steps`` have no meaning of their own, and are the same share."""
    return Shares(
        count=count, accuracy=accuracy, interval=interval, steps=accuracy, steps_interval=interval
    )


def log_counts(counts: Any) -> None:
    """Log what a run on records is trained on: each field of a dataclass."""
    named = (f"{name.replace('_', ' ')} {value}" for name, value in vars(counts).items())
    logger.info("records: %s", ", ".join(named))


def judge_outputs(
    model: Any, batch: dict[str, Tensor], judge: Callable[[Any, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Return [B, 2 + N]: loss of each sequence, one, and N numbers, by outputs and labels."""
    labels = batch.pop("labels")
    losses, numbers = judge(model(**batch), labels)
    return torch.cat([torch.stack([losses, torch.ones_like(losses)], 1), numbers.to(losses)], 1)


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
