"""Devices as data: what a card computes, holds and moves in a second, from the makers' sheets.

FLOPs are dense bfloat16 with sums in float32; sheets of Hopper and Blackwell cards print twice
these figures, for sparse matrices. Cards with one chip differ by up to a factor of two. Links
are those of one direction, of one card. The network is not the card's: it is that of the
maker's own server with eight of them, or where there is none an assumption, marked so.
"""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Device:
    """One card: peak FLOPs, bytes of memory, and bytes a second of links and network."""

    flops: float
    memory: float
    link: float
    """To the other cards of one machine."""
    network: float
    """A card's share of its machine's network."""
    cuda_names: tuple[str, ...]
    """What CUDA calls it."""
    source: str
    """Where the figures are from, and what of them is assumed."""


_GBIT = 1e9 / 8
_NVIDIA = "NVIDIA's data sheet"
_PCIE_4, _PCIE_5 = 32e9, 64e9
_ASSUMED = "network assumed"
DEVICES = {
    "a100-40gb": Device(
        flops=312e12,
        memory=40e9,
        link=300e9,
        network=200 * _GBIT,
        cuda_names=("NVIDIA A100-SXM4-40GB",),
        source=f"{_NVIDIA} of the A100; network of the DGX A100",
    ),
    "a100-80gb": Device(
        flops=312e12,
        memory=80e9,
        link=300e9,
        network=200 * _GBIT,
        cuda_names=("NVIDIA A100-SXM4-80GB",),
        source=f"{_NVIDIA} of the A100; network of the DGX A100",
    ),
    "a100-40gb-pcie": Device(
        flops=312e12,
        memory=40e9,
        link=_PCIE_4,
        network=100 * _GBIT,
        cuda_names=("NVIDIA A100-PCIE-40GB",),
        source=f"{_NVIDIA} of the A100; {_ASSUMED}",
    ),
    "a100-80gb-pcie": Device(
        flops=312e12,
        memory=80e9,
        link=_PCIE_4,
        network=100 * _GBIT,
        cuda_names=("NVIDIA A100 80GB PCIe",),
        source=f"{_NVIDIA} of the A100; {_ASSUMED}",
    ),
    "h100": Device(
        flops=989e12,
        memory=80e9,
        link=450e9,
        network=400 * _GBIT,
        cuda_names=("NVIDIA H100 80GB HBM3",),
        source=f"{_NVIDIA} of the H100 SXM; network of the DGX H100",
    ),
    "h100-pcie": Device(
        flops=756e12,
        memory=80e9,
        link=_PCIE_5,
        network=200 * _GBIT,
        cuda_names=("NVIDIA H100 PCIe",),
        source=f"{_NVIDIA} of the H100 PCIe, without bridges; {_ASSUMED}",
    ),
    "h100-nvl": Device(
        flops=835e12,
        memory=94e9,
        link=_PCIE_5,
        network=200 * _GBIT,
        cuda_names=("NVIDIA H100 NVL",),
        source=f"{_NVIDIA} of the H100 NVL, without bridges; {_ASSUMED}",
    ),
    "h200": Device(
        flops=989e12,
        memory=141e9,
        link=450e9,
        network=400 * _GBIT,
        cuda_names=("NVIDIA H200",),
        source=f"{_NVIDIA} of the H200 SXM; network of the DGX H200",
    ),
    "h200-nvl": Device(
        flops=835e12,
        memory=141e9,
        link=_PCIE_5,
        network=200 * _GBIT,
        cuda_names=("NVIDIA H200 NVL",),
        source=f"{_NVIDIA} of the H200 NVL, without bridges; {_ASSUMED}",
    ),
    "b200": Device(
        flops=2250e12,
        memory=180e9,
        link=900e9,
        network=400 * _GBIT,
        cuda_names=("NVIDIA B200",),
        source=f"{_NVIDIA} of the DGX B200",
    ),
    "l40s": Device(
        flops=362e12,
        memory=48e9,
        link=_PCIE_4,
        network=100 * _GBIT,
        cuda_names=("NVIDIA L40S",),
        source=f"{_NVIDIA} of the L40S; {_ASSUMED}",
    ),
    "rtx4090": Device(
        flops=165e12,
        memory=24e9,
        link=_PCIE_4,
        network=10 * _GBIT,
        cuda_names=("NVIDIA GeForce RTX 4090",),
        source=f"NVIDIA's white paper on the Ada architecture; {_ASSUMED}",
    ),
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
    peaks = {name: device.flops for device in DEVICES.values() for name in device.cuda_names}
    return peaks.get(cuda_name)
