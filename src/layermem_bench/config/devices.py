"""Devices as data: what a card computes, holds and moves in a second, from the makers' sheets.

FLOPs are dense bfloat16 with sums in float32; sheets of Hopper and Blackwell cards print twice
these figures, for sparse matrices. Cards with one chip differ by up to a factor of two. Links
are those of one direction, of one card. The network is not the card's: it is that of the
maker's own server with eight of them, or where there is none an assumption, marked so.
"""

import difflib
from typing import NamedTuple


class Device(NamedTuple):
    """One card: peak FLOPs, bytes of memory, and bytes a second of links and network."""

    cuda_name: str
    flops: float
    memory: float
    link: float
    """To the other cards of one machine."""
    network: float
    """A card's share of its machine's network."""
    source: str
    """Where the figures are from, and what of them is assumed."""


# Name, name by CUDA, TFLOPs a second, GB, GB a second of links (PCIe 4: 32, PCIe 5: 64), Gbit a
# second of the network, what data sheet they are from.
_SHEETS = (
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 312, 40, 300, 200, "A100; network of the DGX A100"),
    ("a100-80gb", "NVIDIA A100-SXM4-80GB", 312, 80, 300, 200, "A100; network of the DGX A100"),
    ("a100-40gb-pcie", "NVIDIA A100-PCIE-40GB", 312, 40, 32, 100, "A100; network assumed"),
    ("a100-80gb-pcie", "NVIDIA A100 80GB PCIe", 312, 80, 32, 100, "A100; network assumed"),
    ("h100", "NVIDIA H100 80GB HBM3", 989, 80, 450, 400, "H100 SXM; network of the DGX H100"),
    ("h100-pcie", "NVIDIA H100 PCIe", 756, 80, 64, 200, "H100 PCIe; network assumed"),
    ("h100-nvl", "NVIDIA H100 NVL", 835, 94, 64, 200, "H100 NVL, no bridges; network assumed"),
    ("h200", "NVIDIA H200", 989, 141, 450, 400, "H200 SXM; network of the DGX H200"),
    ("h200-nvl", "NVIDIA H200 NVL", 835, 141, 64, 200, "H200 NVL, no bridges; network assumed"),
    ("b200", "NVIDIA B200", 2250, 180, 900, 400, "DGX B200"),
    ("l40s", "NVIDIA L40S", 362, 48, 32, 100, "L40S; network assumed"),
    ("rtx4090", "NVIDIA GeForce RTX 4090", 165, 24, 32, 10, "Ada architecture; network assumed"),
)
DEVICES = {
    name: Device(
        cuda_name=cuda_name,
        flops=teraflops * 1e12,
        memory=gigabytes * 1e9,
        link=link * 1e9,
        network=gigabits * 1e9 / 8,
        source=f"NVIDIA's data sheet of the {sheet}",
    )
    for name, cuda_name, teraflops, gigabytes, link, gigabits, sheet in _SHEETS
}
"""The cards that are known, by a short name."""


def get_device(name: str) -> Device:
    """Return a card by its short name."""
    if name not in DEVICES:
        close = difflib.get_close_matches(name.lower(), DEVICES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(DEVICES)}"
        raise ValueError(f"unknown device {name!r}; {hint}")
    return DEVICES[name]


def peak_flops_of(cuda_name: str) -> float | None:
    """Return the peak FLOPs per second of a card by CUDA's name; None: it is not listed."""
    return next((each.flops for each in DEVICES.values() if each.cuda_name == cuda_name), None)
