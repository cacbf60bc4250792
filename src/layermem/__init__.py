"""layermem: transformers whose attention reads keys and values of every earlier layer (LIMe).

    build("lime", **fields)   a causal LM with fresh weights; list_variants() lists the names
    build("lime", **RECIPE)   with the settings of routers that we advise, which are not the paper's
    LimeForCausalLM           the same, Hugging Face style: from_pretrained, generate, from_llama
    Seams(name, **fields)     a variant's modules, for a model of your own
    LimeRouter, route         the mechanism alone, for a loop of your own
    attach(model)             the mechanism in a model of transformers, in place; detach(model)

    ops        tensor functions: routing over depth
    models     one LLaMA-shaped decoder with two seams, and the registry
    variants   one file for each architecture that fills the seams
    retrofit   layer memory for models we do not own
    convert    saved models of other layouts become saved models of ours
    generation vLLM's plugin; text comes from transformers' generate

What trains, evaluates and compares is the package ``layermem_bench`` (extra ``bench``), and so is
the command.

Importing this package imports torch and transformers and registers its models with transformers'
Auto classes, and then imports the plugins that are installed or named by the environment.
"""

from layermem.models.lime_router import LimeRouter
from layermem.models.registry import Seams, build, list_variants
from layermem.ops.route import route
from layermem.retrofit import (
    attach,
    detach,
    load_attached,
    load_routers,
    router_parameters,
    save_routers,
    trainable,
)
from layermem.variants.lime import RECIPE, LimeConfig, LimeForCausalLM, LimeModel
from layermem.variants.plain import PlainConfig, PlainForCausalLM, PlainModel
from layermem_base import __version__ as __version__
from layermem_base.plugins import load_plugins as _load_plugins

__all__ = [
    "RECIPE",
    "LimeConfig",
    "LimeForCausalLM",
    "LimeModel",
    "LimeRouter",
    "PlainConfig",
    "PlainForCausalLM",
    "PlainModel",
    "Seams",
    "attach",
    "build",
    "detach",
    "list_variants",
    "load_attached",
    "load_routers",
    "route",
    "router_parameters",
    "save_routers",
    "trainable",
]

_load_plugins()
