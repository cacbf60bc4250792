"""Which precision a run computes in on this machine."""


def uses_bfloat16(precision: str) -> bool:
    """Return whether a run of this ``compute.precision`` computes in bfloat16 on this machine."""
    import torch

    if precision == "auto":
        # Older GPUs emulate bfloat16, slower than they compute in float32.
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return precision == "bfloat16"


def multiplies_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 natively, or is not known not to."""
    import torch

    # Private names, which another release of torch may not have.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    answers = [getattr(torch.cpu, name, lambda: True)() for name in names]
    return any(answers) or not torch.backends.cpu.get_cpu_capability().startswith("AVX")
