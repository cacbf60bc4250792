"""Losses of whole sequences, for validation, and how many tokens have their logits at once.

Letters: B sequences, T tokens, V words of the vocabulary.
It does not know: models, the trainer.
"""

import torch
from torch import Tensor, nn

# Bytes of float32 logits up to which a micro-batch has them all at once; its loss is then, to the
# last bit, what it always was.
_LOGITS = 2**30


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return for each sequence the sum of its labels' losses, and their number [B, 2].

    ``logits`` [B, T, V] are of the token after, ``labels`` [B, T] of the token itself; -100: none.
    """
    wanted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    # In float32, as in training.
    lost = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), wanted.flatten(), reduction="none"
    )
    return summed(lost.view_as(wanted), labels)


def summed(lost: Tensor, labels: Tensor) -> Tensor:
    """Return for each sequence the sum of its tokens' losses [B, T], and its labels [B, 2]."""
    return torch.stack([lost.sum(1), (labels[:, 1:] != -100).sum(1)], dim=1)


def loss_chunk(wanted: int | None, tokens: int, words: int) -> int:
    """Return how many tokens' logits over ``words`` are held at once; 0: all of them."""
    if wanted is not None:
        return wanted
    in_a_part = _LOGITS // 4 // (4 * words)
    return 0 if 4 * tokens * words <= _LOGITS else max(1, in_a_part)
