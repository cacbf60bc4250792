"""layermem: transformers whose attention reads keys and values of every earlier layer (LIMe).

    build("lime", **fields)   a causal LM with fresh weights; variants() lists the names
    LimeForCausalLM           the same, Hugging Face style: from_pretrained, generate, from_llama
    LimeRouter, route         the mechanism alone, for a loop of your own

    ops        tensor functions: routing over depth
    models     one LLaMA-shaped decoder with two seams, and the registry
    variants   one file for each architecture that fills the seams

Importing this package registers its models with transformers' Auto classes.
"""

from typing import TYPE_CHECKING

import layermem.variants  # noqa: F401  (the public name, callable)
from layermem.models.registry import build
from layermem.ops.route import route
from layermem.variants.lime import LimeConfig, LimeForCausalLM, LimeModel, LimeRouter
from layermem.variants.plain import PlainConfig, PlainForCausalLM, PlainModel

if TYPE_CHECKING:
    # At run time the name is the package, which can be called; a type checker sees what calls do.
    from layermem.models.registry import variants  # noqa: TC004  (not at run time, on purpose)

__version__ = "0.1.0"

__all__ = [
    "LimeConfig",
    "LimeForCausalLM",
    "LimeModel",
    "LimeRouter",
    "PlainConfig",
    "PlainForCausalLM",
    "PlainModel",
    "build",
    "route",
    "variants",
]
