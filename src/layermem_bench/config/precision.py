"""Which precision a run computes in on this machine."""


def uses_bfloat16(precision: str) -> bool:
    """Return whether a run of this ``compute.precision`` computes in bfloat16 on this machine."""
    import torch

    if precision == "auto":
        # Older GPUs emulate bfloat16, slower than they compute in float32.
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"
