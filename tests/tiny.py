"""Sizes and models the tests share."""

import gc
import shutil

import literal
import pytest
import torch

from layermem.models.registry import list_variants

TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

# Pairs of variants that the contract tests, of all that can be made.
PAIRS = ["lime+hyper_connections", "lime+mudd", "value_residual+denseformer"]

SLOW = pytest.mark.slow

# Every registered variant as it comes, and its further forms: (id, variant, fields).
CASES = [
    (case, name, fields)
    for name in [*list_variants(), *PAIRS]
    for case, fields in {name: {}, **literal.cases(name)}.items()
]

# Every variant, all but these two among the slow tests: for tests that cost much.
MOST_SLOW = [
    name if name in ("plain", "lime") else pytest.param(name, marks=SLOW)
    for name in list_variants()
]

# A variant of each kind of seam, all but LIMe among the slow tests: for tests that cost much and
# ask of a variant what the decoder that all share answers. The contract asks every variant.
KINDS = [
    "lime",
    *(
        pytest.param(name, marks=SLOW)
        for name in ("plain", "depth_attention", "lime_hidden", "mhc", "mudd")
    ),
]

needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")),
    reason="torch.compile on a CPU needs a C++ compiler, and there is none",
)


def make(model_class, config, seed=0):
    """Build a model in eval mode whose own parameters matter: noise on top of their start."""
    torch.manual_seed(seed)
    model = model_class(config).eval()
    noise = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_own(name):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=noise))
    return model


def is_own(name):
    """Whether a parameter belongs to the variant, not to the plain decoder."""
    return ".memory." in name or "_connection." in name or "stream." in name


def live_tensors():
    """Return the tensors that Python knows, but for those of torch.func and of tracing, which have
    no storage."""
    gc.collect()
    return [x for x in gc.get_objects() if type(x) is torch.Tensor and _has_storage(x)]


def _has_storage(tensor):
    try:
        tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return False
    return True
