"""Peak FLOPs per second of GPUs, as their data sheets give them.

It does not know: models, training, which share of the peak is used.
"""

import torch

# Dense bfloat16 matrix FLOPs per second from NVIDIA's data sheets, by the full name that CUDA
# reports: cards with the same chip (PCIe, NVL, laptop, a MIG slice) differ by up to a factor of
# two. The data sheets of Hopper cards give twice these figures, for sparse matrices.
_PEAK_FLOPS = {
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
    """Return the peak FLOPs per second of a device, or None where no data sheet is listed."""
    if device.type != "cuda":
        return None
    return _PEAK_FLOPS.get(torch.cuda.get_device_name(device))
