"""The loss of given tokens after what stands before them, of any causal language model.

    window   ids [T + 1]: T tokens that the model reads, shifted by one from the T it may predict
    loss     -ln p of the last ``scored`` tokens of a window, in nats

Windows are padded on the right, where a causal model sees nothing of it. A document's first token
is predicted from the tokenizer's BOS token, or from its EOS token where it has no BOS: blocks of
training have the end token there too.

Letters: B windows of a batch, T tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from layermem.data.tokenizers import Ids

# Logits of a batch: 128 MB in float32.
_LOGITS = 2**25
_MAX_ROWS = 64
# Tokens whose logits are in float32 at once.
_TOKENS_AT_ONCE = 512
# Batches that are sorted by length together, so that little is padded.
_BATCHES_SORTED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Tokens that one forward reads, and how many of them it is to predict."""

    ids: Ids
    """Ids [T + 1]; the model reads all but the last."""
    scored: int
    """Number of tokens, at the end, whose losses are asked for."""
    item: int
    """What the window is of: the number of its document or sentence."""


def first_context(tokenizer: Any) -> int | None:
    """Return the id that stands before a text: BOS, else EOS; None where there is neither."""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return bos if bos is not None else eos


def check_tokenizer(tokenizer: Any) -> None:
    """Raise if there is no tokenizer."""
    if tokenizer is None or not callable(tokenizer):
        raise ValueError(
            f"a tokenizer is needed to read text, got {tokenizer!r}; pass the one that the model "
            "was trained with"
        )


def vocabulary_size(model: Any) -> int:
    """Return the number of ids that a model has an embedding for."""
    return int(model.get_input_embeddings().weight.shape[0])


def check_ids(ids: Ids, vocabulary: int) -> None:
    """Raise if an id has no embedding."""
    if len(ids) and int(ids.max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer yields id {int(ids.max())}, and the model's vocabulary has {vocabulary}"
            " ids: they do not belong together; give the tokenizer the model was trained with"
        )


def rows_at_once(model: Any, context: int) -> int:
    """Return how many windows of ``context`` tokens a batch has, so that its logits stay small."""
    return max(1, min(_MAX_ROWS, _LOGITS // (context * vocabulary_size(model))))


def batched_losses(
    model: Any, windows: Iterable[Window], rows: int
) -> Iterator[tuple[Window, np.ndarray[Any, Any]]]:
    """Yield each window, in some order, with the losses [scored] of its last tokens.

    Windows are read as they are needed; those of about one length share a batch. The model is left
    in the mode (training or evaluation) it was in.
    """
    was_training = model.training
    model.eval()
    try:
        for batch in _batches(windows, rows):
            yield from zip(batch, _losses(model, batch), strict=True)
    finally:
        model.train(was_training)


def _batches(windows: Iterable[Window], rows: int) -> Iterator[list[Window]]:
    """Group windows of about one length."""
    group: list[Window] = []
    for window in windows:
        group.append(window)
        if len(group) == rows * _BATCHES_SORTED:
            yield from _sorted_batches(group, rows)
            group = []
    yield from _sorted_batches(group, rows)


def _sorted_batches(group: list[Window], rows: int) -> Iterator[list[Window]]:
    group.sort(key=lambda window: len(window.ids))
    for start in range(0, len(group), rows):
        yield group[start : start + rows]


@torch.inference_mode()
def _losses(model: Any, batch: Sequence[Window]) -> list[np.ndarray[Any, Any]]:
    """Return the losses of the windows of one batch."""
    longest = max(len(window.ids) for window in batch) - 1
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, window in enumerate(batch):
        ids[row, : len(window.ids) - 1] = torch.from_numpy(window.ids[:-1].astype(np.int64))
        mask[row, : len(window.ids) - 1] = 1
    padded = not bool(mask.all())
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device) if padded else None,
        use_cache=False,
    )
    losses = []
    for row, window in enumerate(batch):
        end = len(window.ids) - 1
        targets = torch.from_numpy(window.ids[-window.scored :].astype(np.int64))
        losses.append(_cross_entropy(output.logits[row, end - window.scored : end], targets))
    return losses


def _cross_entropy(logits: Tensor, targets: Tensor) -> np.ndarray[Any, Any]:
    """Return the losses of targets [T] by logits [T, V]."""
    parts = zip(logits.split(_TOKENS_AT_ONCE), targets.split(_TOKENS_AT_ONCE), strict=True)
    # In float32, whatever the model computes in: a softmax over V needs it.
    losses = [
        functional.cross_entropy(some.float(), ids.to(some.device), reduction="none").cpu()
        for some, ids in parts
    ]
    return torch.cat(losses).numpy().astype(np.float64)
