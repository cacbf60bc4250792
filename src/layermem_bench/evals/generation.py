"""What a model writes after prompts, greedily and in batches, or answers to queries inside them.

Prompts are sorted by length and padded on the left, so that the prompts of a batch end at about the
same time and little is padded; the cache is transformers'. The processes of a run may share them.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel

from layermem_bench.evals.scoring import in_eval_mode

Rows = Sequence[Sequence[int]]
# Logits of a batch of queries take at most this many bytes, unless those of one sequence take more.
_MAX_LOGITS_BYTES = 2**28


def greedy(
    model: PreTrainedModel,
    prompts: Rows,
    *,
    end: int,
    padding: int,
    max_new_tokens: int,
    batch_size: int = 256,
    shared: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Return the tokens generated after each prompt, without the end token, in the given order.

    ``progress`` is called with the number of prompts done so far. ``shared``: each process of a run
    generates its share, and all must call this. Every one has the same number of prompts, so the
    same number of batches: a sharded model needs all processes in every forward, and transformers
    has each go on until the last has ended.
    """
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=model.generation_config.use_cache,
        eos_token_id=end,
        pad_token_id=padding,
        bos_token_id=None,
    )
    processes = dist.get_world_size() if shared and dist.is_initialized() else 1
    first = dist.get_rank() if processes > 1 else 0
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    # Process p of P takes every P-th prompt from p on, so shares are of about one length. The
    # longest prompt is repeated where the number does not divide.
    order += order[-1:] * (-len(order) % processes)
    own, rows = [prompts[i] for i in order[first::processes]], list[list[int]]()
    for start in range(0, len(own), batch_size):
        rows += _continue_batch(model, own[start : start + batch_size], config)
        progress(len(rows))
    parts = [rows] * processes
    if processes > 1:
        dist.all_gather_object(parts, rows)
    generated: list[list[int]] = [[] for _ in prompts]
    for process, of_process in enumerate(parts):
        for i, row in zip(order[process::processes], of_process, strict=True):
            generated[i] = row[: row.index(end)] if end in row else row
    return generated


@torch.inference_mode()
def _continue_batch(
    model: PreTrainedModel, prompts: Rows, config: GenerationConfig
) -> list[list[int]]:
    """Return what is generated after prompts, with the end token and what stands after it."""
    rows = [torch.tensor([*ids]) for ids in prompts]
    ids = pad_sequence(rows, True, config.pad_token_id, "left").to(model.device)
    mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left").to(model.device)
    # transformers fills fields that are None from the model's own config, which may have others of
    # a pretrained model: penalties, suppressed tokens.
    own, model.generation_config = model.generation_config, config
    try:
        with in_eval_mode(model):
            out = model.generate(ids, attention_mask=mask, generation_config=config)
    finally:
        model.generation_config = own
    generated: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return generated


@torch.inference_mode()
def read_answers(
    model: PreTrainedModel,
    sequences: Rows,
    queries: Rows,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Return the likeliest token after each query, sequence by sequence.

    ``queries``: indices of tokens of each sequence. ``progress`` is called with the number of
    sequences done so far.
    """
    # Padding is on the right, where a causal model needs no mask and any id will do.
    longest = max(map(len, sequences))
    fitting = _MAX_LOGITS_BYTES // (4 * longest * model.config.vocab_size)
    size = max(1, min(batch_size, fitting))
    answers: list[list[int]] = []
    with in_eval_mode(model):
        for start in range(0, len(sequences), size):
            batch = [torch.tensor([*ids]) for ids in sequences[start : start + size]]
            ids = pad_sequence(batch, True).to(model.device)
            likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1).tolist()
            asked = queries[start : start + size]
            answers += [[row[q] for q in of] for row, of in zip(likeliest, asked, strict=True)]
            progress(len(answers))
    return answers
