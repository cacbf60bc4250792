"""How a process computes its part of a step: sequences, and tokens with logits, at once."""

from layermem_bench.config.run import Run

# A micro-batch whose float32 logits take no more bytes than this has them all in memory at once.
# Its loss is computed in one piece, and agrees with earlier recorded losses to the last bit.
_MAX_LOGITS_BYTES = 2**30


def sequences_at_once(run: Run, processes: int) -> int:
    """Return the sequences that each process computes at once; raise unless all have as many."""
    batch, wanted = run.optim.batch_size, run.compute.micro_batch
    micro = min(wanted, max(1, batch // processes))
    if batch % (micro * processes):
        raise ValueError(
            f"optim.batch_size ({batch}) must be a multiple of compute.micro_batch "
            f"({micro}) times the number of processes ({processes})"
        )
    return micro


def choose_loss_chunk(configured: int | None, tokens: int, vocabulary: int) -> int:
    """Return how many tokens' logits are in memory at once, 0 for all: as ``configured``
    (``compute.loss_chunk``), or by the size of a micro-batch's logits."""
    if configured is not None:
        return configured
    bytes_per_token = 4 * vocabulary
    if tokens * bytes_per_token <= _MAX_LOGITS_BYTES:
        return 0
    return max(1, _MAX_LOGITS_BYTES // 4 // bytes_per_token)
