"""What a model writes after prompts, greedily and in batches, or answers to queries inside them.

Prompts are sorted by length and padded on the left, so that the prompts of a batch end at about the
same time and little is padded; the cache is transformers'. The processes of a run may share them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel

from layermem_bench.evals import in_eval_mode

Rows = Sequence[Sequence[int]]
# Logits of a batch of queries take at most this many bytes, unless those of one sequence take more.
_MAX_LOGITS_BYTES = 2**28


@dataclass(frozen=True, kw_only=True)
class GreedySettings:
    """How prompts are continued."""

    end: int
    """Id of the end token, after which a sequence is complete."""
    padding: int
    """Id that fills up shorter prompts."""
    max_new_tokens: int
    """Tokens after which a sequence without an end token is cut."""
    batch_size: int = 256


@torch.inference_mode()
def greedy(
    model: PreTrainedModel,
    prompts: Rows,
    settings: GreedySettings,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Return the tokens generated after each prompt, without the end token, in the given order.

    ``progress`` is called with the number of prompts done so far.
    """
    order = _by_length(prompts)
    generated: list[list[int]] = [[] for _ in prompts]
    own = model.generation_config
    config = GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        do_sample=False,
        use_cache=own.use_cache,
        eos_token_id=settings.end,
        pad_token_id=settings.padding,
        bos_token_id=None,
    )
    # transformers fills fields that are None from the model's own config, which may have others of
    # a pretrained model: penalties, suppressed tokens.
    model.generation_config = config
    try:
        with in_eval_mode(model):
            for start in range(0, len(order), settings.batch_size):
                batch = order[start : start + settings.batch_size]
                rows = [torch.tensor(list(prompts[i])) for i in batch]
                ids = pad_sequence(rows, True, settings.padding, "left").to(model.device)
                mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
                mask = mask.to(model.device)
                out = model.generate(ids, attention_mask=mask, generation_config=config)
                for i, row in zip(batch, out[:, ids.shape[1] :].tolist(), strict=True):
                    generated[i] = row[: row.index(settings.end)] if settings.end in row else row
                progress(start + len(batch))
    finally:
        model.generation_config = own
    return generated


def shared_greedy(
    model: PreTrainedModel, prompts: Rows, settings: GreedySettings
) -> list[list[int]]:
    """Return what ``greedy`` returns, each process generating its share; all must call this.

    Every process has the same number of prompts, so the same number of batches. A sharded model
    needs all processes in every forward, so transformers has each go on until the last has ended.
    """
    processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if processes == 1 or not prompts:
        return greedy(model, prompts, settings)
    order = _by_length(prompts)
    # Process p of P takes every P-th prompt from p on, so shares are of about one length. The
    # longest prompt is repeated where the number does not divide.
    order += order[-1:] * (-len(order) % processes)
    own = greedy(model, [prompts[i] for i in order[dist.get_rank() :: processes]], settings)
    gathered: list[list[list[int]]] = [[] for _ in range(processes)]
    dist.all_gather_object(gathered, own)
    generated: list[list[int]] = [[] for _ in prompts]
    for process, rows in enumerate(gathered):
        for i, row in zip(order[process::processes], rows, strict=True):
            generated[i] = row
    return generated


def _by_length(prompts: Rows) -> list[int]:
    return sorted(range(len(prompts)), key=lambda i: len(prompts[i]))


@torch.inference_mode()
def read_answers(
    model: PreTrainedModel,
    sequences: Rows,
    queries: Rows,
    settings: GreedySettings,
    *,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Return the likeliest token after each query, sequence by sequence.

    ``queries``: indices of tokens of each sequence. ``progress`` is called with the number of
    sequences done so far.
    """
    # Padding is on the right, where a causal model needs no mask.
    longest = max(map(len, sequences))
    fitting = _MAX_LOGITS_BYTES // (4 * longest * model.config.vocab_size)
    size = max(1, min(settings.batch_size, fitting))
    answers: list[list[int]] = []
    with in_eval_mode(model):
        for start in range(0, len(sequences), size):
            batch = [torch.tensor(list(ids)) for ids in sequences[start : start + size]]
            ids = pad_sequence(batch, True, settings.padding).to(model.device)
            likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1).tolist()
            answers += [
                [row[query] for query in asked]
                for row, asked in zip(likeliest, queries[start : start + size], strict=True)
            ]
            progress(len(answers))
    return answers
