"""How runs compute: what is computed at once, precision, compiled code, processors, known cards.

Torch is imported only where a function asks it.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

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


class Device(NamedTuple):
    """What a card computes, holds and moves in a second, from the makers' sheets.

    FLOPs are dense bfloat16 with sums in float32 (sheets of Hopper and Blackwell cards print twice
    these figures, for sparse matrices), and float32 without tensor cores. Cards with one chip
    differ by up to a factor of two. Links are those of one direction, of one card. The network is
    that of the maker's own server with eight cards, or where there is none an assumption, marked
    so.
    """

    cuda_name: str
    flops: float
    """In bfloat16."""
    float32_flops: float
    memory: float
    link: float
    """To the other cards of one machine."""
    network: float
    """A card's share of its machine's network."""
    source: str
    """Where the figures are from, and what of them is assumed."""


# Name, name by CUDA, TFLOPs a second in bfloat16 and float32, GB, GB a second of links (PCIe 4: 32,
# PCIe 5: 64), Gbit a second of the network, what data sheet they are from.
_SHEETS = (
    ("a100-40gb", "A100-SXM4-40GB", 312, 19.5, 40, 300, 200, "A100; network of the DGX A100"),
    ("a100-80gb", "A100-SXM4-80GB", 312, 19.5, 80, 300, 200, "A100; network of the DGX A100"),
    ("a100-40gb-pcie", "A100-PCIE-40GB", 312, 19.5, 40, 32, 100, "A100; network assumed"),
    ("a100-80gb-pcie", "A100 80GB PCIe", 312, 19.5, 80, 32, 100, "A100; network assumed"),
    ("h100", "H100 80GB HBM3", 989, 67, 80, 450, 400, "H100 SXM; network of the DGX H100"),
    ("h100-pcie", "H100 PCIe", 756, 51, 80, 64, 200, "H100 PCIe; network assumed"),
    ("h100-nvl", "H100 NVL", 835, 60, 94, 64, 200, "H100 NVL, no bridges; network assumed"),
    ("h200", "H200", 989, 67, 141, 450, 400, "H200 SXM; network of the DGX H200"),
    ("h200-nvl", "H200 NVL", 835, 60, 141, 64, 200, "H200 NVL, no bridges; network assumed"),
    ("b200", "B200", 2250, 75, 180, 900, 400, "DGX B200"),
    ("l40s", "L40S", 362, 91.6, 48, 32, 100, "L40S; network assumed"),
    ("rtx4090", "GeForce RTX 4090", 165, 82.6, 24, 32, 10, "Ada architecture; network assumed"),
)
DEVICES = {
    name: Device(
        *(f"NVIDIA {cuda_name}", in_bfloat16 * 1e12, in_float32 * 1e12, memory * 1e9),
        *(link * 1e9, gigabits * 1e9 / 8, f"NVIDIA's data sheet of the {sheet}"),
    )
    for name, cuda_name, in_bfloat16, in_float32, memory, link, gigabits, sheet in _SHEETS
}
"""The cards that are known, by a short name."""


def get_device(name: str) -> Device:
    """Return a card by its short name."""
    if name not in DEVICES:
        raise ValueError(f"unknown device {name!r}; there are {', '.join(DEVICES)}")
    return DEVICES[name]


def peak_flops_of(cuda_name: str) -> float | None:
    """Return the peak FLOPs per second of a card by CUDA's name; None: it is not listed."""
    return next((each.flops for each in DEVICES.values() if each.cuda_name == cuda_name), None)
