"""Compile the kernels for a Hopper GPU, on a machine without one, and look at what came out.

A program of its own: a process that has imported the kernels for the interpreter cannot compile
them. Prints a line for each, and fails if one spills registers, asks for
too much memory, or leaves bfloat16 to other units than the tensor cores.
"""

import itertools
import re
import sys

import torch
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from layermem.ops.route import kernels
from layermem.ops.route.triton import _kernel_sizes

TARGET = GPUTarget("cuda", 90, 32)
# Shared memory of one block: what consumer cards give.
LIMIT = 99 * 1024
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
POINTERS = {"key_out", "value_out", "key_start", "value_start", "key_grad", "value_grad"}


def kind(name, dtype, count):
    """The type of one argument, as triton spells it."""
    if name in ("parts", "outs"):
        return (f"*{dtype}",) * (2 * count)
    if name in POINTERS:
        return f"*{dtype}"
    return "*fp32" if name in ("weight", "pieces") else "i32"


def built(kernel, dtype, heads, width, count):
    constants = _kernel_sizes(torch.empty(1, heads, 1, width, dtype=dtype), heads)
    constants |= {"COUNT": count, **({"STARTS": False} if kernel is kernels.gather else {})}
    signature, values, aligned = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            signature[name], values[i,] = "constexpr", constants[name]
            continue
        signature[name] = kind(name, NAMES[dtype], count)
        if isinstance(signature[name], tuple):
            aligned |= {(i, j): [["tt.divisibility", 16]] for j in range(2 * count)}
        elif signature[name].startswith("*"):
            aligned[i,] = [["tt.divisibility", 16]]
    return compile_kernel(ASTSource(kernel, signature, values, aligned), target=TARGET)


def main():
    failed = False
    every = (kernels.gather, kernels.spread, kernels.gram)
    shapes = ((8, 64, 16), (32, 64, 16), (6, 20, 2), (8, 64, 128))
    for kernel, dtype, (heads, width, count) in itertools.product(every, NAMES, shapes):
        binary = built(kernel, dtype, heads, width, count)
        sass, shared = binary.asm["sass"], binary.metadata.shared
        tensor_cores, spills = "HMMA" in sass, len(re.findall(r"\bSTL\b", sass))
        bad = shared > LIMIT or spills > 4 or (dtype == torch.bfloat16 and not tensor_cores)
        failed |= bad
        sys.stdout.write(
            f"{kernel.__name__:8s} {NAMES[dtype]} {heads} heads of {width}, {count} slots: {shared}"
            f" bytes shared, {spills} spills{', tensor cores' * tensor_cores}{' BAD' * bad}\n"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
