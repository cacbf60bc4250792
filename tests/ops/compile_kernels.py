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
from layermem.ops.route.launches import kernel_sizes

TARGET = GPUTarget("cuda", 90, 32)
# Shared memory of one block: less than consumer cards give.
LIMIT = 64 * 1024
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
POINTERS = {"key_out", "value_out", "key_grad", "value_grad"}
# Not rounded.
WIDE = {"key_weight", "value_weight", "key_start", "value_start", "pieces"}


def kind(name, dtype, constants):
    """The type of one argument, as triton spells it."""
    if name in ("parts", "outs"):
        return (f"*{dtype}",) * (2 * constants["COUNT"])
    if name in POINTERS:
        return f"*{dtype}"
    return "*fp32" if name in WIDE else "i32"


def constants_of(kernel, dtype, heads, width, count, starts):
    """The constants of a launch."""
    sizes = kernel_sizes(torch.empty(1, heads, 1, width, dtype=dtype), heads)
    sizes |= {"STARTS": starts} if kernel is kernels.gather else {}
    return {"COUNT": count, **sizes}


def built(kernel, dtype, heads, width, count, starts):
    constants = constants_of(kernel, dtype, heads, width, count, starts)
    signature, values, aligned = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        name = parameter.name
        if name in constants:
            signature[name], values[i,] = "constexpr", constants[name]
            continue
        signature[name] = kind(name, NAMES[dtype], constants)
        if isinstance(signature[name], tuple):
            aligned |= {(i, j): [["tt.divisibility", 16]] for j in range(len(signature[name]))}
        elif signature[name].startswith("*"):
            aligned[i,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, values, aligned)
    return compile_kernel(source, target=TARGET)


def main():
    failed = False
    shapes = ((8, 64, 16), (32, 64, 16), (6, 20, 2), (8, 64, 128))
    singly = (kernels.gather, kernels.spread, kernels.gram)
    # Of more slots than one launch takes, the second begins with the sum of the first.
    wanted = (
        *itertools.product(singly, NAMES, shapes, [False]),
        *itertools.product([kernels.gather], NAMES, shapes[:2], [True]),
    )
    for kernel, dtype, (heads, width, count), starts in wanted:
        binary = built(kernel, dtype, heads, width, count, starts)
        sass, shared = binary.asm["sass"], binary.metadata.shared
        # Of one warp or of four.
        tensor_cores, spills = (len(re.findall(word, sass)) for word in (r"HG?MMA", r"\bSTL\b"))
        bad = shared > LIMIT or spills > 4 or (dtype == torch.bfloat16 and not tensor_cores)
        failed |= bad
        sys.stdout.write(
            f"{kernel.__name__:12s} {NAMES[dtype]} {heads} heads of {width}, {count} slots"
            f"{', from a partial sum' * starts}: "
            f"{shared} bytes shared, {spills} spills{', tensor cores' * bool(tensor_cores)}"
            f"{' BAD' * bad}\n"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
