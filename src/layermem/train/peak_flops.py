"""What a device can compute at most, by its maker's data sheet.

It does not know: models, training, how much of it is used.
"""

import torch

# Matrix FLOPs a second in bfloat16, dense, of a name as CUDA reports it, whole: cards that share a
# chip's name (PCIe, NVL, laptop, a MIG slice) differ by up to a half. NVIDIA's data sheets; those
# of Hopper's cards give twice this, for sparse matrices.
_PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA GeForce RTX 4090": 165e12,
}


def peak_flops(device: torch.device) -> float | None:
    """Return a device's peak; None where no data sheet is known, rather than a wrong figure."""
    return _PEAKS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
