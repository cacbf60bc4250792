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


def greedy(
    model: PreTrainedModel,
    prompts: Rows,
    settings: GreedySettings,
    *,
    shared: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Return the tokens generated after each prompt, without the end token, in the given order.

    ``progress`` is called with the number of prompts done so far. ``shared``: each process of a run
    generates its share, and all must call this. Every one has the same number of prompts, so the
    same number of batches: a sharded model needs all processes in every forward, and transformers
    has each go on until the last has ended.
    """
    processes = dist.get_world_size() if shared and dist.is_initialized() else 1
    first = dist.get_rank() if processes > 1 else 0
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    # Process p of P takes every P-th prompt from p on, so shares are of about one length. The
    # longest prompt is repeated where the number does not divide.
    order += order[-1:] * (-len(order) % processes)
    own = [prompts[i] for i in order[first::processes]]
    parts = [_continue_sorted(model, own, settings, progress)] * processes
    if processes > 1:
        dist.all_gather_object(parts, parts[0])
    generated: list[list[int]] = [[] for _ in prompts]
    for process, rows in enumerate(parts):
        for i, row in zip(order[process::processes], rows, strict=True):
            generated[i] = row
    return generated


@torch.inference_mode()
def _continue_sorted(
    model: PreTrainedModel,
    prompts: Rows,
    settings: GreedySettings,
    progress: Callable[[int], None],
) -> list[list[int]]:
    """Return what is generated after prompts, in batches of their order."""
    generated: list[list[int]] = []
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
            for start in range(0, len(prompts), settings.batch_size):
                batch = prompts[start : start + settings.batch_size]
                rows = [torch.tensor([*ids]) for ids in batch]
                ids = pad_sequence(rows, True, settings.padding, "left").to(model.device)
                mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
                mask = mask.to(model.device)
                out = model.generate(ids, attention_mask=mask, generation_config=config)
                for row in out[:, ids.shape[1] :].tolist():
                    ended = settings.end in row
                    generated.append(row[: row.index(settings.end)] if ended else row)
                progress(len(generated))
    finally:
        model.generation_config = own
    return generated


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
            batch = [torch.tensor([*ids]) for ids in sequences[start : start + size]]
            ids = pad_sequence(batch, True, settings.padding).to(model.device)
            likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1).tolist()
            asked = queries[start : start + size]
            answers += [[row[q] for q in of] for row, of in zip(likeliest, asked, strict=True)]
            progress(len(answers))
    return answers
