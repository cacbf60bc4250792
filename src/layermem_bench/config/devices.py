"""Devices as data: what a card computes, holds and moves in a second, from the makers' sheets.

FLOPs are dense bfloat16 with sums in float32 (sheets of Hopper and Blackwell cards print twice
these figures, for sparse matrices), and float32 without tensor cores. Cards with one chip differ by
up to a factor of two. Links are those of one direction, of one card. The network is not the card's:
it is that of the maker's own server with eight of them, or where there is none an assumption,
marked so.
"""

from typing import NamedTuple


class Device(NamedTuple):
    """One card: peak FLOPs, bytes of memory, and bytes a second of links and network."""

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
        cuda_name=f"NVIDIA {cuda_name}",
        flops=in_bfloat16 * 1e12,
        float32_flops=in_float32 * 1e12,
        memory=gigabytes * 1e9,
        link=link * 1e9,
        network=gigabits * 1e9 / 8,
        source=f"NVIDIA's data sheet of the {sheet}",
    )
    for name, cuda_name, in_bfloat16, in_float32, gigabytes, link, gigabits, sheet in _SHEETS
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
