"""layermem: transformers whose attention reads keys and values of every earlier layer (LIMe).

    build("lime", **fields)   a causal LM with fresh weights; variants() lists the names
    build("lime", **RECIPE)   with the settings of routers that we advise, which are not the paper's
    LimeForCausalLM           the same, Hugging Face style: from_pretrained, generate, from_llama
    LimeRouter, route         the mechanism alone, for a loop of your own
    attach(model)             the mechanism in a model of transformers, in place; detach(model)

    ops        tensor functions: routing over depth
    models     one LLaMA-shaped decoder with two seams, and the registry
    variants   one file for each architecture that fills the seams
    retrofit   layer memory for models we do not own
    convert    saved models of other layouts become saved models of ours
    generation text from a model, in batches; vLLM

What trains, evaluates and compares is the package ``layermem_bench`` (extra ``bench``), and so is
the command.

Importing this package makes its models known to transformers' Auto classes, whichever of the two
packages a program imports first. It imports neither torch nor transformers: a public name is
imported when it is used, and the variants when an Auto class looks one of their model types up.
"""

import importlib
from typing import TYPE_CHECKING, Any

from layermem.auto_classes import wait_for_transformers

if TYPE_CHECKING:
    # At run time ``variants`` is the package, which can be called; a type checker sees a function.
    from layermem.models.registry import build, variants
    from layermem.ops.route import route
    from layermem.retrofit import (
        attach,
        detach,
        load_routers,
        router_parameters,
        save_routers,
        trainable,
    )
    from layermem.variants.lime import RECIPE, LimeConfig, LimeForCausalLM, LimeModel, LimeRouter
    from layermem.variants.plain import PlainConfig, PlainForCausalLM, PlainModel

__version__ = "0.1.0"

__all__ = [
    "RECIPE",
    "LimeConfig",
    "LimeForCausalLM",
    "LimeModel",
    "LimeRouter",
    "PlainConfig",
    "PlainForCausalLM",
    "PlainModel",
    "attach",
    "build",
    "detach",
    "load_routers",
    "route",
    "router_parameters",
    "save_routers",
    "trainable",
    "variants",
]

_PACKAGES = ("convert", "generation", "models", "ops", "retrofit", "variants")
_MODULE_OF = {
    "RECIPE": "variants.lime",
    "LimeConfig": "variants.lime",
    "LimeForCausalLM": "variants.lime",
    "LimeModel": "variants.lime",
    "LimeRouter": "variants.lime",
    "PlainConfig": "variants.plain",
    "PlainForCausalLM": "variants.plain",
    "PlainModel": "variants.plain",
    "attach": "retrofit",
    "build": "models.registry",
    "detach": "retrofit",
    "load_routers": "retrofit",
    "route": "ops.route",
    "router_parameters": "retrofit",
    "save_routers": "retrofit",
    "trainable": "retrofit",
}

if not TYPE_CHECKING:
    # A type checker would take every name for one that this function knows.
    def __getattr__(name: str) -> Any:
        """Import a public name, or a package, when it is first used."""
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})


wait_for_transformers()
