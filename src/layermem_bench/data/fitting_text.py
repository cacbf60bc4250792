"""Token ids of a text for what is fitted on it without training, and a model's loss on them."""

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from layermem_bench.data.sources import open_source


def blocks_of_text(source: str, tokenizer: Any, length: int, tokens: int) -> Tensor:
    """Return the first ``tokens`` of a text as whole sequences [N, length]: documents in a row.

    Each is followed by the token that ends a text, where the tokenizer has one. No more of the
    text is read than that.
    """
    wanted = -(-tokens // length) * length
    ending = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = (
        number
        for document in open_source(source, streaming=True)
        if document
        for number in [
            *tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"],
            *ending,
        ]
    )
    taken = torch.tensor(list(islice(ids, wanted)), dtype=torch.long)
    return taken[: len(taken) // length * length].view(-1, length)


@torch.no_grad()
def mean_loss(model: Any, blocks: Tensor) -> float:
    """Return the mean loss of a token of sequences [N, length], without the first of each."""
    losses = [model(block[None], labels=block[None], loss_chunk=256).loss for block in blocks]
    return float(torch.stack(losses).mean())
