"""How runs compute on this machine: what is computed at once, precision, compiled code, processor.

Torch is imported only where a function asks it.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from layermem_bench.config.run import Run

Mode = Literal["eager", "default", "reduce-overhead"]
"""How a timed step is carried out: the last two are torch.compile's."""
Precision = Literal["float32", "bfloat16"]
# Of the compiled code of one model: with and without gradients, another length.
_VERSIONS = 4
# A micro-batch whose float32 logits take no more bytes than this has them all in memory at once.
# Its loss is computed in one piece, and agrees with earlier recorded losses to the last bit.
_MAX_LOGITS_BYTES = 2**30
_CPUINFO = Path("/proc/cpuinfo")


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


def uses_bfloat16(precision: str) -> bool:
    """Return whether a run of this ``compute.precision`` computes in bfloat16 on this machine."""
    import torch

    if precision == "auto":
        # Older GPUs emulate bfloat16, slower than they compute in float32.
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"


@contextmanager
def room_to_compile(codes: int) -> Iterator[None]:
    """Let one code be compiled for so many uses, such as models or layers, each as good as alone.

    Of one code torch.compile keeps eight versions, and runs what comes after them uncompiled, with
    a warning in the log: it is slow, and correct. What still does not fit is an error here.
    """
    from torch._dynamo import config

    versions = max(config.recompile_limit, _VERSIONS * codes)
    with config.patch(
        recompile_limit=versions,
        accumulated_recompile_limit=max(config.accumulated_recompile_limit, 32 * versions),
        fail_on_recompile_limit_hit=True,
    ):
        yield


def processor_name() -> str:
    """Return the processor's name as the system has it, else its architecture, such as x86_64.

    It tells measurements of two machines apart.
    """
    text = _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.exists() else ""
    fields = (line.partition(":") for line in text.splitlines())
    # Of some architectures there is none.
    names = (value.split() for field, _, value in fields if field.strip() == "model name")
    return " ".join(next(filter(None, names), ())) or platform.processor() or platform.machine()
