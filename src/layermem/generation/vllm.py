"""vLLM's plugin: checkpoints of ours are served through its transformers backend.

vLLM calls ``register``, which the package names as an entry point, in each of its processes.
Importing the package has made the Auto classes known, so no remote code is needed. vLLM has one
cache of keys and values for each layer, as transformers does, and calls a model on the tokens of
all requests as one sequence: a variant fits if it mixes over depth alone, each token for itself.
Layers that borrow share a cache (``vllm_backend``).
"""

from layermem.models.registry import lookup

SERVED = ("plain", "lime", "lime_half", "cla", "yoco")
"""The variants that were compared with ``generate``; vLLM says of the others that their
architecture is not supported."""
_BACKEND = "layermem.generation.vllm_backend:SharedCacheForCausalLM"


def register() -> None:
    """Tell vLLM the architectures of the variants in ``SERVED``; again does nothing."""
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for name in SERVED:
        architecture = lookup(name).causal_lm.__name__
        if architecture not in known:
            ModelRegistry.register_model(architecture, _BACKEND)
