"""Greedy generation for many prompts, in batches of about one length.

Prompts are sorted by length and padded on the left, so a batch is finished together and little is
padded; the cache is transformers'.

Letters: B prompts of a batch, T tokens.
It does not know: text, tasks, grades.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    end: int,
    padding: int,
    max_new_tokens: int,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Return the tokens generated after each prompt, without the end token, in the given order.

    ``progress`` is told how many are done. The model is left in the mode it was in.
    """
    if not all(prompts):
        raise ValueError(f"prompt {[len(p) for p in prompts].index(0)} has no tokens")
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: list[list[int]] = [[] for _ in prompts]
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            ids, mask = _padded([prompts[i] for i in chosen], padding, model.device)
            out = model.generate(ids, attention_mask=mask, generation_config=settings)
            for i, row in zip(chosen, out[:, ids.shape[1] :].tolist(), strict=True):
                found[i] = row[: row.index(end)] if end in row else row
            if progress is not None:
                progress(start + len(chosen))
    finally:
        model.train(was_training)
    return found


def _padded(
    prompts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ids and mask [B, T], filled up on the left."""
    longest = max(map(len, prompts))
    ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
