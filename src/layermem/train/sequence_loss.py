"""Validation losses summed over each sequence, and the number of tokens per chunk of a loss.

Letters: B sequences, T tokens, V words of the vocabulary.
It does not know: models, the trainer.
"""

import torch
from torch import Tensor, nn

# A micro-batch whose float32 logits take no more bytes than this has them all in memory at once.
# Its loss is computed in one piece, and agrees with earlier recorded losses to the last bit.
_MAX_LOGITS_BYTES = 2**30


def sequence_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses and the number of labels of each sequence [B, 2].

    ``logits`` [B, T, V] predict the next token; ``labels`` [B, T] are the tokens themselves, with
    -100 where a token has no loss.
    """
    next_tokens = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    # In float32, as in training.
    token_losses = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), next_tokens.flatten(), reduction="none"
    )
    return sum_by_sequence(token_losses.view_as(next_tokens), labels)


def sum_by_sequence(token_losses: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the token losses [B, T] and the number of labels of each sequence [B, 2].

    A loss is zero where a token has no label.
    """
    return torch.stack([token_losses.sum(1), (labels[:, 1:] != -100).sum(1)], dim=1)


def choose_loss_chunk(configured: int | None, tokens: int, vocabulary: int) -> int:
    """Return how many tokens' logits are in memory at once; 0 means all of them.

    ``configured`` is the run's ``compute.loss_chunk``. Where it is None, a micro-batch of few
    logits is not chunked, and one of many has chunks of a quarter of the limit.
    """
    if configured is not None:
        return configured
    bytes_per_token = 4 * vocabulary
    if tokens * bytes_per_token <= _MAX_LOGITS_BYTES:
        return 0
    return max(1, _MAX_LOGITS_BYTES // 4 // bytes_per_token)
