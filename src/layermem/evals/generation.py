"""Greedy generation for many prompts, in batches of about one length.

Prompts are sorted by length and padded on the left, so a batch is finished together and little is
padded; the cache is transformers'. The processes of a run may share them.

Letters: B prompts of a batch, T tokens.
It does not know: text, tasks, grades.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
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


def shared_greedy(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    end: int,
    padding: int,
    max_new_tokens: int,
    batch_size: int = 256,
) -> list[list[int]]:
    """Return what ``greedy`` returns, each process having done its share; all must call this.

    All do as many prompts, so as many batches; of a sharded model, whose every forward takes all
    processes, transformers has each go on until the last has ended.
    """
    generate = partial(
        greedy,
        model,
        end=end,
        padding=padding,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
    processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if processes == 1 or not prompts:
        return generate(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    # Every so many-th: shares are of about one length. The longest is done again to fill up.
    order += order[-1:] * (-len(order) % processes)
    written = generate([prompts[i] for i in order[dist.get_rank() :: processes]])
    found: list[list[int]] = [[] for _ in prompts]
    for process, rows in enumerate(_gathered(written, max_new_tokens, model.device)):
        for i, row in zip(order[process::processes], rows, strict=True):
            found[i] = row
    return found


def _gathered(rows: list[list[int]], longest: int, device: torch.device) -> list[list[list[int]]]:
    """Return the rows of every process; each has as many, of ``longest`` numbers at most."""
    own = torch.tensor([[len(row), *row, *[0] * (longest - len(row))] for row in rows])
    all_ = [torch.empty_like(own, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(all_, own.to(device))
    return [[numbers[1 : 1 + numbers[0]] for numbers in tensor.tolist()] for tensor in all_]


def _padded(
    prompts: Sequence[Sequence[int]], padding: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return ids and mask [B, T], filled up on the left."""
    longest = max(map(len, prompts))
    ids = [[padding] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
