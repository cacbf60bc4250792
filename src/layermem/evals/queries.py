"""Reading the answers to queries inside sequences: the likeliest token after each query.

Letters: B sequences of a batch, T tokens, V words of the vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from layermem.evals.generation import GreedySettings

# Logits of a batch take at most this many bytes, unless those of a single sequence take more.
_MAX_LOGITS_BYTES = 2**28


@torch.inference_mode()
def read_answers(
    model: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    queries: Sequence[Sequence[int]],
    settings: GreedySettings,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Return the likeliest token after each query, sequence by sequence.

    ``queries``: indices of tokens of each sequence. ``progress`` is called with the number of
    sequences done so far. The model is left in the mode (training or evaluation) it was in.
    """
    # Padding is on the right, where a causal model needs no mask.
    longest = max(map(len, sequences))
    fitting = _MAX_LOGITS_BYTES // (4 * longest * model.config.vocab_size)
    size = max(1, min(settings.batch_size, fitting))
    answers: list[list[int]] = []
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(sequences), size):
            batch = [torch.tensor(list(ids)) for ids in sequences[start : start + size]]
            ids = pad_sequence(batch, True, settings.padding).to(model.device)
            likeliest = model(input_ids=ids, use_cache=False).logits.argmax(-1).tolist()
            answers += [
                [row[query] for query in asked]
                for row, asked in zip(likeliest, queries[start : start + size], strict=True)
            ]
            if progress is not None:
                progress(len(answers))
    finally:
        model.train(was_training)
    return answers
